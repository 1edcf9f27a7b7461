"""
The bytes of a topic: pure functions and values, no disk, no clock.

==================  =================================================================
`frame.py`          the 16-byte frame around each message, in files and objects
`message.py`        the payload of a frame: a message, in fixed-width bincode
`salvage.py`        finding the next good frame after damage
`checkpoint.py`     `wal.ckpt` and `uploader.ckpt`
`subscription.py`   the confirmed offsets of a subscription, next to the log
`cursor.py`         the same in the metadata store
`descriptor.py`     the metadata store's records of objects and owners
`sink_batch.py`     the batches that a Spark sink stages for the owner
`request.py`        administration requests between processes, and their answers
`watch.py`          observations of other owners, stored across restarts
`names.py`          topics, files and objects: names built and parsed
==================  =================================================================
"""
