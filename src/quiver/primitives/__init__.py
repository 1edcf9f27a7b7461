"""
The one place that touches the disk, and the small pure parts every log is built from.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`disk/`              Files: the port that every log writes through, the real disk behind it, and what one durable step
                     is
`checksum.py`        checksums by exact name: crc32, crc32c, crc64_nvme, fold64to32 (pure)
`packing.py`         bounds-checked cursor over a memoryview; padding (pure)
`scan.py`            Frame | NeedMore | Damage: the three answers of every decoder (pure)
`small_file.py`      small files that are read and decoded as a whole, with one wording for their damage
`findings.py`        what is told to people about files and what is wrong with them (pure)
`batch_notes.py`     batches that many processes stage and one imports: names, checked notes, commits (pure)
`boot.py`            which boot of the machine this is
`forked.py`          what a forked child inherits and must not use: it refuses, in words
`masking.py`         secrets in settings: looked up in an environment, kept out of messages
`certificates.py`    certificate files of a client, checked when they are read
`arena.py`           memory for bytes that live and die together
`budget.py`          bytes that many holders share: one cap, who waits
`backoff.py`         delays between retries, capped, jittered, without sleeping
`worker.py`          one background thread: woken, on an interval, stopped, and a required reaction to its death
`numeric_fields.py`  Settings whose numbers are numbers: a size that came as ``"1GB"`` is refused in words, not by a
                     comparison
===================  =================================================================================================

One meaning of durable: create → write → fsync file → rename → fsync directory; delete → fsync directory.
"""
