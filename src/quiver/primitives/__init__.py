"""
The one place that touches the disk, and the small pure parts every log is built from.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`checksum.py`           checksums by exact name: crc32, crc32c, crc64_nvme, fold64to32   (pure)
`packing.py`            bounds-checked cursor over a memoryview; padding                 (pure)
`scan.py`               Frame | NeedMore | Damage: the three answers of every decoder    (pure)
`findings.py`           what is told to people about files and what is wrong with them   (pure)
`files.py`              the port: FileSystem and File, and what each call promises
`real_files.py`         the port on the real disk
`platform_files.py`     what Windows and macOS do differently, chosen at import
`atomic.py`             replace a small file: temp, fsync, rename, fsync directory
`batch_notes.py`        batches that many stage and one takes over: names, checked notes (pure)
`staging.py`            the same on the disk: which batch was the last, what goes when it was taken over
`copying.py`            whole files from here to there, with their checksum; linked where that is enough
`lock.py`               a lock the kernel releases, with the holder's pid for people
`boot.py`               which boot of the machine this is
`forked.py`             what a forked child inherits and must not use: it refuses, in words
`prealloc.py`           reserve blocks, or refuse
`mapping.py`            mapped files with an owned lifetime
`disk_full.py`          a full disk or no descriptor, which pass, or a broken disk      (pure)
`descriptors.py`        how many files this process may open, and a few kept for logs
`masking.py`            secrets in settings: looked up in an environment, kept out of messages
`certificates.py`       certificate files of a client, checked when they are read
`arena.py`              memory for bytes that live and die together
`budget.py`             bytes that many holders share: one cap, who waits
`backoff.py`            delays between retries, capped, jittered, without sleeping
`worker.py`             one background thread: woken, on an interval, stopped, and a required reaction to its death
======================  ==========================================================================

One meaning of durable: create → write → fsync file → rename → fsync directory; delete → fsync directory.
"""
