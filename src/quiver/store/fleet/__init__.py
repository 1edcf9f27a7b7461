"""
A store as a node of a fleet: it uploads into a bucket that many nodes share, and a reader there acknowledges.

====================  ====================================================================
module                purpose
====================  ====================================================================
`node.py`             one store as a node: its record, its subscribers, gaps in its chain
`node_claim.py`       the record in the bucket, by which a second store with the same
                      identity is found
`fleet_acks.py`       decides whether a position from the bucket may be accepted
`chain_gaps.py`       which segment numbers were never uploaded, and why (pure)
====================  ====================================================================

`store/cold/tier.py` uploads the segments, and calls `node.py` in each pass.
"""
