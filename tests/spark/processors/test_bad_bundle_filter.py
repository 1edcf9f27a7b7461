"""
One bundle that fails in a processor does not block others: it is found, retried, and exported once or stored as a dead
letter.
"""

import json
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import functions as f
from stores import logs_request, seal_requests, spans_request

from quiver.bundle import BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import RetryPolicy
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.query import TableBatches
from quiver.spark.exporters.settings import FileSettings
from quiver.spark.exporters.tables import exporter_of
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.spark.processors.settings import SqlSettings
from quiver.store.subscribers.retry_set import load_retry_set
from quiver.testing.clock import ManualClock

pytestmark = pytest.mark.spark

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
POLICY = RetryPolicy(initial_interval_s=2.0, jitter=0.0, max_attempts=2)
DIVIDE = SqlSettings("SELECT time_unix_nano AS n, 6 / time_unix_nano AS share FROM logs")


class Life:
    """One run of a query that exports to files."""

    def __init__(self, spark, store, out, chain, clock, policy=POLICY):
        self.clock = clock
        self.frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
        exporter = exporter_of(FileSettings(str(out)), subscriber="files")
        self.batches = TableBatches(store.root, exporter, chain=chain, skip_undecodable=False)
        self.probe, self.export_one = self.batches.probe, self.batches.export_one
        self.exported_individually = self.batches.exported_individually
        self.bad_bundles = BadBundleFilter(
            self,
            "files",
            policy,
            letters=DeadLetters,
            store_path=store.root,
            spark=spark,
            clock=clock,
            background=False,
        )

    def __call__(self, batch, batch_id):
        self.batches.export(batch, batch_id, query=QUERY)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bad_bundles.close()

    def batch(self, number, *segments):
        self.bad_bundles(self.frame.where(f.col("segment").isin(*segments)), number)

    def drain(self, seconds):
        self.clock.advance(seconds)
        return self.bad_bundles.drain()


def exported(out):
    lines = [json.loads(line) for file in Path(out).glob("[!_]*/[!._]*") for line in file.read_text().splitlines()]
    return sorted(line["n"] for line in lines)


def retries(store):
    return [(entry.ref, entry.attempts) for entry in load_retry_set(REAL_FILES, store.root, "files")]


def test_a_query_that_fails_on_one_bundle_exports_the_others(spark, store, tmp_path):
    """The bundle becomes a dead letter when its attempts are exhausted, with the error of the query as the reason."""
    seal_requests(store, logs_request([1, 2]), logs_request([3, 0]), b"\xff\xff")
    once = RetryPolicy(max_attempts=1)
    with Life(spark, store, tmp_path / "out", [DIVIDE], ManualClock(waits="hold"), once) as life:
        life.batch(0, 0)
    assert exported(tmp_path / "out") == [1, 2]
    assert retries(store) == []
    dead_letters = {letter.ref: letter.reason for letter in read_dead_letters(REAL_FILES, store.root, "files")}
    assert list(dead_letters) == [BundleRef(0, 2), BundleRef(0, 1)]
    assert dead_letters[0, 1].startswith("1 attempts failed; the last with PROCESSOR: ")
    assert "[DIVIDE_BY_ZERO]" in dead_letters[0, 1]


def fussy(fixed):
    """Return a user's processor that fails on zeros unless it is *fixed*."""

    def rows(batches):
        for batch in batches:
            if not fixed and 0 in batch.column("time_unix_nano").cast("int64").to_pylist():
                raise ValueError("a zero")
            yield batch.select(["time_unix_nano"]).cast(batch.select(["time_unix_nano"]).schema)

    return lambda frame: frame.mapInArrow(rows, frame.select("time_unix_nano").schema).select(
        f.col("time_unix_nano").cast("bigint").alias("n")
    )


@pytest.mark.slow
def test_a_retried_bundle_is_exported_once_across_restarts(spark, store, tmp_path):
    """
    The first run adds the bundle to the retry queue and is killed during its batch.

    In the next run the processor is fixed. The bundle is exported individually before its batch is repeated, and
    the repeated batch leaves it out.
    """
    seal_requests(store, logs_request([1]), logs_request([0, 7]), logs_request([3]))
    clock = ManualClock(waits="hold")
    out = tmp_path / "out"
    with Life(spark, store, out, [fussy(fixed=False)], clock) as life:
        life.batches.export = lambda *_, **__: (_ for _ in ()).throw(OSError(5, "killed"))
        with pytest.raises(OSError, match="killed"):
            life.batch(0, 0)
    assert (retries(store), exported(out)) == ([(BundleRef(0, 1), 1)], [])
    with Life(spark, store, out, [fussy(fixed=True)], clock) as life:
        assert life.drain(2.0) == 1
        assert exported(out) == [0, 7]
    for _ in range(2):
        with Life(spark, store, out, [fussy(fixed=True)], clock) as life:
            life.batch(0, 0)
            assert exported(out) == [0, 1, 3, 7]
    assert (retries(store), read_dead_letters(REAL_FILES, store.root, "files")) == ([], [])


@pytest.mark.slow
def test_an_invalid_chain_is_not_a_bad_bundle(spark, store, tmp_path):
    """It fails without any bundle, so the batch fails until the chain is fixed."""
    seal_requests(store, logs_request([1]), logs_request([2]))
    broken = SqlSettings("SELECT no_such_column FROM logs")
    with (
        Life(spark, store, tmp_path / "out", [broken], ManualClock(waits="hold")) as life,
        pytest.raises(Exception, match="no_such_column"),
    ):
        life.batch(0, 0)
    assert (retries(store), read_dead_letters(REAL_FILES, store.root, "files")) == ([], [])


@pytest.mark.slow
def test_files_of_a_failed_attempt_are_removed(spark, store, tmp_path):
    """The logs are written before a span fails; a second attempt without its bundle writes them again."""
    chain = [
        SqlSettings("SELECT time_unix_nano AS n FROM logs"),
        SqlSettings("SELECT 6 / start_time_unix_nano AS share, start_time_unix_nano AS n FROM spans"),
    ]
    store.seal([{60: _otlp(logs_request([1])), 61: _otlp(spans_request([number]))} for number in (2, 0)])
    with Life(spark, store, tmp_path / "out", chain, ManualClock(waits="hold")) as life:
        life.batch(0, 0)
        assert (retries(store), exported(tmp_path / "out")) == ([(BundleRef(0, 1), 1)], [1, 2])
        assert life.drain(2.0) == 1
    assert len(read_dead_letters(REAL_FILES, store.root, "files")) == 1
    assert list((tmp_path / "out").rglob(".*.part")) == []


@pytest.mark.slow
def test_every_probe_has_the_tables_of_a_join(spark, store, tmp_path):
    """If a query reads two views, a batch without spans has an empty table of spans; a single bundle has one, too."""
    join = SqlSettings(
        "SELECT 6 / l.time_unix_nano AS share, l.time_unix_nano AS n FROM logs l LEFT JOIN spans s "
        "ON l.time_unix_nano = s.start_time_unix_nano",
        output="joined",
    )
    keep = partial(lambda frame: frame.where("n IS NOT NULL") if "n" in frame.columns else frame.where("false"))
    seal_requests(store, logs_request([1]), logs_request([0]))
    store.seal([{61: _otlp(spans_request([1]))}, {60: _otlp(logs_request([2]))}])
    with Life(spark, store, tmp_path / "out", [join, keep], ManualClock(waits="hold")) as life:
        life.batch(0, 0)
        assert retries(store) == [(BundleRef(0, 1), 1)]
        life.batch(1, 1)
    assert exported(tmp_path / "out") == [1, 2]


def _otlp(data):
    import pyarrow as pa

    from quiver.bundle import OTLP_SCHEMA

    return pa.record_batch([pa.array([data])], schema=OTLP_SCHEMA)
