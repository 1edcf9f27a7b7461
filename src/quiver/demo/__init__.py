"""
The demo: a real pipeline under load, whose processes are killed while data flow, with a final check of every record.

===========  ===========================================================================================
module       purpose
===========  ===========================================================================================
`names.py`   names that load and report share
`load.py`    a process that sends telemetry with the unmodified OpenTelemetry SDK and records confirmed ids
`runner.py`  starts pipeline and load, kills processes, waits, stops
`report.py`  compares confirmed ids with the ids in the Parquet files, read with pyarrow
===========  ===========================================================================================

Every record has a unique id in the attribute `demo.id`, so that lost and duplicated records can be named.
"""
