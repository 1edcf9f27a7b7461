"""
The format `quiver`: a store as a Spark source and sink.

===================  =================================================================================================
module               purpose
===================  =================================================================================================
`read_partition.py`  in a task: files → batches of the declared schema
`source.py`          the format `quiver`, in Spark's terms
`sink_options.py`    the options of a write, with their table (pure)
`sink.py`            the sinks of logs in Spark's terms: a writer for each batch, or for a stream
`sink_stage.py`      rows → staged segments in tasks → one committed batch
`sink_room.py`       Room for what a sink stages: a task waits for it like any producer, and fails when there is none
                     in time
===================  =================================================================================================
"""
