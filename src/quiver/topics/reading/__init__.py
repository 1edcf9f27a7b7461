"""
Reading a topic from its files, in any process: nothing here imports the engine.

=============  ===========================================================
module         purpose
=============  ===========================================================
`ranges.py`    limits of a batch; messages → tasks (pure)
`view.py`      one topic beside its writer: files, and behind them objects
`progress.py`  a streaming query as a subscription
`read.py`      files read beside a live writer, by another process
`check.py`     what is in a topic's directory, and what is wrong with it
`place.py`     Where topics are: on a disk, in an object store, or both
=============  ===========================================================
"""
