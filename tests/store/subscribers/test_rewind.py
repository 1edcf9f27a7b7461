"""A rewind returns existing bundles, reports missing ones, and is durable on return."""

import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from registry_rig import ROOT, Bench, crash_states, names

import quiver
from quiver.bundle import BundleRef
from quiver.errors import DirectoryInUseError, StoreClosedError, UnknownSubscriberError, UsageError
from quiver.store.format.progress import Progress
from quiver.store.subscribers.progress_store import SubscriberFile, load_progress
from quiver.store.subscribers.records import SubscriberRecord
from quiver.store.subscribers.start import Rewound
from quiver.store.subscribers.state import SegmentRef
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ALL = ["2:0", "2:1", "2:2", "3:0", "5:0", "5:1"]


def _segments():
    """Segments 2, 3 and 5 exist, 0, 1 and 4 do not; each covers one second of ingestion."""
    counts = {2: 3, 3: 1, 5: 2}
    return [SegmentRef(seq, count, seq * 10**9 + 999, seq * 10**9, 100) for seq, count in counts.items()]


def _finished(**options):
    bench = Bench(segments=_segments(), **options)
    subscriber = bench.registry.register("a", "earliest")
    bench.ack_all(subscriber)
    bench.registry.save()
    return bench, subscriber


def _time(seconds):
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    ("to", "first", "missing"),
    [
        ("earliest", 0, (range(4, 5),)),
        (0, 0, (range(2), range(4, 5))),
        (2, 0, (range(4, 5),)),
        (BundleRef(2, 1), 1, (range(4, 5),)),
        (3, 3, (range(4, 5),)),
        (4, 4, (range(4, 5),)),
        (BundleRef(5, 1), 5, ()),
        (6, 6, ()),
        (_time(3), 3, (range(4, 5),)),
        (_time(2), 0, (range(4, 5),)),
        (_time(1), 0, (range(2), range(4, 5))),
        (_time(9), 6, ()),
    ],
)
def test_a_rewind_reports_its_position_and_missing_segments(to, first, missing):
    bench, subscriber = _finished()
    done = subscriber.rewind(to)
    assert (done.bundles, done.missing) == (6 - first, missing)
    assert names(bench.refs(subscriber)) == ALL[first:]
    bench.registry.close()
    again = Bench(bench.disk, segments=_segments())
    assert names(again.refs(again.registry.register("a"))) == ALL[first:]


def test_a_rewind_is_atomic_and_durable_on_return():
    """A power loss at any step leaves all or nothing of it."""
    bench, subscriber = _finished()
    states = crash_states(bench.disk, lambda: subscriber.rewind(BundleRef(2, 2)))
    found = []
    for state in states:
        again = Bench(state, segments=_segments())
        found.append(tuple(names(again.refs(again.registry.register("a")))))
    assert set(found) == {(), tuple(ALL[2:])}
    assert set(found[-6:]) == {tuple(ALL[2:])}


def test_pending_bundles_before_the_position_stay_pending():
    """A move forward skips nothing, and earlier bundles are not changed."""
    bench = Bench(segments=_segments())
    subscriber = bench.registry.register("a", "earliest")
    for ref in (BundleRef(2, 0), BundleRef(5, 0)):
        subscriber.claim(ref).ack()
    assert subscriber.rewind(BundleRef(5, 0)) == Rewound(BundleRef(5, 0), 1, ())
    assert names(bench.refs(subscriber)) == ALL[1:]


def test_a_rewind_keeps_claims_and_deferrals():
    bench = Bench(segments=_segments())
    subscriber = bench.registry.register("a", "earliest")
    claimed, deferred, acked = (subscriber.next_bundle(timeout=0) for _ in range(3))
    deferred.nack(10)
    acked.ack()
    assert subscriber.rewind("earliest").bundles == 1
    rest = bench.refs(subscriber)
    assert names(rest) == ALL[2:]
    claimed.ack()
    bench.clock.advance(10)
    assert names(bench.refs(subscriber)) == ["2:1"]


def test_rewound_segments_are_not_deleted():
    bench, subscriber = _finished()
    assert bench.registry.complete_segments() == [2, 3, 5]
    subscriber.rewind(3)
    assert bench.registry.complete_segments() == [2]


@pytest.mark.parametrize("asked", ["rewind", "register"])
def test_a_rewind_waits_for_a_running_deletion(asked):
    """
    The store holds the lock from its decision to the end of the deletion: a new subscriber never starts at a segment
    that is deleted in the next moment.
    """
    order = []

    class Deleting:
        def __enter__(self):
            order.append("taken")

        def __exit__(self, *_):
            order.append("given back")

    bench, subscriber = _finished(deleting=Deleting())
    order.clear()
    bench.disk.on_step = lambda op, path: order.append(op) if op == "rename" else None
    if asked == "rewind":
        subscriber.rewind(3)
    else:
        bench.registry.register("new", "earliest")
    assert order == ["taken", "rename", "given back"]


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("latest", "would skip"),
        ("newest", "is not"),
        (7, "none above it"),
        (-1, "none above it"),
        (BundleRef(2, 3), "segment 2 has 3 bundles"),
        (BundleRef(2, -1), "segment 2 has 3 bundles"),
        (BundleRef(7, 0), "none above it"),
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001 - that is what is wrong with it
    ],
)
def test_invalid_positions_are_refused_and_change_nothing(to, said):
    bench, subscriber = _finished()
    with pytest.raises(UsageError, match=said):
        subscriber.rewind(to)
    assert subscriber.lag().is_drained
    assert load_progress(bench.disk, ROOT, "a") == Progress(6, {})


def test_an_inactive_subscriber_can_be_rewound_but_not_one_of_another_process():
    bench = Bench(segments=_segments())
    bench.ack_all(bench.registry.register("a", "earliest"))
    bench.registry.close()
    again = Bench(bench.disk, segments=_segments())
    assert again.registry.rewind("a", 3).bundles == 3
    assert not again.registry.status("a").is_owned
    with SubscriberFile(bench.disk, ROOT, "a"), pytest.raises(DirectoryInUseError):
        again.registry.rewind("a", 2)
    with pytest.raises(UnknownSubscriberError):
        again.registry.rewind("b", 2)
    again.registry.close()
    with pytest.raises(StoreClosedError):
        again.registry.rewind("a", 2)


@pytest.mark.parametrize("asked", ["rewind", "register"])
def test_a_closed_store_takes_no_lock_in_its_directory(asked):
    """The directory may be deleted by then, or open in another process."""
    taken: list[str] = []

    class Deleting:
        def __enter__(self):
            taken.append("lock")

        def __exit__(self, *_):
            pass

    bench, _ = _finished(deleting=Deleting())
    bench.registry.close()
    taken.clear()
    with pytest.raises(StoreClosedError):
        bench.registry.rewind("a", 3) if asked == "rewind" else bench.registry.register("new", "earliest")
    assert taken == []


def test_after_a_disk_error_the_next_pass_writes_the_rewind():
    """It applies in this process at once, and is written with the next progress."""
    faulty = FaultFileSystem(CrashFileSystem())
    bench = Bench(faulty, segments=_segments(), progress_damage="backup")
    subscriber = bench.registry.register("a", "earliest")
    bench.ack_all(subscriber)
    bench.registry.save()
    faulty.fail_on("rename")
    with pytest.raises(OSError, match="."):
        subscriber.rewind(3)
    assert list(subscriber.lag().segments) == [3, 5]
    assert bench.registry.save() == 1
    for name in ("quiver.sub.a", "quiver.sub.a.bak"):
        path = f"{ROOT}/{name}"
        assert faulty.read_all(path, size_max=1000) == faulty.read_all(f"{ROOT}/quiver.sub.a", size_max=1000)


def test_a_call_for_bundles_during_a_rewind_gets_one_that_it_can_acknowledge(tmp_path, monkeypatch):
    """The store owns the subscriber for the moment of the rewind. A claim from then would end with it."""
    with quiver.open(tmp_path) as store:
        subscriber = store.register("a", start="earliest")
        store.activate()
        store.ingest(quiver.Bundle({30: pa.record_batch({"n": [1]})}))
        store.seal()
        handles: list[quiver.BundleHandle] = []
        caller = threading.Thread(target=lambda: handles.append(subscriber.next_bundle(timeout=30)))
        save, queues = SubscriberRecord.save, []

        def save_during_a_call(record, **how):
            if not queues:
                queues.append(record.queue)
                caller.start()
            return save(record, **how)

        monkeypatch.setattr(SubscriberRecord, "save", save_during_a_call)
        store.rewind("a", "earliest")
        caller.join(30)
        handles[0].ack()
        assert queues == [None]
