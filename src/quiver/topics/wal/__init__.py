"""
The log files of a topic.

==================  =====================================================
module              purpose
==================  =====================================================
`writer.py`         its files: append, sync, rotate, release
`files.py`          one file read in pieces, damage stepped over and kept
`local_files.py`    the log files of a directory as they are found on disk
`file_list.py`      which files are sealed, and who holds them
`commit_lock.py`    who syncs or rotates now
`append_signal.py`  who waits for the next message
==================  =====================================================
"""
