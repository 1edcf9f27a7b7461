"""
The demo: a real pipeline under real load, killed while data flows, and the account afterwards.

===========  =================================================================================================
module       purpose
===========  =================================================================================================
`names.py`   what load and account agree on
`load.py`    a process that sends telemetry with the unmodified OpenTelemetry SDK and notes what was confirmed
`runner.py`  starts pipeline and load, kills processes, waits, stops
`report.py`  ids confirmed against ids in the Parquet files, read with pyarrow
===========  =================================================================================================

Every record carries an id of its own as the attribute `demo.id`, so that lost and doubled ones can be named.
"""
