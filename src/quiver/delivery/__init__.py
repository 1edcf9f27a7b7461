"""
Handling of bundles that an exporter could not deliver: retry, dead letters, replay.

=======================  =================================================================================
module                   purpose
=======================  =================================================================================
`policy.py`              retry policy: delivered, retry later, or exhausted (pure)
`dead_letters.py`        dead letters: one store for each exporter; reading, dropping and replaying them
`dead_letter_policy.py`  size cap, maximum age and replay mode of dead letters (pure)
`dead_letter_replay.py`  automatic replay of dead letters whose data were not refused
`undelivered.py`         policy, retry set and dead letters as one object, called for each failed bundle
`exporter_stats.py`      counts of deliveries and failures, and a report of the last of both
`signal_filter.py`       the part of a bundle that an exporter of some signals receives (pure)
`batches.py`             delivery of a batch for a reader in order: retry or dead letter before the commit
=======================  =================================================================================
"""
