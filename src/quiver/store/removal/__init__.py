"""
Which segments are deleted, when, and what is recorded before they are.

==============  ====================================================================
module          purpose
==============  ====================================================================
`retention.py`  which segments may be deleted (pure)
`cleanup.py`    deletes segments: finished, over age, or dropped at a cap
`drops.py`      the drop ledger: what policy drops, durable before it is deleted
`skips.py`      the ledger of what an operator skipped for a subscriber
==============  ====================================================================
"""
