"""
The bytes of a topic: pure functions and values, no disk, no clock.

==================  ============================================================
`frame.py`          the 16-byte frame around each message, in files and objects
`message.py`        what a frame holds: the message, in fixed-width bincode
`checkpoint.py`     `wal.ckpt` and `uploader.ckpt`
`names.py`          topics, files and objects: names built and parsed
==================  ============================================================
"""
