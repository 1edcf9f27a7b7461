"""
Descriptions of a store's files for people, corrupt or not.

=================  ===========================================================
module             purpose
=================  ===========================================================
`files.py`         which kind a file is; log, segments and progress (pure)
`side_files.py`    the small files next to log and segments (pure)
=================  ===========================================================
"""
