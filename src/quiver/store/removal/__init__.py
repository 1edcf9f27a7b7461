"""
Which segments are deleted, when, and what is recorded before they are.

==============  ============================================================
module          purpose
==============  ============================================================
`retention.py`  which segments may go (pure)
`cleanup.py`    what leaves the disk and why
`drops.py`      the drop ledger: what policy gave up, durable before it goes
`skips.py`      what an operator skipped for a subscriber
==============  ============================================================
"""
