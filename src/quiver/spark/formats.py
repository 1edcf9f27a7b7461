"""The formats that `register` adds to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver.spark.aof.source import AofDataSource
from quiver.spark.fleet.source import FleetDataSource
from quiver.spark.questdb.sink import QuestdbDataSource
from quiver.spark.store.source import QuiverDataSource
from quiver.spark.topics.source import TopicDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMATS", "register"]

FORMATS = (QuiverDataSource, FleetDataSource, TopicDataSource, AofDataSource, QuestdbDataSource)


def register(spark: SparkSession) -> None:
    """
    Register the formats `quiver`, `quiver-fleet`, `quiver-topic`, `quiver-aof` and `questdb` with *spark*.

    It may be called again.
    """
    for source in FORMATS:
        spark.dataSource.register(source)
