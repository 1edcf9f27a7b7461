"""
The only package that accesses the disk, and the small pure parts that every log is built from.

===================  ========================================================================================
module               purpose
===================  ========================================================================================
`disk/`              the file-system port that every log writes through, the real disk, and durable steps
`checksum.py`        checksums by exact name: crc32, crc32c, crc64_nvme, fold64to32 (pure)
`packing.py`         bounds-checked cursor over a memoryview; padding (pure)
`scan.py`            Frame | NeedMore | Damage: the three answers of every decoder (pure)
`small_file.py`      small files that are read and decoded completely, with one wording for their damage
`kernel.py`          the compiled kernel, if there is one, and which functions run
`file_kinds.py`      the kinds of files of one log: how each is recognized, described and bounded (pure)
`findings.py`        human-readable descriptions of files and of their damage (pure)
`batch_notes.py`     batches that many processes stage and one imports: names, checked notes, commits (pure)
`boot.py`            which boot of the machine this is
`forked.py`          objects that a forked child inherits and must not use: they refuse with a clear error
`masking.py`         secrets in settings: looked up in an environment, kept out of messages
`certificates.py`    certificate files of a client, checked when they are read
`arena.py`           memory for bytes with the same lifetime
`budget.py`          bytes that many holders share under one cap, with a fair queue
`backoff.py`         delays between retries, capped, jittered, without sleeping (pure)
`worker.py`          one background thread: woken, on an interval, stopped, with a required reaction to its death
`yielding.py`        loops of background threads that let other threads run in between
`numeric_fields.py`  type checks for the numbers in settings (pure)
===================  ========================================================================================

One meaning of durable: create → write → fsync file → rename → fsync directory; delete → fsync directory.
"""
