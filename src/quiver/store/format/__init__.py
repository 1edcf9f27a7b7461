"""
The bytes of every file that a store keeps. Pure: bytes in, values out; nothing here opens a file.

A decoder has three answers, those of `quiver.primitives.scan`: the value and its end, *need more*, or
*damaged here because …*. No input makes a decoder raise. In the order in which a bundle reaches them:

====================  ===========================================================================================
module                purpose
====================  ===========================================================================================
`segment/`            the bytes of a segment file (pure)
`names.py`            the file names of a store (pure)
`wal_file.py`         the header of a write-ahead log file (pure)
`wal_entry.py`        one ingested bundle, framed and checksummed (pure)
`cursor.py`           the earliest WAL byte that recovery still needs (pure)
`floor.py`            the lowest free segment number (pure)
`progress.py`         the progress of one subscriber (pure)
`retry_set.py`        the bundles that an exporter will try again (pure)
`exporter_report.py`  the last success and the last failure of an exporter (pure)
`drop_ledger.py`      segments that a policy dropped, until every subscriber has recorded it (pure)
`early_progress.py`   what subscribers resolved of bundles that are not in a segment yet (pure)
`cold_list.py`        the segments that have a copy in the object tier (pure)
`fleet/`              the objects that stores share with their readers in one bucket (pure)
`cores.py`            how stores share one size cap: directory names and claims (pure)
`sink_commit.py`      the commit of a Spark sink (pure)
`audit.py`            the outcome of each bundle (pure)
`identity.py`         the identity of a store (pure)
`snapshot_list.py`    the files of a snapshot (pure)
`room.py`             how sinks and the owner of a store agree on disk space (pure)
`describe/`           any of these files as a human-readable description (pure)
`sidecar.py`          the layout that cursor, floor and claims share (pure)
====================  ===========================================================================================

``docs/formats`` has one page per file kind, with offsets and example bytes.
"""
