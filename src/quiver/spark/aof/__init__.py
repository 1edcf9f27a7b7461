"""
The format `quiver-aof`: an AOF2 log as a Spark source and sink.

=================  ==========================================================
module             purpose
=================  ==========================================================
`options.py`       the options of `quiver-aof` (pure)
`source.py`        the data source `quiver-aof`
`sink_options.py`  the options of a write, with their table (pure)
`sink.py`          rows → staged records in tasks → one committed batch
=================  ==========================================================
"""
