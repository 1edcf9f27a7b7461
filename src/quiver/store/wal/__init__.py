"""
The write-ahead log: every bundle is stored here first.

A bundle's entry is appended to ``wal/quiver.wal``, synced as the settings or the caller ask, and stays until a
sealed segment has the bundle. Files that have grown past the rotation target become ``quiver.wal.N``; they are deleted
when the cursor has passed them.

=================  ==============================================================================
module             purpose
=================  ==============================================================================
`scan.py`          bytes of one WAL file → entries, damage, tail; continues after damage (pure)
`writer.py`        append with one gathered write, group commit, zeros ahead, rotation, caps, purge
`replay.py`        the WAL files of a directory: found, ordered by position, scanned one at a time
`entry_layout.py`  runs of entries with the same layout, replayed without parsing each of them
`reread.py`        large entries, read again when their segment is written
`timing.py`        how long a sync takes, as a metric
`moved.py`         the error of a store whose directory was moved
=================  ==============================================================================
"""
