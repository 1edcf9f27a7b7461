"""
The buffer: a durable store of Arrow bundles. The modules are listed in the order in which data flows.

=======================  =============================================================================================
module                   purpose
=======================  =============================================================================================
`opening.py`             `open_store`: create or recover the store in a directory
`recovery.py`            the steps of recovery, in order
`store.py`               `Store`: ingest, sync, seal, close
`encode.py`              a bundle's slots as bytes, serialised once for the log and the segment
`entries.py`             a bundle as an entry of the log
`wal/`                   the write-ahead log: append, sync, rotate, scan, read back
`segment/`               the open segment in memory, the segment file, and how it is read
`sealing/`               how the open segment becomes a file
`catalog.py`             the sealed segments
`subscribers/`           who reads the store, and what each has resolved
`removal/`               which segments are deleted, when, and what is recorded before they are
`maintenance.py`         one maintenance pass, step by step
`background.py`          the two background threads
`limits/`                when a bundle is admitted: caps, the space on the disk, and who waits
`cold/`                  the object tier: sealed segments are copied to an object store and read from there
`staged_import.py`       segments that sinks in other processes staged become segments of the store
`number_floor.py`        the segment numbers that were used
`directory_identity.py`  detects a directory that was moved or replaced while the store is open
`context.py`             what the parts of one open store share
`internals.py`           what other parts of Quiver call on an open store, and users do not
`properties.py`          the properties of an open store: sizes, figures, problems, rows
`figures.py`             `Store.stats`
`receipts.py`            what the store's methods return
`format/`                the bytes of every file kind (pure)
`reading/`               reading a store from its files, in any process, without the engine
`snapshots/`             consistent copies of stores, and stores restored from them
`offline/`               tools for a store that no process has open: repair, salvage, migration
`cores/`                 a store on several cores: one store per core below one path, with a common cap
=======================  =============================================================================================
"""
