"""
The bytes of every file a store keeps. Pure: bytes in, values out; no file is opened here.

A decoder has three answers, those of `quiver.primitives.scan`: the value and where it ends, *need more*, or
*damaged here because …*. No bytes whatever make one raise. In the order in which a bundle passes:

=================  ======================================  ==================================================
module             file                                    purpose
=================  ======================================  ==================================================
`names`            all of them                             what each file is called, and which names are ours
`wal_file`         ``wal/quiver.wal``, ``quiver.wal.N``    the head of a write-ahead log file
`wal_entry`        the same                                one bundle as it was ingested, framed and checksummed
`cursor`           ``wal/quiver.wal.cursor``               the earliest WAL byte that recovery still needs
`segment_file`     ``segments/NNNNNNNNNNNNNNNN.qseg``      footer, trailer and stream directory of a segment
`manifest`         the same                                which chunks of which streams make up each bundle
`floor`            ``segments/quiver.segment.floor``       segment numbers below this were given out already
`progress`         ``quiver.sub.<id>``                     what one subscriber has finished with
`retry_set`        ``quiver.retry.<id>``                   what an exporter tries again
`exporter_report`  ``quiver.exporter.<id>``                when an exporter last delivered, and its last failure
`drop_ledger`      ``quiver.drops``, ``quiver.evicted``    what policy gave up and not everybody has noted
`cold_list`        ``segments/quiver.cold``                which segments the object tier has
`cores`            ``core_<n>/``, claims, evictions        what stores under one cap say to each other
`sink_commit`      ``incoming/``                           what a Spark sink committed
`audit`            ``quiver.audit.jsonl``                  what became of each bundle
`identity`         ``quiver.id``                           which store this is
`snapshot_list`    ``quiver.snapshot``                     what belongs to a snapshot
`describe`         any of log, segments, progress          the same bytes, told to a person
`describe_side`    any other                               the same
=================  ======================================  ==================================================

`sidecar` holds what the cursor and the floor have in common; `ipc_table` and `event_times` are parts of a segment. One
page a file kind, with offsets and example bytes, is in ``docs/formats``.
"""
