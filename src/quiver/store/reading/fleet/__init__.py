"""
Reading a fleet from its bucket, in any process. Nothing here imports the engine, and nothing needs Spark.

====================  =====================================================================================
module                purpose
====================  =====================================================================================
`listing.py`          all objects of a folder, listed by several requests at once
`survey.py`           nodes, what of them is in the bucket, and the positions of readers
`lag.py`              the lag of one reader in one node (pure)
`checks.py`           findings for an operator (pure)
`retirement.py`       removes what a node that does not come back left in the bucket
`inbox.py`            the objects that a reader has not read yet, of all nodes, within limits
`chains.py`           what can be read of a node, and what was lost
`planning.py`         the objects of the next batch, shared between the nodes (pure)
`batches.py`          the objects of each batch, created once
`owner.py`            which query runs a subscriber
`positions.py`        the positions of a subscriber, replaced by its owner
`subscriber.py`       a streaming query as a subscriber: start, plan, acknowledge
`options.py`          the options of a load, with their table (pure)
`directories.py`      the nodes as directories of segments, for `quiver.read`
`segments.py`         one segment, or one record of segments that are gone, fetched and verified
`rejected.py`         segments that could not be read, recorded instead of failing a batch
====================  =====================================================================================
"""
