"""
A job for a Spark cluster: export a buffer to Parquet, and count what it holds by service.

    spark-submit --master spark://master:7077 examples/cluster_spark.py BUFFER OUTPUT

All machines must see both directories under the same names (NFS, CephFS, EFS, …): tasks open segments by path, and may
run anywhere. The package must be importable by the Python of every executor; docs/howto/spark-cluster.md tells how.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import quiver.spark


def main() -> None:
    buffer, output = sys.argv[1:3]
    # Made by spark-submit: master, memory and all the rest are its business.
    spark = SparkSession.builder.appName("quiver-cluster").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    quiver.spark.register(spark)
    # On shared storage like the rest: the next run may have its driver elsewhere.
    query = quiver.spark.run_exporter(
        spark, buffer, "cluster-job", output, f"{output}/_checkpoint", trigger={"availableNow": True}
    )
    query.awaitTermination()
    logs = spark.read.format("quiver").option("path", buffer).option("view", "logs").option("minPartitions", "4").load()
    services = logs.selectExpr("resource_attributes['service.name'].string_value AS service").groupBy("service").count()
    for service, count in sorted(map(tuple, services.collect())):
        print(f"service {service}: {count} records")
    print(f"exported {spark.read.parquet(f'{output}/logs').count()} log records")
    spark.stop()


if __name__ == "__main__":
    main()
