"""
The file-system port that every log writes through, the real disk, and durable steps.

One meaning of durable: create → write → fsync file → rename → fsync directory; delete → fsync directory.

===================  ================================================================================
module               purpose
===================  ================================================================================
`file_system.py`     the port: FileSystem and File, and the promises of each call
`real_files.py`      the port on the real disk
`platform_files.py`  the differences between Linux, macOS and Windows, chosen at import
`atomic.py`          replace a small file: temp, fsync, rename, fsync directory
`staging.py`         the staging directory of a writer, and its cleanup after an import
`staged_commits.py`  commit, discard and import of staged batches, the same for every log
`copying.py`         copies of complete files with their checksum; hard links if possible
`lock.py`            a lock that the kernel releases, with the holder's pid for the operator
`prealloc.py`        reserve blocks, or refuse
`mapping.py`         mapped files with an owned lifetime
`disk_full.py`       temporary lack of space or descriptors, as opposed to a broken disk (pure)
`descriptors.py`     how many files this process may open, and a few reserved for logs
===================  ================================================================================
"""
