"""A query that delivers to a custom destination, and exporters with bundles that cannot be decoded."""

import shutil
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from needed import needs
from stores import StoreMaker, logs_request

from quiver.bundle import OTLP_SCHEMA, BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import Delivered, Permanent, RetryPolicy, Transient
from quiver.errors import DeliveryHaltedError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.delivery import BundleDelivery, start_delivery
from quiver.spark.exporters.parquet import run_exporter
from quiver.spark.exporters.query import start_export
from quiver.spark.exporters.settings import FileSettings
from quiver.spark.processors.bad_bundle_filter import BadBundleFilter
from quiver.spark.spark_features import EXPORTERS
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.retry_set import load_retry_set
from quiver.store.subscribers.state import SegmentRef, SubscriberState
from quiver.testing.clock import ManualClock
from waiting import wait_until

NOW = {"availableNow": True}


def seal(store, *requests):
    return store.seal([{60: pa.record_batch([pa.array([data])], schema=OTLP_SCHEMA)} for data in requests])


def finish(query):
    assert query.awaitTermination(90)
    if query.exception() is not None:
        raise query.exception()


def pending(store, subscriber, *counts):
    state = SubscriberState.from_progress(load_progress(REAL_FILES, store.root, subscriber))
    return [
        (seq, index)
        for seq, count in enumerate(counts)
        for index in range(count)
        if state.unresolved(SegmentRef(seq, count)) >> index & 1
    ]


class Destination:
    def __init__(self, **answers):
        self.answers = answers
        self.has = []
        self.batch_ids = {}
        self.lock = threading.Lock()

    def take(self, bundle, batch_id):
        data = bundle[60].column(0)[0].as_py().decode()
        with self.lock:
            self.batch_ids.setdefault(data, set()).add(batch_id)
            answer = self.answers.get(data, Delivered())
            if isinstance(answer, Delivered):
                self.has.append(data)
        return answer


@needs(EXPORTERS)
@pytest.mark.spark
def test_offsets_advance_and_failed_bundles_are_not_acknowledged(spark, store, tmp_path):
    """The drain delivers them, in this process or the next; a poisoned bundle becomes a dead letter."""
    seal(store, b"a", b"sick", b"poison")
    seal(store, b"b")
    destination = Destination(sick=Transient("UNAVAILABLE"), poison=Permanent("HTTP 400", "no"))
    policy = RetryPolicy(initial_interval_s=0.01, max_interval_s=0.05)
    checkpoint = str(tmp_path / "checkpoint")
    with BundleDelivery(store.root, "out", destination.take, policy=policy, letters=DeadLetters) as delivery:
        for _ in range(2):
            finish(start_delivery(spark, store.root, delivery, "out", checkpoint=checkpoint, trigger=NOW))
        assert sorted(destination.has) == ["a", "b"]
        assert pending(store, "out", 3, 1) == [(0, 1)]
        assert [entry.ref for entry in load_retry_set(REAL_FILES, store.root, "out")] == [BundleRef(0, 1)]
    seal(store, b"c")
    destination.answers.pop("sick")
    with BundleDelivery(store.root, "out", destination.take, policy=policy, letters=DeadLetters) as delivery:
        wait_until(lambda: not load_retry_set(REAL_FILES, store.root, "out"))
        for _ in range(2):
            finish(start_delivery(spark, store.root, delivery, "out", checkpoint=checkpoint, trigger=NOW))
    assert sorted(destination.has) == ["a", "b", "c", "sick"]
    assert pending(store, "out", 3, 1, 1) == []
    (letter,) = read_dead_letters(REAL_FILES, store.root, "out")
    assert (letter.ref, letter.reason) == (BundleRef(0, 2), "HTTP 400: no")
    assert destination.batch_ids["sick"] == {"5c0f0000-0000-0000-0000-000000000001/0:1"}


@needs(EXPORTERS)
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(("how", "fails"), [("dead_letter", False), ("dead_letter", True), ("drop", True)])
def test_an_undecodable_bundle_stops_no_exporter(spark, store, tmp_path, how, fails):
    """
    All other bundles of its batch and later batches are exported once. The bundle is a dead letter even if a policy
    may drop unread bundles: this one was read, and nothing else reports that it is missing.
    """
    path = seal(store, logs_request([1, 2]), b"\xff\xff", logs_request([3]))
    seal(store, b"\xff", logs_request([4]))
    lake = tmp_path / "lake"
    lake.mkdir()
    policy = RetryPolicy(on_exhausted=how)
    around = partial(BadBundleFilter, subscriber="lake", policy=policy, letters=DeadLetters, fail_on_data_loss=fails)
    options = {"maxBundlesPerTrigger": "3", "failOnDataLoss": str(fails).lower()}
    for _ in range(2):
        query = run_exporter(
            spark, store.root, "lake", str(lake), str(tmp_path / "checkpoint"),
            trigger=NOW, options=options, around=around,
        )  # fmt: skip
        finish(query)
    tables = [pq.read_table(file) for file in (lake / "logs").glob("*.parquet")]
    times = [time for one in tables for time in one["time_unix_nano"].cast(pa.int64()).to_pylist()]
    assert sorted(times) == [1, 2, 3, 4]
    assert list(lake.rglob(".*.part")) == []
    dead_letters = read_dead_letters(REAL_FILES, store.root, "lake")
    assert [letter.ref for letter in dead_letters] == (
        [BundleRef(0, 1), BundleRef(1, 0)] if how == "dead_letter" else []
    )
    assert all("request for logs cannot be decoded" in letter.reason for letter in dead_letters)
    assert path.endswith("0.qseg")


@needs(EXPORTERS)
@pytest.mark.slow
@pytest.mark.spark
def test_an_undecodable_bundle_after_processors_is_a_dead_letter(spark, store, tmp_path):
    """Even if a policy may drop unread bundles, as above."""
    seal(store, logs_request([1]), b"\xff\xff")
    bad_bundles = {"policy": RetryPolicy(), "letters": DeadLetters, "fail_on_data_loss": False}
    finish(
        start_export(
            spark,
            store.root,
            "files",
            FileSettings(str(tmp_path / "files")),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=NOW,
            options={"failOnDataLoss": "false"},
            around=partial(BadBundleFilter, subscriber="files", **bad_bundles),
        )
    )
    lines = [line for file in (tmp_path / "files" / "logs").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(lines) == 1
    assert [letter.ref for letter in read_dead_letters(REAL_FILES, store.root, "files")] == [BundleRef(0, 1)]


@needs(EXPORTERS)
@pytest.mark.slow
@pytest.mark.spark
def test_an_undecodable_bundle_halts_an_exporter_if_configured(spark, store, tmp_path):
    """The query ends with the reason, from which the supervisor knows that a restart does not help."""
    seal(store, b"\xff\xff")
    around = partial(BadBundleFilter, subscriber="lake", policy=RetryPolicy(on_exhausted="halt"))
    checkpoint = str(tmp_path / "checkpoint")
    query = run_exporter(spark, store.root, "lake", str(tmp_path / "lake"), checkpoint, trigger=NOW, around=around)
    with pytest.raises(Exception, match="DeliveryHaltedError: lake halted at bundle 0:0"):
        query.awaitTermination(90)
    assert "DeliveryHaltedError" in str(query.exception())


def rows(path, *indexes):
    return [(path, int(path[-21:-5]), index) for index in indexes]


def test_a_halt_stops_the_next_batch(store):
    """Whether the bundle failed in a batch or in the drain. Without Spark."""
    path = seal(store, b"a", b"bad")
    destination = Destination(bad=Permanent("HTTP 400"))
    clock = ManualClock(waits="hold")
    with BundleDelivery(
        store.root, "out", destination.take, policy=RetryPolicy(on_exhausted="halt"), clock=clock
    ) as delivery:
        with pytest.raises(DeliveryHaltedError, match=r"out halted at bundle 0:1"):
            delivery.deliver(rows(path, 0, 1))
        clock.wait_for_waiters(1)
        clock.advance(1.0)
        wait_until(lambda: delivery._halted is not None)
        with pytest.raises(DeliveryHaltedError):
            delivery.deliver(rows(path, 0))
    assert destination.has == ["a"]


def test_a_core_that_was_removed_and_added_is_another_store(store):
    """Its bundles have the same positions as the old ones: a destination must be able to distinguish them."""
    destination = Destination(sick=Transient("HTTP 503"))
    path = seal(store, b"a", b"sick")
    with BundleDelivery(store.root, "out", destination.take) as delivery:
        delivery.deliver(rows(path, 0, 1))
        shutil.rmtree(store.root)
        seal(StoreMaker(Path(store.root), "5c0f0000-0000-0000-0000-000000000002"), b"b", b"c")
        delivery.deliver(rows(path, 0, 1))
        assert load_retry_set(REAL_FILES, store.root, "out") == ()
    assert sorted(destination.has) == ["a", "b", "c"]
    assert destination.batch_ids["a"] == {"5c0f0000-0000-0000-0000-000000000001/0:0"}
    assert destination.batch_ids["b"] == {"5c0f0000-0000-0000-0000-000000000002/0:0"}


def test_a_damaged_set_retains_all_unresolved_bundles(store):
    """Then everything is delivered from the set: some bundles twice, none never."""
    path = seal(store, b"a", b"b")
    with open(f"{store.root}/quiver.retry.out", "wb") as file:
        file.write(b"QUIVER\0R damaged")
    destination = Destination()
    with BundleDelivery(store.root, "out", destination.take) as delivery:
        delivery.deliver(rows(path, 0, 1))
        assert destination.has == [] or sorted(destination.has) == ["a", "b"]
        wait_until(lambda: not load_retry_set(REAL_FILES, store.root, "out"))
    assert sorted(destination.has) == ["a", "b"]
