"""
Quiver itself: a durable buffer of Arrow bundles, in the order data flows.

=========================  ========================================================================
file or room               purpose
=========================  ========================================================================
`format/`                  the bytes of every file kind; no I/O
`opening.py`               the one store of a directory: lock, directories, store
`recovery.py`              what happens at open, in order
`store.py`                 `Store`: the flow in one place
`parts.py`                 what the rooms of one open store share
`entries.py`               a bundle as an entry of the log
`group_seal.py`            durable calls without a log: they share a sealed segment
`encode.py`                a bundle's slots as bytes, made once, for the log and for the segment
`admission.py`             may a bundle come in; if not, is room made, waited for, or refused
`wal/`                     append, sync, rotate, scan, read again
`segment/`                 the open segment in memory, the sealed file, reading it
`sealing.py`               from open to sealed: when, and again when the disk was full
`sealer.py`                a full segment becomes a file, in the order that a crash allows
`held_place.py`            is the directory still the one that was opened?
`catalog.py`               the sealed segments there are
`subscribers/`             who has resolved what, in memory and in progress files
`retention.py`             which segments may go                                             (pure)
`cleanup.py`               what leaves the disk and why
`drops.py`                 the drop ledger: what policy gave up, durable before it goes
`capacity.py`              what a size cap is held against
`floor_file.py`            which segment numbers were given out
`side_files.py`            what else lies in the directory; a reserve for a full disk
`adoption.py`              what Spark sinks committed becomes segments of the store
`background.py`            the two threads
`views.py`                 what an open store tells of itself: sizes, figures, rows
`figures.py`               `Store.stats`
`receipts.py`              what the store's calls return
=========================  ========================================================================

Several stores under one cap:

=========================  ========================================================================
`shard_opening.py`         `quiver.open`: one store, or one for each core
`shards.py`                several cores as one store
`shard_subscriber.py`      a subscriber of several cores
`shard_calls.py`           what a store of several cores tells of all its subscribers, and does for one by name
`shard_capacity.py`        one cap over stores in many processes: claims, read by the others
`shard_claims.py`          deleting segments that somebody else owns
`shard_removal.py`         the directory of a core that is no more
`instances.py`             which directories below a path are stores
=========================  ========================================================================

With an object tier:

=========================  ========================================================================
`cold_opening.py`          what is needed of it before the first segment is read
`cold_location.py`         where the objects are, without secrets; the tier, opened when needed
`cold_register.py`         the list of what it has: in memory, on disk
`cold_tier.py`             sealed segments are sent and verified, finished ones removed
`cold_rebuild.py`          its list, damaged, made anew from the objects
`cold_restore.py`          a store made again from its objects, on another disk
`cold_window.py`           what it has leaves the disk
`cold_files.py`            a file system that shows what only the tier has
=========================  ========================================================================

Beside an open store, from the files alone:

=========================  ========================================================================
`read.py`                  `quiver.read`: a directory read beside a live writer
`directory.py`             what such a reader sees
`log_tail.py`              what is in the log and in no segment yet
`recent.py`                what was ingested a short while ago
`query.py`                 one slot as a table, one schema, only what a range of times touches
`digests.py`               times and schemas of each segment, before one is read
`check.py`                 every file checked to its last byte, and against the others
`roster.py`                who subscribes, how each stands, and what an operator may change
`skips.py`                 what an operator skipped for a subscriber
`snapshot.py`              consistent copies of stores beside their writers, and back
`new_directory.py`         directories that are built under another name and renamed last
`snapshot_copy.py`         one store of such a copy, file by file
`export.py`                batches to Parquet, Arrow or JSON lines
`doctor.py`                the disk below, measured and put in words
=========================  ========================================================================

On a store that nobody has open:

=========================  ========================================================================
`closed.py`                makes sure of that
`repair.py` `salvage.py`   what can be mended is; a copy is kept; what is gone is said
`repair_report.py`         what a repair did
`migrate.py`               another format profile or slot table
`written_by.py`            which profile and slot table a directory was written with
=========================  ========================================================================
"""
