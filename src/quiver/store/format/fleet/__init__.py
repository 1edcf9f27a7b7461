"""
The objects of a fleet: many stores, called nodes, that share one bucket. Pure: bytes and names in, values out.

====================  ==========================================================================
module                purpose
====================  ==========================================================================
`names.py`            the keys of all objects (pure)
`chain.py`            which objects of a node can be read, from a position on (pure)
`gone.py`             segments of a node that no reader can read any more (pure)
`rejected.py`         a segment that a reader could not read (pure)
`node_record.py`      the report of a node about itself (pure)
`acks.py`             the positions up to which a subscriber has read the nodes (pure)
`offsets.py`          the objects of one batch of a subscriber, and the positions after it (pure)
====================  ==========================================================================
"""
