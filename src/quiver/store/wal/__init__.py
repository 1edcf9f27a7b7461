"""
The write-ahead log: every bundle is here before it is anywhere else.

A bundle's entry is appended to ``wal/quiver.wal``, synced as the settings or the caller ask, and stays until a
sealed segment holds the bundle. Files that grew past the rotation target become ``quiver.wal.N`` and go when
the cursor has passed them.

============  ==================================================================================
file          purpose
============  ==================================================================================
`scan.py`     bytes of one WAL file → entries, damage, tail; goes on behind damage       (pure)
`writer.py`   append with one gathered write, group commit, zeros ahead, rotation, caps, purge
`replay.py`   what a directory's files hold: found, ordered by position, scanned one at a time
`reread.py`   large entries, read once more when their segment is written
`timing.py`   how long a sync takes, told to whoever listens
============  ==================================================================================
"""
