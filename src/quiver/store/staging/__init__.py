"""
Batches that are staged next to a store, committed as one, and imported by its owner (`store/staged_import.py`).

==============  ==========================================================================
module          purpose
==============  ==========================================================================
`batches.py`    bundles → staged segments → one committed batch
`room.py`       disk space for staged segments: a writer waits for it like any producer
==============  ==========================================================================
"""
