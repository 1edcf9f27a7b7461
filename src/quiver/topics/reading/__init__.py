"""
Reading a topic from its files, in any process: nothing here imports the engine.

=================  =======================================================================
module             purpose
=================  =======================================================================
`ranges.py`        limits of a batch; dividing messages into tasks (pure)
`file_reader.py`   one topic read while its writer runs: files, and objects for the rest
`message_rows.py`  messages as Arrow rows (pure)
`progress.py`      a streaming query as a subscription
`read.py`          local files read while their writer runs, from another process
`listing.py`       the topics below a directory
`check.py`         checking a topic's directory
`place.py`         the location of topics: a directory, an object store, or both
=================  =======================================================================
"""
