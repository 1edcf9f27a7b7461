"""
The adapter between Spark and the logs: data sources and sinks, processors, and exporters that run as queries.

::

    store directory ─▶ segments.py ─▶ subscription.py ─▶ partitions.py ─▶ read_partition.py ─▶ Spark
    (sealed files)     which files     position of       which task       Arrow, cast, in
                       exist           the query, acks   reads what       the tasks

=======================  ===========================================================================================
module                   purpose
=======================  ===========================================================================================
`aof/`                   the format `quiver-aof`: an AOF2 log as a Spark source and sink
`fleet/`                 the format `quiver-fleet`: all nodes of a fleet as one Spark source
`exporters/`             exporters that run as Spark queries
`processors/`            functions from a frame to a frame, and the treatment of bundles that they fail on
`questdb/`               the format `questdb`, and the exporter to QuestDB
`table_formats/`         exporters to Delta and Iceberg tables
`store/`                 the format `quiver`: a store as a Spark source and sink
`topics/`                the format `quiver-topic`: topics as a Spark source and sink, and the exporter to a topic
`log_source.py`          the shell of every format that reads: data source, batch reader, streaming reader
`log_sink.py`            the shell of every format that writes to a log: batch and streaming writer
`formats.py`             the formats that `register` adds to Spark
`table_options.py`       the options of a catalog table, stored in its schema
`spark_session.py`       a session that works on a fresh machine
`session_settings.py`    the settings of a session; property files (pure)
`session_properties.py`  the properties that a session starts with, and their origins
`python_archive.py`      the description of an archive of Python packages for executors
`python_packages.py`     packs that archive from installed packages
`bundle_query.py`        start and stop of an exporter's query
`checkpoints.py`         a query's checkpoint: copied while it runs, restored, checked
`cast.py`                any Arrow type → a type that Spark has (pure)
`bundles.py`             `map_bundles`: complete bundles in tasks
`tables.py`              a batch of descriptors → a frame for each signal
`otlp_rows.py`           rows of a view → OTLP requests again (pure)
`java.py`                finds a Java that Spark 4 runs on
`spark_features.py`      the features of the installed PySpark
`task_process.py`        garbage collection in the Python processes of tasks
=======================  ===========================================================================================

Importing this package starts no JVM::

    spark = quiver.spark.session()
    logs = spark.readStream.format("quiver").option("path", "buffer/").option("subscriber", "mine") …
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.spark.bundle_query import stop_query
    from quiver.spark.bundles import map_bundles
    from quiver.spark.exporters.parquet import ParquetExporter, run_exporter
    from quiver.spark.exporters.query import start_export
    from quiver.spark.formats import register
    from quiver.spark.spark_session import session
    from quiver.spark.store.source import QuiverDataSource
    from quiver.spark.table_options import create_table, save_as_table
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.spark.bundle_query": "stop_query",
            "quiver.spark.bundles": "map_bundles",
            "quiver.spark.exporters.query": "start_export",
            "quiver.spark.exporters.parquet": "ParquetExporter run_exporter",
            "quiver.spark.formats": "register",
            "quiver.spark.store.source": "QuiverDataSource",
            "quiver.spark.spark_session": "session",
            "quiver.spark.table_options": "create_table save_as_table",
        },
        extra="spark",
    )

__all__ = [
    "ParquetExporter",
    "QuiverDataSource",
    "create_table",
    "map_bundles",
    "register",
    "run_exporter",
    "save_as_table",
    "session",
    "start_export",
    "stop_query",
]
