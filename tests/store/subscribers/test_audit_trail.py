"""The outcome of each bundle in the audit trail: written before the progress that contains it, and bounded."""

import errno

import pytest
from registry_rig import ROOT, Bench, crash_states, dropped

from quiver.bundle import BundleRef
from quiver.errors import UsageError
from quiver.store.format.audit import AuditRecord
from quiver.store.subscribers import audit_trail
from quiver.store.subscribers.audit_trail import read_audit
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.state import SegmentRef, SubscriberState
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

TRAIL = f"{ROOT}/quiver.audit.jsonl"
PREVIOUS = f"{ROOT}/quiver.audit.1.jsonl"


def _said(disk):
    return [(one.subscriber, one.segment, one.bundles, one.outcome, one.why) for one in read_audit(disk, ROOT)]


def test_the_trail_is_off_by_default():
    bench = Bench()
    bench.seal(0, 1)
    bench.ack_all(bench.registry.register("a", "earliest"))
    bench.registry.close()
    assert sorted(bench.disk.list_dir(ROOT)) == ["quiver.sub.a", "quiver.sub.a.lock"]
    assert list(read_audit(bench.disk, ROOT)) == []


@pytest.mark.parametrize("why", [ValueError("no such column"), 5, None, b"bytes"])
def test_a_reason_that_is_not_text_is_refused_at_once(why):
    """Nothing is resolved, and the later write of the trail does not fail."""
    bench = Bench(audit_bytes_max=100_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 1)
    handle = subscriber.next_bundle(timeout=0)
    with pytest.raises(UsageError, match=r"the reason must be a string, for example str\(error\)"):
        handle.reject(why)
    assert handle.outcome is None
    handle.reject("no such column")
    bench.registry.save()
    assert _said(bench.disk) == [("a", 0, ((0, 0),), "rejected", "no such column")]


def test_every_outcome_has_a_line_with_time_and_reason():
    bench = Bench(audit_bytes_max=100_000)
    bench.registry.register("b", "earliest")
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 5)
    acked, rejected, deferred = (subscriber.next_bundle(timeout=0) for _ in range(3))
    acked.ack()
    acked.ack()
    bench.clock.advance(1)
    rejected.reject("no such column")
    deferred.nack(100)
    bench.registry.drops.apply([dropped(0, 5, "age")])
    bench.seal(1, 2)
    bench.registry.unregister("b")
    bench.registry.save()
    first = next(read_audit(bench.disk, ROOT))
    assert first == AuditRecord(bench.clock.now_ns() - 10**9, "a", 0, ((0, 0),), "acked")
    assert _said(bench.disk)[1:] == [
        ("a", 0, ((1, 1),), "rejected", "no such column"),
        ("b", 0, ((0, 4),), "dropped", "age"),
        ("a", 0, ((2, 4),), "dropped", "age"),
        ("b", 1, ((0, 1),), "dropped", "unregistered"),
    ] or _said(bench.disk)[1:] == [
        ("a", 0, ((1, 1),), "rejected", "no such column"),
        ("a", 0, ((2, 4),), "dropped", "age"),
        ("b", 0, ((0, 4),), "dropped", "age"),
        ("b", 1, ((0, 1),), "dropped", "unregistered"),
    ]


def test_nothing_is_written_when_a_bundle_is_acknowledged():
    """The trail is written together with progress."""
    bench = Bench(audit_bytes_max=100_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 3)
    handles = bench.refs(subscriber)
    steps = []
    bench.disk.on_step = lambda op, path: steps.append(op)
    for handle in handles:
        handle.ack()
    assert steps == []
    bench.registry.save()
    assert len(_said(bench.disk)) == 3


def test_after_a_power_loss_the_trail_covers_the_progress():
    bench = Bench(audit_bytes_max=4_096)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 40)
    handles = bench.refs(subscriber)

    def work():
        for start in range(0, 40, 10):
            for handle in handles[start : start + 10]:
                handle.ack()
            bench.registry.save()

    for state in crash_states(bench.disk, work, seeds=4):
        progress = load_progress(state, ROOT, "a")
        resolved = 40 - SubscriberState.from_progress(progress).pending_in(SegmentRef(0, 40))
        expected = {
            index for _, _, ranges, _, _ in _said(state) for first, last in ranges for index in range(first, last + 1)
        }
        kept_min = max(expected, default=-1) - len(expected) + 1  # the oldest lines may have been rotated out
        assert set(range(kept_min, resolved)) <= expected
        again = Bench(state, segments=[SegmentRef(0, 40)], audit_bytes_max=4_096)
        again.registry.register("a").claim(BundleRef(0, 39)).ack() if resolved < 40 else None
        again.registry.save()
        if resolved < 40:
            assert _said(state)[-1] == ("a", 0, ((39, 39),), "acked", "")


def test_a_torn_line_does_not_affect_other_lines():
    bench = Bench(audit_bytes_max=10_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 2)
    subscriber.next_bundle(timeout=0).ack()
    bench.registry.close()
    complete = bench.disk.read_all(TRAIL, size_max=10_000)
    bench.disk.open_write(TRAIL).truncate(len(complete) - 10)
    again = Bench(bench.disk, segments=[SegmentRef(0, 2)], audit_bytes_max=10_000)
    again.ack_all(again.registry.register("a"))
    again.registry.save()
    assert _said(bench.disk) == [("a", 0, ((1, 1),), "acked", "")]


@pytest.mark.parametrize("bytes_max", [4_096, 20_001])
def test_both_files_together_stay_within_their_limit(bytes_max):
    """The oldest lines are deleted, and the newest are always there."""
    bench = Bench(audit_bytes_max=bytes_max)
    subscriber = bench.registry.register("a", "earliest")
    for seq in range(60):
        bench.seal(seq, 7)
        bench.ack_all(subscriber)
        bench.registry.save()
        sizes = [bench.disk.stat(path).size_bytes for path in (TRAIL, PREVIOUS) if bench.disk.exists(path)]
        assert sum(sizes) <= bytes_max
        assert _said(bench.disk)[-1][1] == seq
    kept = _said(bench.disk)
    assert len(kept) * 110 > bytes_max // 2 - 2_000
    assert [one[1] for one in kept] == sorted(one[1] for one in kept)


def test_one_flush_larger_than_a_file_is_split():
    bench = Bench(audit_bytes_max=4_096)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 200)
    bench.ack_all(subscriber)
    bench.registry.save()
    assert _said(bench.disk)[-1][2] == ((199, 199),)
    assert sum(bench.disk.stat(path).size_bytes for path in (TRAIL, PREVIOUS)) <= 4_096


def test_many_ranges_become_several_lines():
    bench = Bench(audit_bytes_max=100_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 200)
    for index in range(0, 200, 2):
        subscriber.claim(BundleRef(0, index)).ack()
    bench.registry.unregister("a")
    lines = [one for one in _said(bench.disk) if one[3] == "dropped"]
    assert len(lines) == 4
    assert [first for one in lines for first, _ in one[2]] == list(range(1, 200, 2))


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "sync_dir"])
def test_a_disk_error_loses_only_lines_of_the_trail(operation):
    """Progress is written, the loss is counted, and the next lines are kept."""
    disk = CrashFileSystem()
    faulty = FaultFileSystem(disk, error=errno.ENOSPC)
    bench = Bench(faulty, audit_bytes_max=10_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 3)
    subscriber.next_bundle(timeout=0).ack()
    faulty.fail_on(operation)
    assert bench.registry.save() == 1
    assert bench.observer.total("quiver.subscriber.audit_lost_lines_total") == 1
    assert "quiver.subscriber.audit" in bench.observer.events
    subscriber.next_bundle(timeout=0).ack()
    bench.registry.save()
    assert _said(disk)[-1] == ("a", 0, ((1, 1),), "acked", "")


def test_unwritten_lines_are_bounded(monkeypatch):
    monkeypatch.setattr(audit_trail, "_NOTED_MAX", 10)
    bench = Bench(audit_bytes_max=10_000)
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 25)
    bench.ack_all(subscriber)
    bench.registry.save()
    assert [one[2][0][0] for one in _said(bench.disk)] == list(range(15, 25))
    assert bench.observer.total("quiver.subscriber.audit_lost_lines_total") == 15
