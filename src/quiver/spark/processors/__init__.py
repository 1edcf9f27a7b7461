"""
Processors: functions from a frame to a frame, and the treatment of bundles that they fail on.

======================  =====================================================
module                  purpose
======================  =====================================================
`settings.py`           the settings of processors; no Spark
`chain.py`              processors: functions from a frame to a frame
`redaction.py`          removes or masks values in Arrow batches (pure)
`bad_bundle_filter.py`  finds the bundles that make a batch fail
`bisect.py`             which of several items makes all of them fail (pure)
======================  =====================================================
"""
