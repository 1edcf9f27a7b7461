"""
Reading a store from its files, in any process: nothing here imports the engine.

===================  ======================================================================
module               purpose
===================  ======================================================================
`stream_options.py`  the options of a load, with their table (pure)
`offsets.py`         positions, and how checkpoints hold them (pure)
`partitions.py`      limits of a batch; bundles → tasks (pure)
`checkpoint.py`      a checkpoint on a local disk, made durable
`store_files.py`     small files and names of segments: identity, floor, cursor, drops, progress
`segments.py`        the sealed segments, seen from beside the store
`subscription.py`    a streaming query as a subscriber: start, ack, plan
`cores.py`           the same over a store on several cores, as one stream
`read.py`            `quiver.read`: a directory read beside a live writer
`directory.py`       what such a reader sees
`log_tail.py`        what is in the log and in no segment yet
`recent.py`          what was ingested a short while ago
`query.py`           one slot as a table, one schema, only what a range of times touches
`digests.py`         times and schemas of each segment, before one is read
`check.py`           every file checked to its last byte, and against the others
`listing.py`         who subscribes, how each stands, and what an operator may change
`export.py`          batches to Parquet, Arrow or JSON lines
`doctor.py`          the disk below, measured and put in words
`written_by.py`      which profile and slot table a directory was written with
===================  ======================================================================
"""
