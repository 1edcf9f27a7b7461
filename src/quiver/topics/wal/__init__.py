"""
The log files of a topic.

==================  =====================================================
==================  =================================================================
module              purpose
==================  =================================================================
`writer.py`         the log: append, sync, rotate, release
`files.py`          one file read in pieces; damage is skipped and quarantined
`local_files.py`    the log files of a directory as they are found on disk
`file_list.py`      the sealed files, and which of them readers hold
`commit_lock.py`    the group-commit lock
`append_signal.py`  waiting for the next message
==================  =================================================================
"""
