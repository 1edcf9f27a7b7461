"""
The bytes of a topic: pure functions and values, no disk, no clock.

==================  ============================================================
`frame.py`          the 16-byte frame around each message, in files and objects
`message.py`        what a frame holds: the message, in fixed-width bincode
`salvage.py`        going on behind damage
`checkpoint.py`     `wal.ckpt` and `uploader.ckpt`
`subscription.py`   what a subscription has confirmed, beside the log
`cursor.py`         the same in the metadata store
`descriptor.py`     what the metadata store says of objects, and of owners
`sink_batch.py`     what a Spark sink leaves for the owner
`names.py`          topics, files and objects: names built and parsed
==================  ============================================================
"""
