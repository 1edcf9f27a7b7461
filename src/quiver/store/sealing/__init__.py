"""
How the open segment becomes a file.

===============  ===============================================================
module           purpose
===============  ===============================================================
`group_seal.py`  durable calls without a log: they share a sealed segment
`schedule.py`    from open to sealed: when, and again when the disk was full
`sealer.py`      a full segment becomes a file, in the order that a crash allows
===============  ===============================================================
"""
