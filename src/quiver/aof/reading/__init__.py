"""
Readers of AOF2 files, for any process: nothing here imports the engine.

================  =======================================================================
module            purpose
================  =======================================================================
`catalog.py`      the sealed segments and their mappings
`reader.py`       records in order; reports what was lost
`search.py`       one record by its id, or the first one of a time
`resume.py`       the next intact record after damage (pure)
`batch.py`        many records together, as columns and one buffer
`source.py`       segments as a reader sees them
`manifest.py`     the log of tier events: where each segment has copies
`files.py`        the segments of a log that another process writes
`check.py`        verification of a log's directory
`status.py`       the status that a log's writer publishes
`file_reader.py`  a log that another process writes, in ranges and batches
`index.py`        sparse indexes of sealed segments, stored in `index/`
`position.py`     a place in a log, as stored in a Spark checkpoint (pure)
================  =======================================================================
"""
