"""
Reading an AOF2 log from its files, in any process: nothing here imports the engine.

=============  =====================================================================================================
module         purpose
=============  =====================================================================================================
`catalog.py`   the sealed segments, and maps of them
`reader.py`    records in order; what is lost on the way is reported
`search.py`    one record by its id, the first one of a time
`resume.py`    where reading goes on behind damage (pure)
`batch.py`     many records at once, as columns and one buffer
`source.py`    segments as a reader sees them
`manifest.py`  what happened to them, in a log of its own
`files.py`     a log read from beside it, by another process
`check.py`     a log's directory told to people
`view.py`      an append-only log beside its writer: what a batch takes
`index.py`     Sparse indexes of sealed segments: made when a segment is packed, or first searched; kept in `index/`
`position.py`  A place in a log, and how a Spark checkpoint keeps it. Pure
=============  =====================================================================================================
"""
