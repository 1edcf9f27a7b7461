"""
The format `quiver-topic`: topics as a Spark source and sink, and the exporter to a topic.

====================  ================================================================
module                purpose
====================  ================================================================
`options.py`          the options of a load of `quiver-topic`, with their table (pure)
`offsets.py`          offsets of topics, and their form in checkpoints (pure)
`rows.py`             in a task: messages → batches of the declared schema
`source.py`           the data source `quiver-topic`
`sink_options.py`     the options of a write, with their table (pure)
`sink.py`             rows → staged messages in tasks → one committed batch
`export_settings.py`  the settings of the exporter to a topic; no Spark
`export.py`           tables → messages of a topic
====================  ================================================================
"""
