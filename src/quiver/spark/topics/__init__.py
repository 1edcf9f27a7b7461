"""
The format `quiver-topic`: topics as a Spark source and sink, and the exporter to a topic.

====================  ================================================================
module                purpose
====================  ================================================================
`options.py`          the options of a load of `quiver-topic`, with their table (pure)
`offsets.py`          offsets of topics, and how checkpoints hold them (pure)
`rows.py`             in a task: messages → batches of the declared schema
`source.py`           the format `quiver-topic`, in Spark's terms
`sink_options.py`     the options of a write, with their table (pure)
`sink.py`             rows → staged messages in tasks → one committed batch
`export_settings.py`  what the exporter to a topic is told; no Spark
`export.py`           tables → messages of a topic
====================  ================================================================
"""
