"""
A query reads orders from a topic and writes a line for each of them to another topic, each batch once.

    python examples/topics_spark.py [DIRECTORY]

Run it again with the same directory: it continues where it stopped.
"""

from __future__ import annotations

import sys
import tempfile

import quiver.spark
from quiver.topics import TopicStore


def main(directory: str) -> None:
    """Append some orders, write a line for each new one, and count the lines by customer."""
    with TopicStore.open(f"{directory}/topics") as topics:
        orders = topics.topic("default/orders")
        for number in range(12):
            orders.append(b'{"amount": %d}' % (number * 10), key=f"customer-{number % 3}")
        orders.flush()

    spark = quiver.spark.session()
    stream = (
        spark.readStream.format("quiver-topic")
        .option("path", f"{directory}/topics")
        .option("topic", "default/orders")
        .option("subscription", "lines")
        .load()
    )
    amounts = stream.selectExpr("key", "get_json_object(cast(payload AS string), '$.amount') AS amount", "offset")
    lines = amounts.selectExpr("key", "concat(key, ' ordered for ', amount, ' at ', offset) AS payload")
    query = (
        lines.writeStream.format("quiver-topic")
        .option("path", f"{directory}/topics")
        .option("topic", "default/lines")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    written = spark.read.format("quiver-topic").option("topic", "default/lines").load(f"{directory}/topics")
    written.groupBy("key").count().orderBy("key").show()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quiver-topics-"))
