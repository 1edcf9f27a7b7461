"""
The formats that Spark knows after `register`, in one table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver.spark.aof_source import AofDataSource
from quiver.spark.questdb_sink import QuestdbDataSource
from quiver.spark.source import QuiverDataSource
from quiver.spark.topic_source import TopicDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMATS", "register"]

FORMATS = (QuiverDataSource, TopicDataSource, AofDataSource, QuestdbDataSource)


def register(spark: SparkSession) -> None:
    """
    Register the formats `quiver`, `quiver-topic`, `quiver-aof` and `questdb` with *spark*. May be called again.
    """
    for source in FORMATS:
        spark.dataSource.register(source)
