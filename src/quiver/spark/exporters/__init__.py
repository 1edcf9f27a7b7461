"""
Exporters that run as Spark queries.

===================  ===================================================================================
module               purpose
===================  ===================================================================================
`query.py`           a query from a store through processors to an exporter
`settings.py`        the settings of exporters; no Spark
`tables.py`          exporters to the console, files, Spark formats, another store
`parquet.py`         the Parquet exporter: a query over `bundles`; its files are those of `spark/lake/`
`output_files.py`    permissions and durability of exported files
`parquet_commit.py`  files that become visible exactly once, and complete
`commit_records.py`  the encoding of records that commit files (pure)
`row_groups.py`      a Parquet file with large row groups
`delivery.py`        a query that delivers single bundles, with retries
`retry_queue.py`     bundles that processors failed on, retried individually
`spark_errors.py`    one readable line for an error of a Spark job (pure)
`exported.py`        how much an exporter delivered, and the kind of a failure
`table_exporter.py`  the interface of an exporter of tables
===================  ===================================================================================
"""
