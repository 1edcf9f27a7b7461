"""
Reading a store from its files alone, in any process. Nothing here imports the engine.

======================  ====================================================================================
module                  purpose
======================  ====================================================================================
`store_files.py`        the small files of a store and the names of its segments
`read.py`               `quiver.read`: every bundle in a directory, while a writer may have it open
`directory.py`          one store's directory, with the damage found in it
`log_tail.py`           bundles in the log that no segment contains yet
`followers.py`          bundles as they are ingested or sealed, for `quiver tail`
`recent.py`             bundles that were ingested recently
`fleet/`                a fleet as its bucket shows it: nodes, lag, checks
`query/`                queries: the rows of a slot or a view as a table; reads only segments in the range
`digests.py`            times and schemas of each segment, so that a query can skip it
`segments.py`           the sealed segments, listed for a streaming query
`stream_subscriber.py`  a streaming query as a subscriber: start, plan, acknowledge
`cores.py`              the same for a store on several cores, as one stream
`stream_options.py`     the options of a load, with their table (pure)
`offsets.py`            positions, and their format in checkpoints (pure)
`partitions.py`         the limits of a batch; bundles → tasks (pure)
`checkpoint.py`         a query's checkpoint on a local disk, made durable
`listing.py`            the subscribers, their lag, and changes that an operator makes
`check.py`              verification of every file, alone and against the others
`fleet/`                a fleet from its bucket: listings, records of nodes, positions, batches
`export.py`             batches to Parquet, Arrow or JSON Lines
`doctor.py`             measurements of the disk, with their consequences
`written_by.py`         the format profile and slot table that a directory was written with
======================  ====================================================================================
"""
