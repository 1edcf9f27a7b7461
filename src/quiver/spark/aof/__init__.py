"""
The format `quiver-aof`: an AOF2 log as a Spark source and sink.

=================  ==========================================================
module             purpose
=================  ==========================================================
`options.py`       the options of `quiver-aof`, and positions in a log (pure)
`source.py`        the format `quiver-aof`, in Spark's terms
`sink_options.py`  the options of a write, with their table (pure)
`sink.py`          rows → staged records in tasks → one committed batch
=================  ==========================================================
"""
