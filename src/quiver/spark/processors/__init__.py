"""
Processors: functions from a frame to a frame, and what happens to a bundle that one fails on.

======================  =====================================================
module                  purpose
======================  =====================================================
`settings.py`           what processors are told; no Spark
`chain.py`              processors: functions from a frame to a frame
`redaction.py`          values made unreadable in Arrow batches (pure)
`bad_bundle_filter.py`  bundles that fail a batch: found, and set aside
`bisect.py`             which of several things makes all of them fail (pure)
======================  =====================================================
"""
