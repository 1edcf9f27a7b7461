"""
A job for a Spark cluster: export a buffer to Parquet, and count its log records by service.

    spark-submit --master spark://master:7077 examples/cluster_spark.py BUFFER OUTPUT

All machines must have both directories under the same path (NFS, CephFS, EFS, …): tasks open segments by path, and may
run on any machine. The Python of every executor must be able to import the package; see docs/howto/spark-cluster.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import quiver.spark


def main() -> None:
    buffer, output = sys.argv[1:3]
    # spark-submit sets master, memory and all other options.
    spark = SparkSession.builder.appName("quiver-cluster").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    quiver.spark.register(spark)
    # The checkpoint is on shared storage, too: the driver of the next run may be on another machine.
    query = quiver.spark.run_exporter(
        spark, buffer, "cluster-job", output, f"{output}/_checkpoint", trigger={"availableNow": True}
    )
    query.awaitTermination()
    logs = spark.read.format("quiver").option("path", buffer).option("view", "logs").option("minPartitions", "4").load()
    services = logs.selectExpr("resource_attributes['service.name'].string_value AS service").groupBy("service").count()
    for service, count in sorted(map(tuple, services.collect())):
        print(f"service {service}: {count} records")
    table = Path(output, "logs")  # there is none before the first log records
    print(f"exported {spark.read.parquet(str(table)).count() if table.exists() else 0} log records")
    spark.stop()


if __name__ == "__main__":
    main()
