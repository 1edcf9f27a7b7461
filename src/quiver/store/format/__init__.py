"""
The bytes of every file a store keeps. Pure: bytes in, values out; no file is opened here.

A decoder has three answers, those of `quiver.primitives.scan`: the value and where it ends, *need more*, or
*damaged here because …*. No bytes whatever make one raise. In the order in which a bundle passes:

====================  ================================================================================================
module                purpose
====================  ================================================================================================
`segment/`            The bytes of a segment file. Pure
`names.py`            what each file is called, and which names are ours
`wal_file.py`         the head of a write-ahead log file
`wal_entry.py`        one bundle as it was ingested, framed and checksummed
`cursor.py`           the earliest WAL byte that recovery still needs
`floor.py`            segment numbers below this were given out already
`progress.py`         what one subscriber has finished with
`retry_set.py`        what an exporter tries again
`exporter_report.py`  when an exporter last delivered, and its last failure
`drop_ledger.py`      what policy gave up and not everybody has noted
`cold_list.py`        which segments the object tier has
`cores.py`            what stores under one cap say to each other
`sink_commit.py`      what a Spark sink committed
`audit.py`            what became of each bundle
`identity.py`         which store this is
`snapshot_list.py`    what belongs to a snapshot
`describe.py`         the same bytes, told to a person
`describe_side.py`    the same
`sidecar.py`          holds what the cursor and the floor have in common; `ipc_table` and `event_times` are parts of a
                      segment. One
`room.py`             What the owner of a store and those who stage segments for it say to each other about room
====================  ================================================================================================

`sidecar` holds what the cursor and the floor have in common; `ipc_table` and `event_times` are parts of a segment. One
page a file kind, with offsets and example bytes, is in ``docs/formats``.
"""
