"""
Spark reads what a store holds, as one of its subscribers, and exports it.

::

    store directory ─▶ segments.py ─▶ subscription.py ─▶ partitions.py ─▶ read_partition.py ─▶ Spark
    (sealed files)     what is there   where the query    who reads what   Arrow, cast, in
                                       stands, acks                        the tasks

===========================  ======================================================================
file                         purpose
===========================  ======================================================================
`session.py`, `java.py`      a session that works on a fresh machine
`options.py`                 the options of a load, with their table                        (pure)
`offsets.py`                 positions, and how checkpoints hold them                       (pure)
`partitions.py`              limits of a batch; bundles → tasks                             (pure)
`cast.py`                    any Arrow type → one Spark takes                               (pure)
`segments.py`                the sealed segments, seen from beside the store
`subscription.py`            a streaming query as a subscriber: start, ack, plan
`read_partition.py`          in a task: files → batches of the declared schema
`source.py`                  the format `quiver`, in Spark's terms
`bundles.py`                 `map_bundles`: whole bundles in tasks
`parquet_commit.py`          Parquet files that become visible once and whole
`exporter_parquet.py`        the Parquet exporter: a query over `bundles`
===========================  ======================================================================

Importing this package starts no JVM::

    spark = quiver.spark.session()
    logs = spark.readStream.format("quiver").option("path", "buffer/").option("subscriber", "mine") …
"""

from quiver.spark.bundles import map_bundles
from quiver.spark.exporter_parquet import ParquetExporter, run_exporter, stop_query
from quiver.spark.session import session
from quiver.spark.source import QuiverDataSource, register

__all__ = [
    "ParquetExporter",
    "QuiverDataSource",
    "map_bundles",
    "register",
    "run_exporter",
    "session",
    "stop_query",
]
