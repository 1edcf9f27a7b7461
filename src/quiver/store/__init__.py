"""
Quiver itself: a durable buffer of Arrow bundles, in the order data flows.

=======================  =============================================================================================
module                   purpose
=======================  =============================================================================================
`cold/`                  The object tier of a store: sealed segments are copied to an object store and read from there
`cores/`                 One store for each core below one path, with one cap and one subscriber for all of them
`limits/`                Whether a bundle may come in: caps on bytes, the room that is left on the disk, and who waits
`offline/`               Tools for a store that no process has open: repair, salvage, migration
`reading/`               Reading a store from its files, in any process: nothing here imports the engine
`removal/`               Which segments are deleted, when, and what is recorded before they are
`sealing/`               How the open segment becomes a file
`snapshots/`             Consistent copies of stores, made beside their writers, and stores restored from them
`format/`                the bytes of every file kind; no I/O
`opening.py`             the one store of a directory: lock, directories, store
`recovery.py`            what happens at open, in order
`store.py`               `Store`: the flow in one place
`context.py`             what the rooms of one open store share
`entries.py`             a bundle as an entry of the log
`encode.py`              a bundle's slots as bytes, made once, for the log and for the segment
`wal/`                   append, sync, rotate, scan, read again
`segment/`               the open segment in memory, the sealed file, reading it
`directory_identity.py`  is the directory still the one that was opened?
`catalog.py`             the sealed segments there are
`subscribers/`           who has resolved what, in memory and in progress files
`number_floor.py`        which segment numbers were given out
`staged_import.py`       what Spark sinks committed becomes segments of the store
`background.py`          the two threads
`views.py`               what an open store tells of itself: sizes, figures, rows
`figures.py`             `Store.stats`
`receipts.py`            what the store's calls return
=======================  =============================================================================================
"""
