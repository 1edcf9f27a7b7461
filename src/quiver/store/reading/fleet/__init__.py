"""
A fleet as its bucket shows it, in any process. Nothing here imports the engine.

====================  =====================================================================================
module                purpose
====================  =====================================================================================
`listing.py`          all objects of a folder, listed by several requests at once
`survey.py`           nodes, what of them is in the bucket, and the positions of readers
`lag.py`              the lag of one reader in one node (pure)
`checks.py`           findings for an operator (pure)
`retirement.py`       removes what a node that does not come back left in the bucket
====================  =====================================================================================
"""
