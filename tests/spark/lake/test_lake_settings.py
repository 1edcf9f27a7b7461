"""The settings of the exporter become options of the source: when a batch begins, and how many tasks it has."""

from __future__ import annotations

from quiver.pipeline.config.exporter import ParquetExporterConfig
from quiver.spark.lake.settings import BUCKET_FILE_BYTES, ParquetTables

MIB = 1 << 20


def test_nothing_waits_on_a_disk():
    """As before there were buckets."""
    assert ParquetTables("out").source_options() == {}
    assert ParquetExporterConfig(path="out").sends == "a batch every 1 s"


def test_a_bucket_waits_for_files_of_a_useful_size():
    """By default; 0 does not wait."""
    assert ParquetTables("s3://bucket/lake").source_options() == {
        "minPartitionBytes": str(4 * BUCKET_FILE_BYTES),
        "maxTriggerDelay": "300s",
        "minBytesPerTrigger": str(4 * BUCKET_FILE_BYTES),
        "maxBytesPerTrigger": str(4 * BUCKET_FILE_BYTES),
    }
    assert "maxTriggerDelay" not in ParquetTables("s3://bucket/lake", max_file_age_s=0).source_options()
    assert ParquetExporterConfig(path="s3://bucket/lake").sends == (
        "a batch when there is enough for files of 128 MiB, or after 5 min"
    )


def test_small_files_do_not_make_batches_smaller():
    """A backlog is exported in batches of the usual size."""
    options = ParquetTables("out", target_file_size_bytes=MIB, max_file_age_s=60).source_options()
    assert options["minBytesPerTrigger"] == str(4 * MIB)
    assert options["maxBytesPerTrigger"] == str(256 * MIB)


def test_only_the_age_may_be_set():
    """Then a batch waits for it, or until it is full."""
    assert ParquetTables("out", max_file_age_s=60).source_options() == {"maxTriggerDelay": "60s"}
    assert ParquetExporterConfig(path="out", max_file_age="1m").sends == "a batch when it is full, or after 1 min"
