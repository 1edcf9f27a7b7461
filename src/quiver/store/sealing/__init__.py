"""
How the open segment becomes a file.

===============  ===================================================================================
module           purpose
===============  ===================================================================================
`schedule.py`    the open segment and the one being written: when to seal, when to retry
`sealer.py`      writes a full segment, then updates log, catalog and subscribers in crash-safe order
`group_seal.py`  durable calls of a store without a log: they share a sealed segment
===============  ===================================================================================
"""
