"""
The format `questdb`, and the exporter to QuestDB.

====================  ==========================================================
module                purpose
====================  ==========================================================
`options.py`          the options of the sink `questdb`, with their table (pure)
`sink.py`             the format `questdb`, in Spark's terms
`task.py`             in a task: rows → messages → a slot, once
`export_settings.py`  what the exporter to QuestDB is told; no Spark
`export.py`           views → flat tables → that sink
====================  ==========================================================
"""
