"""
Exporters to table formats: Parquet files, and a log of commits that says which of them count.

==================  ==================================================================================
module              purpose
==================  ==================================================================================
`settings.py`       the settings of the exporters; no Spark
`partition_spec.py` the fields of a partition specification: columns, or days or hours of times (pure)
`partition_values.py` the values of the fields in rows (pure)
`columns.py`        the columns of a table and those of a batch → the columns to write (pure)
`batch_record.py`   the record of a batch: its files and positions (pure)
`place.py`          a directory or a folder of a bucket: data files and records
`data_files.py`     in a task: rows → data files
`footer.py`         the footer of a Parquet file → statistics of its columns (pure)
`export.py`         a batch: write, record, commit to each table; the same for all formats
`delta.py`          the log of a Delta table
`iceberg.py`        the snapshots of an Iceberg table, in its catalog
`iceberg_maintenance.py`  small files, and files without a name
`iceberg_io.py`     its metadata on a disk, synced
==================  ==================================================================================
"""
