"""
Read the log records that `kafka-export.yaml` wrote to Kafka into a store: each one that is in Kafka exactly once.

    python examples/kafka_spark.py quiver-data/buffer 127.0.0.1:9092 from-kafka/ checkpoint/

The first argument is a store of log records: its view has the columns. The third one is the store to write. A fifth one
names the connector, which must have the version of the installed PySpark. A second run continues after the messages of
the first.
"""

import sys

from pyspark.sql.functions import from_json

import quiver.spark

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"


def main(sample: str, brokers: str, target: str, checkpoint: str, connector: str = CONNECTOR) -> None:
    spark = quiver.spark.session("kafka", config={"spark.jars.packages": connector} if connector else {})
    columns = spark.read.format("quiver").option("view", "logs").load(sample).schema
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", "telemetry-logs")
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = from_json(
        messages.value.cast("string"),
        columns,
        {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "mode": "FAILFAST"},
    )
    query = (
        messages.select(rows.alias("row"))
        .select("row.*")
        .writeStream.format("quiver")
        .option("path", target)
        .option("view", "logs")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(spark.read.format("quiver").option("view", "logs").load(target).count(), "log records in", target)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
