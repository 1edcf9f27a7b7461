"""
Parquet files in directories and buckets, in partitions.

::

    tasks: rows ─▶ partition_rows.py ─▶ part_files.py ─▶ staging.py ─┐
                                                                     ├─▶ visible files
    driver: output.py ─▶ object_commit.py, or                        │
                         exporters/parquet_commit.py ────────────────┘

====================  ===================================================================================
module                purpose
====================  ===================================================================================
`settings.py`         the settings of the exporter; no Spark
`layout.py`           `partition_by`: the names of directories, as Hive writes them (pure, without Arrow)
`partition_rows.py`   rows → directories (pure)
`part_files.py`       the files of a task, each closed at the target size
`staging.py`          where they are written before their batch is committed
`output.py`           a directory or a bucket, each with its committer
`object_commit.py`    objects that become visible exactly once, and complete
`table_export.py`     the exporter of tables after processors
`compaction.py`       combines small visible files
`compaction_log.py`   which file replaced which others, and the files that count
====================  ===================================================================================
"""
