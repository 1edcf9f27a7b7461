"""
The format `quiver`: a store as a Spark source and sink.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`read_partition.py`  in a task: files → batches of the declared schema
`unsealed.py`        the bundles that are only in a store's log, for a batch read
`source.py`          the data source `quiver`
`sink_options.py`    the options of a write, with their table (pure)
`sink_stage.py`      rows → staged segments in tasks → one committed batch
===================  =================================================================================================
"""
