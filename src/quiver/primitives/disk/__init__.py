"""
Files: the port that every log writes through, the real disk behind it, and what one durable step is.

One meaning of durable: create → write → fsync file → rename → fsync directory; delete → fsync directory.

===================  ================================================================================
module               purpose
===================  ================================================================================
`file_system.py`     the port: FileSystem and File, and what each call promises
`real_files.py`      the port on the real disk
`platform_files.py`  what Windows and macOS do differently, chosen at import
`atomic.py`          replace a small file: temp, fsync, rename, fsync directory
`staging.py`         what staged batches leave in a writer's directory, and its removal after their import
`staged_commits.py`  commit, discard and import of staged batches, the same for every log
`copying.py`         whole files from here to there, with their checksum; linked where that is enough
`lock.py`            a lock the kernel releases, with the holder's pid for people
`prealloc.py`        reserve blocks, or refuse
`mapping.py`         mapped files with an owned lifetime
`disk_full.py`       a full disk or no descriptor, which pass, or a broken disk (pure)
`descriptors.py`     how many files this process may open, and a few kept for logs
===================  ================================================================================
"""
