"""
Spark reads what a store holds, as one of its subscribers, processes it, exports it, and writes into stores.

::

    store directory ─▶ segments.py ─▶ subscription.py ─▶ partitions.py ─▶ read_partition.py ─▶ Spark
    (sealed files)     what is there   where the query    who reads what   Arrow, cast, in
                                       stands, acks                        the tasks

===========================  ======================================================================
file                         purpose
===========================  ======================================================================
`spark_session.py`           a session that works on a fresh machine
`bundle_query.py`            how every exporter's query is started and stopped
`option_values.py`           values of options, read in one place                           (pure)
`options.py`                 the options of a load, with their table                        (pure)
`offsets.py`                 positions, and how checkpoints hold them                       (pure)
`checkpoints.py`             a query's checkpoint: copied beside it, restored, checked
`partitions.py`              limits of a batch; bundles → tasks                             (pure)
`cast.py`                    any Arrow type → one Spark takes                               (pure)
`checkpoint.py`              a checkpoint on a local disk, made durable
`segments.py`                the sealed segments, seen from beside the store
`subscription.py`            a streaming query as a subscriber: start, ack, plan
`cores.py`                   the same over a store on several cores, as one stream
`read_partition.py`          in a task: files → batches of the declared schema
`formats.py`                 all formats, and `register`
`table_options.py`           the options of a catalog table, kept in its schema
`source.py`                  the format `quiver`, in Spark's terms
`bundles.py`                 `map_bundles`: whole bundles in tasks
`sink_options.py`            the options of a write, with their table                       (pure)
`sink.py`                    the sinks of logs in Spark's terms: a writer for each batch, or for a stream
`sink_stage.py`              rows → staged segments in tasks → one committed batch
`questdb_options.py`         the options of the sink `questdb`, with their table             (pure)
`questdb_sink.py`            the format `questdb`, in Spark's terms
`questdb_task.py`            in a task: rows → messages → a slot, once
`questdb_export_settings.py` what the exporter to QuestDB is told; no Spark
`questdb_export.py`          views → flat tables → that sink
`processor_settings.py`      what processors are told; no Spark
`processors.py`              processors: functions from a frame to a frame
`redaction.py`               values made unreadable in Arrow batches                        (pure)
`export_query.py`            a query from a store through processors to an exporter
`tables.py`                  a batch of descriptors → a frame for each signal
`exporter_settings.py`       what exporters are told; no Spark
`exporters.py`               console, files, formats of Spark, another store
`otlp_rows.py`               rows of a view → OTLP requests again                           (pure)
`exporter_parquet.py`        the Parquet exporter: a query over `bundles`
`output_files.py`            who may read an exported file; when it is on the disk
`parquet_commit.py`          files that become visible once and whole
`delivery.py`                a query that delivers bundle by bundle, with retries
`poison.py`                  bundles that fail a batch: found, and set aside
`isolate.py`                 which of several things makes all of them fail                 (pure)
`held.py`                    what processors failed on: tried again by itself
`aof_options.py`             the options of `quiver-aof`, and positions in a log            (pure)
`aof_reading.py`             an append-only log beside its writer: what a batch takes
`aof_source.py`              the format `quiver-aof`, in Spark's terms
`aof_sink_options.py`        the options of a write, with their table                       (pure)
`aof_sink.py`                rows → staged records in tasks → one committed batch
`topic_options.py`           the options of a load of `quiver-topic`, with their table     (pure)
`topic_offsets.py`           offsets of topics, and how checkpoints hold them               (pure)
`topic_ranges.py`            limits of a batch; messages → tasks                            (pure)
`topic_reading.py`           one topic beside its writer: files, and behind them objects
`topic_rows.py`              in a task: messages → batches of the declared schema
`topic_progress.py`          a streaming query as a subscription
`topic_source.py`            the format `quiver-topic`, in Spark's terms
`topic_sink_options.py`      the options of a write, with their table                       (pure)
`topic_sink.py`              rows → staged messages in tasks → one committed batch
`topic_export_settings.py`   what the exporter to a topic is told; no Spark
`topic_export.py`            tables → messages of a topic
===========================  ======================================================================

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
