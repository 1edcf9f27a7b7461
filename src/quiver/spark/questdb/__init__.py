"""
The format `questdb`, and the exporter to QuestDB.

====================  ==========================================================
module                purpose
====================  ==========================================================
`options.py`          the options of the sink `questdb`, with their table (pure)
`sink.py`             the data sink `questdb`
`task.py`             in a task: rows → messages → a slot, once
`export_settings.py`  the settings of the exporter to QuestDB; no Spark
`export.py`           views → flat tables → that sink
====================  ==========================================================
"""
