"""
What stands between an exporter and its far side: what to do with what was not delivered, and where it waits.

===================  ============================================================================
module               purpose
===================  ============================================================================
`policy.py`          delivered, again later or given up: the rules (pure)
`dead_letters.py`    what was given up: a store of the exporter's own, and what people do there
`letter_policy.py`   how much room those have, how long they stay, who replays them (pure)
`letter_replay.py`   those whose data were not refused, delivered again by themselves
`undelivered.py`     the three as one object: asked for each bundle that failed
`exporter_stats.py`  what was delivered and what failed: counts, and a report of the last of both
`batches.py`         a reader in order: what becomes of a batch before it is committed
===================  ============================================================================
"""
