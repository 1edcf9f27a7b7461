"""
Exporters that run as Spark queries.

===================  ===================================================================================
module               purpose
===================  ===================================================================================
`query.py`           a query from a store through processors to an exporter
`settings.py`        what exporters are told; no Spark
`tables.py`          console, files, formats of Spark, another store
`parquet.py`         the Parquet exporter: a query over `bundles`
`output_files.py`    who may read an exported file; when it is on the disk
`parquet_commit.py`  files that become visible once and whole
`delivery.py`        a query that delivers bundle by bundle, with retries
`retry_queue.py`     what processors failed on: tried again by itself
`exported.py`        What an exporter on Spark delivered, and which kind of failure an error of Spark is
`table_exporter.py`  What an exporter of tables is to the batch that it writes
===================  ===================================================================================
"""
