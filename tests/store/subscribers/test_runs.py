"""Runs: what comes, what is kept, and what is refused are those of bundles that are taken one by one."""

import gc
import threading
from array import array

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registry_rig import Bench, crash_states, dropped, names

from quiver.bundle import OTAP, Bundle, BundleRef
from quiver.errors import (
    BundleUnavailableError,
    CorruptionError,
    DirectoryInUseError,
    StoreClosedError,
    UnknownSubscriberError,
    UsageError,
)
from quiver.settings import Settings
from quiver.store.format.audit import ranges_of
from quiver.store.opening import open_store
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.audit_trail import read_audit
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


def _bench(*counts, order="oldest", **options):
    bench = Bench(**options)
    subscriber = bench.registry.register("a", "earliest", order=order)
    for seq, count in enumerate(counts):
        bench.seal(seq, count)
    return bench, subscriber


def _span(run):
    return f"{run.segment}:{run.first}-{run.last}"


def _spans(subscriber, count_max=256):
    """Take everything that is pending, in runs, and keep the claims."""
    runs = list(iter(lambda: subscriber.next_run(count_max, timeout=0), None))
    return [_span(run) for run in runs], runs


def _positions(run):
    return [position for position, _ in run]


# ── what a run is ────────────────────────────────────────────────────────────────────────────────────


def test_a_run_ends_with_its_segment_and_with_the_count():
    _, subscriber = _bench(5, 2)
    spans, runs = _spans(subscriber, 3)
    assert spans == ["0:0-2", "0:3-4", "1:0-1"]
    assert [len(run) for run in runs] == [3, 2, 2]
    assert subscriber.lag().pending_bundles == subscriber.lag().claimed_bundles == 7


def test_a_run_ends_before_what_is_resolved_claimed_or_deferred():
    bench, subscriber = _bench(12)
    subscriber.claim(BundleRef(0, 2)).ack()
    handle = subscriber.claim(BundleRef(0, 5))
    subscriber.claim(BundleRef(0, 8)).nack(10)
    spans, runs = _spans(subscriber)
    assert spans == ["0:0-1", "0:3-4", "0:6-7", "0:9-11"]
    bench.clock.advance(10)
    assert _span(subscriber.next_run(timeout=0)) == "0:8-8"
    assert (handle.outcome, len(runs)) == (None, 4)


@pytest.mark.parametrize("counts", [(600, 3), (511, 1), (512, 513), (1025,)])
def test_long_runs(counts):
    _, subscriber = _bench(*counts)
    spans, runs = _spans(subscriber, 100_000)
    assert spans == [f"{seq}:0-{count - 1}" for seq, count in enumerate(counts)]
    for run in runs:
        run.ack()
    assert subscriber.lag().is_drained


def test_newest_takes_the_newest_and_every_fourth_time_from_the_old_end():
    _, subscriber = _bench(3, 12, order="newest")
    assert _spans(subscriber, 2)[0] == ["1:10-11", "1:8-9", "1:6-7", "0:0-1", "1:4-5", "1:2-3", "1:0-1", "0:2-2"]


def test_round_robin_takes_a_run_of_each_segment_in_turn():
    _, subscriber = _bench(3, 3, order="round_robin")
    assert _spans(subscriber, 2)[0] == ["0:0-1", "1:0-1", "0:2-2", "1:2-2"]


def test_nothing_is_read_before_it_is_due():
    bench, subscriber = _bench(5)
    run = subscriber.next_run(timeout=0)
    assert bench.reads == []
    through = iter(run)
    assert next(through)[1][60].column("data")[0].as_py() == b"0:0"
    assert next(through)[0] == 1
    assert bench.reads == [BundleRef(0, 0), BundleRef(0, 1)]


def test_it_waits_until_there_is_one_and_not_for_the_rest():
    bench = Bench(waits="hold")
    subscriber = bench.registry.register("a", "earliest")
    found = []
    thread = threading.Thread(target=lambda: found.append(subscriber.next_run(10, timeout=60)))
    thread.start()
    bench.clock.wait_for_waiters(1)
    bench.seal(0, 2)
    thread.join(30)
    assert [_span(run) for run in found] == ["0:0-1"]


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────────


def test_acknowledged_counted_once_and_durable_with_the_next_save():
    bench, subscriber = _bench(4, audit_bytes_max=100_000)
    run = subscriber.next_run(3, timeout=0)
    run.ack()
    run.ack()
    assert subscriber.lag().pending_bundles == 1
    bench.registry.save()
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 3
    assert [(record.bundles, record.outcome) for record in read_audit(bench.disk, ROOT)] == [(((0, 2),), "acked")]
    again = Bench(bench.disk.clone_after_crash(1), segments=list(bench.registry._segments))
    assert names(again.refs(again.registry.register("a"))) == ["0:3"]


def test_a_part_is_acknowledged_and_the_rest_comes_again():
    _, subscriber = _bench(9)
    with subscriber.next_run(8, timeout=0) as run:
        run.ack(through=2)
        run.ack(through=1)
        assert _positions(run) == [3, 4, 5, 6, 7]
        run.ack(through=4)
        assert subscriber.lag().pending_bundles == 4
    assert _spans(subscriber)[0] == ["0:5-8"]


def test_whatever_the_power_cut_leaves_no_acknowledgement_is_invented():
    bench, subscriber = _bench(20)
    segments = list(bench.registry._segments)

    def work():
        run = subscriber.next_run(16, timeout=0)
        run.ack(through=6)
        bench.registry.save()
        run.ack()

    for disk in crash_states(bench.disk, work):
        again = Bench(disk, segments=segments)
        left = names(again.refs(again.registry.register("a")))
        assert left in ([f"0:{n}" for n in range(20)], [f"0:{n}" for n in range(7, 20)])


def test_returned_deferred_and_rejected():
    bench, subscriber = _bench(6, audit_bytes_max=100_000)
    subscriber.next_run(6, timeout=0).nack()
    run = subscriber.next_run(4, timeout=0)
    run.reject("no such table", position=1)
    run.nack(5, position=2)
    assert _positions(run) == [0, 3]
    run.nack(9)
    assert _spans(subscriber)[0] == ["0:4-5"]
    assert (subscriber.lag().pending_bundles, subscriber.lag().deferred_bundles) == (5, 3)
    bench.clock.advance(5)
    subscriber.next_run(timeout=0).reject("never")
    bench.clock.advance(5)
    gc.collect()
    assert _spans(subscriber)[0] == ["0:0-0", "0:3-5"]
    bench.registry.save()
    found = [(record.bundles, record.outcome, record.why) for record in read_audit(bench.disk, ROOT)]
    assert found == [(((1, 1),), "rejected", "no such table"), (((2, 2),), "rejected", "never")]
    assert bench.observer.total("quiver.subscriber.rejected_bundles_total") == 2
    assert bench.observer.total("quiver.subscriber.deferred_bundles_total") == 9


def test_one_is_split_off_and_both_keep_their_claim():
    _, subscriber = _bench(3)
    run = subscriber.next_run(timeout=0)
    handle = run.split(1)
    assert (str(handle.ref), handle.outcome) == ("0:1", None)
    assert _positions(run) == [0, 2]
    run.ack()
    assert names(subscriber.next_bundles(3, timeout=0)) == []
    del handle
    assert names(subscriber.next_bundles(3, timeout=0)) == ["0:1"]
    with pytest.raises(BundleUnavailableError, match="no claim on bundle 0:1"):
        run.split(1)


def test_all_of_a_run_decided_one_by_one_leaves_nothing_to_acknowledge():
    _, subscriber = _bench(2)
    run = subscriber.next_run(timeout=0)
    for position in (0, 1):
        run.split(position).ack()
    run.ack()
    assert subscriber.lag().is_drained


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        ("ack", "reject", "cannot be rejected: it was acked"),
        ("ack", "nack", "cannot be deferred: it was acked"),
        ("nack", "ack", "cannot be acked: it was deferred"),
        ("reject", "ack", "cannot be acked: it was rejected"),
        ("__exit__", "ack", "cannot be acked: it was returned"),
    ],
)
def test_a_decision_is_not_changed(first, then, reason):
    _, subscriber = _bench(2)
    run = subscriber.next_run(timeout=0)
    getattr(run, first)(*(None,) * 3 if first == "__exit__" else ())
    with pytest.raises(BundleUnavailableError, match=reason):
        getattr(run, then)()


def test_a_run_that_is_dropped_comes_again():
    _, subscriber = _bench(3)
    run = subscriber.next_run(timeout=0)
    run.ack(through=0)
    through = iter(run)
    next(through)
    del run
    assert subscriber.next_run(timeout=0) is None  # the iteration holds it
    del through
    assert _spans(subscriber)[0] == ["0:1-2"]


def test_wrong_use_and_the_end():
    bench, subscriber = _bench(4)
    with pytest.raises(UsageError, match="at least one"):
        subscriber.next_run(0)
    with SubscriberFile(bench.disk, ROOT, "a"), pytest.raises(DirectoryInUseError):
        subscriber.next_run()
    assert subscriber.next_run(1, timeout=0) is not None
    gc.collect()
    run = subscriber.next_run(4, timeout=0)
    for wrong in (
        lambda: run.ack(through=4),
        lambda: run.split(-1),
        lambda: run.reject(ValueError("x")),
        lambda: run.reject(ValueError("x"), position=1),
        lambda: run.nack(-1),
        lambda: run.nack(float("nan"), position=1),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert _positions(run) == [0, 1, 2, 3]
    assert "0:0-3, 4 of 4" in repr(run)
    bench.registry.close()
    for late in (run.ack, run.reject, run.nack, lambda: run.split(1), lambda: subscriber.next_run(timeout=0)):
        with pytest.raises(StoreClosedError):
            late()
    run.__exit__(None, None, None)
    other, removed = _bench(1)
    other.registry.unregister("a")
    with pytest.raises(UnknownSubscriberError):
        removed.next_run(timeout=0)


def test_claims_end_with_the_ownership():
    _, subscriber = _bench(3)
    run = subscriber.next_run(timeout=0)
    subscriber.release()
    with pytest.raises(BundleUnavailableError, match="was released"):
        run.ack()
    again = subscriber.next_run(timeout=0)
    assert _span(again) == "0:0-2"
    with pytest.raises(BundleUnavailableError, match="has ended"):
        run.ack()
    del run
    assert _positions(again) == [0, 1, 2]
    again.ack()
    assert subscriber.lag().is_drained


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_policy_dropped_meanwhile_counts_as_dropped_only(is_deleted):
    bench, subscriber = _bench(4, 2)
    run = subscriber.next_run(timeout=0)
    run.ack(through=0)
    assert bench.registry.claimed_segments() == {0}
    assert bench.registry.drops.apply([dropped(0, 4)]) == {"a": 3}
    if is_deleted:
        bench.registry.removed([0])
    run.ack()
    run.ack()
    assert bench.registry.claimed_segments() == set()
    bench.registry.save()
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 1
    assert _spans(subscriber)[0] == ["1:0-1"]


def test_what_policy_dropped_does_not_come_back_with_the_run():
    bench, subscriber = _bench(4)
    run = subscriber.next_run(timeout=0)
    bench.registry.drops.apply([dropped(0, 4)])
    run.nack()
    assert subscriber.next_run(timeout=0) is None
    assert subscriber.lag().is_drained


# ── bundles that cannot be read ──────────────────────────────────────────────────────────────────────


def test_one_that_cannot_be_read_costs_only_itself():
    bench, subscriber = _bench(6)
    bench.unreadable.add(BundleRef(0, 2))
    run = subscriber.next_run(5, timeout=0)
    seen = []
    with pytest.raises(CorruptionError, match="checksum"):
        seen.extend(position for position, _ in run)
    assert run.unreadable == (2,)
    assert _positions(run) == [0, 1, 3, 4]
    assert _spans(subscriber)[0] == ["0:5-5", "0:2-2"]  # after all others, as a run of its own
    gc.collect()
    run.ack()
    assert subscriber.lag().pending_bundles == 2
    run.reject("damaged", position=2)
    assert _spans(subscriber)[0] == ["0:5-5"]
    assert bench.observer.total("quiver.subscriber.read_errors_total") == 1


def test_one_that_cannot_be_read_and_that_another_took_is_not_decided_here():
    bench, subscriber = _bench(1)
    bench.unreadable.add(BundleRef(0, 0))
    run = subscriber.next_run(timeout=0)
    with pytest.raises(CorruptionError):
        list(run)
    other = subscriber.next_bundle(timeout=0)
    with pytest.raises(BundleUnavailableError, match="claimed already"):
        run.reject("damaged", position=0)
    run.ack()
    assert subscriber.lag().pending_bundles == 1
    other.reject()
    assert subscriber.lag().is_drained


def test_a_damaged_segment_is_reported_and_the_next_one_comes():
    disk = CrashFileSystem()
    with open_store(ROOT, Settings(), fs=disk, clock=ManualClock(), background=False) as store:
        for segment in range(2):
            for number in range(4):
                store.ingest(Bundle({30: pa.record_batch({"n": [segment * 4 + number]})}))
            store.seal()
        path = f"{ROOT}/segments/0000000000000000.qseg"
        data = bytearray(disk.read_all(path, size_max=1 << 20))
        data[200] ^= 1
        disk.remove(path)
        disk.create(path).pwrite(bytes(data), 0)
        subscriber = store.register("a", "earliest")
        run = subscriber.next_run(timeout=0)
        with pytest.raises(CorruptionError):
            list(run)
        run.ack()
        found = [bundle[30]["n"][0].as_py() for _, bundle in subscriber.next_run(timeout=0)]
        assert found == [4, 5, 6, 7]


# ── the same as one by one ───────────────────────────────────────────────────────────────────────────

WORDS = ["a", "b", "c", "d", "e"]


def _logs(kind, number):
    rows = [number] * (number % 3)
    if kind == "words":
        words = pa.array([WORDS[(number + row) % 5] for row in range(len(rows))], pa.string()).dictionary_encode()
        return pa.record_batch({"word": words, "number": pa.array(rows, pa.int64())})
    return pa.record_batch({f"{kind} {number % 2}" if kind == "other" else kind: pa.array(rows, pa.int64())})


@st.composite
def contents(draw):
    """Some segments of bundles: long stretches of one schema, and anything in between."""
    kinds = st.sampled_from(
        [("number",), ("number",), ("words",), ("other",), ("number", "attributes"), ("attributes",)]
    )
    stretches = st.lists(st.tuples(kinds, st.integers(1, 12)), min_size=1, max_size=4)
    return draw(st.lists(stretches, min_size=1, max_size=3))


def _bundle(kinds, number):
    slots = {31 if kind == "attributes" else 30: _logs(kind, number) for kind in kinds}
    return Bundle(slots, ingested_at_ns=number)


def _values(bundle):
    """Dictionaries of one stream are shared, so a batch's own may have more words than it had."""
    batches = {slot: (bundle[slot].schema, bundle[slot].num_rows, bundle[slot].to_pylist()) for slot in bundle}
    return batches, bundle.ingested_at_ns


def _one_by_one(subscriber, _):
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        yield handle.ref, _values(handle.bundle)
        handle.ack()


def _in_runs(subscriber, counts):
    number = 0
    while (run := subscriber.next_run(counts[number % len(counts)], timeout=0)) is not None:
        number += 1
        for position, bundle in run:
            yield BundleRef(run.segment, position), _values(bundle)
            if number % 2:
                run.ack(through=position)
        run.ack()


@settings(max_examples=150, deadline=None)
@given(data=st.data(), segments=contents(), compression=st.sampled_from(["none", "none", "lz4"]))
def test_the_same_bundles_in_the_same_order_with_the_same_values(data, segments, compression):
    """Mixed schemas, several slots, dictionaries, gaps, deferred bundles; two subscribers side by side."""
    disk, clock = CrashFileSystem(), ManualClock()
    with open_store(ROOT, Settings(segment_compression=compression), fs=disk, clock=clock, background=False) as store:
        number = 0
        sent = {}
        for segment, stretches in enumerate(segments):
            for kinds, length in stretches:
                for _ in range(length):
                    sent[BundleRef(segment, len([ref for ref in sent if ref.segment == segment]))] = number
                    store.ingest(_bundle(kinds, number))
                    number += 1
            store.seal()
        acked = data.draw(st.sets(st.sampled_from(sorted(sent)), max_size=6))
        deferred = data.draw(st.sets(st.sampled_from(sorted(sent)), max_size=4)) - acked
        subscribers = {name: store.register(name, "earliest") for name in ("one", "run", "beside")}
        for subscriber in subscribers.values():
            for ref in acked:
                subscriber.claim(ref).ack()
            for ref in deferred:
                subscriber.claim(ref).nack(10)
        counts = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
        ways = {"one": _one_by_one, "run": _in_runs, "beside": _in_runs}
        for _ in range(2):
            takers = {name: ways[name](subscriber, counts) for name, subscriber in subscribers.items()}
            found = {name: [] for name in takers}
            while takers:
                name = data.draw(st.sampled_from(sorted(takers)))
                several = data.draw(st.integers(1, 30))
                for _ in range(several):
                    one = next(takers[name], None)
                    if one is None:
                        del takers[name]
                        break
                    found[name].append(one)
            assert found["run"] == found["one"] == found["beside"]
            clock.advance(10)
        assert all(subscriber.lag().is_drained for subscriber in subscribers.values())


def _sealed(disk, count, store_settings=None):
    with open_store(ROOT, store_settings or Settings(), fs=disk, clock=ManualClock(), background=False) as store:
        for number in range(count):
            store.ingest(Bundle({30: pa.record_batch({"n": [number]})}))
        store.seal()
    return f"{ROOT}/segments/0000000000000000.qseg"


def _numbers(bundles):
    return [batches[30]["n"][0].as_py() for batches in bundles]


def test_the_reader_continues_where_an_iteration_was_abandoned():
    disk = CrashFileSystem()
    reader = SegmentReader.open(disk, _sealed(disk, 40))
    through = reader.bundles(0, 20, OTAP)
    assert _numbers([next(through) for _ in range(7)]) == list(range(7))
    assert _numbers(reader.bundles(7, 9, OTAP)) == [7, 8]  # `through` has the sequence: these are looked up
    through.close()
    assert _numbers(reader.bundles(7, 30, OTAP)) == list(range(7, 30))
    assert _numbers([reader.bundle(30), *reader.bundles(31, 40, OTAP)]) == list(range(30, 40))
    assert _numbers(reader.bundles(3, 5, OTAP)) == [3, 4]
    for first, end in ((39, 41), (-1, 2), (40, 41)):
        with pytest.raises(BundleUnavailableError):
            list(reader.bundles(first, end, OTAP))


def test_a_stream_that_ends_early_is_read_by_its_table():
    """The bytes are as written, but the sequence of messages ends: an Arrow file may have been appended to."""
    disk = CrashFileSystem()
    reader = SegmentReader.open(disk, _sealed(disk, 9))
    assert _numbers(reader.bundles(0, 3, OTAP)) == [0, 1, 2]
    line = reader._in_order
    (stream_id,) = reader.streams
    assert line.lend(stream_id, 3) is not None

    def broken():
        raise StopIteration

    line.give_back(stream_id, 3, broken)
    assert _numbers(reader.bundles(3, 9, OTAP)) == list(range(3, 9))
    assert line.lend(stream_id, 9) is None


def test_threads_share_a_segment_and_each_gets_its_bundles():
    """Two subscribers, two threads each, in runs and one by one: each subscriber gets every bundle once."""
    disk = CrashFileSystem()
    _sealed(disk, 300)
    with open_store(ROOT, Settings(), fs=disk, clock=ManualClock(), background=False) as store:
        found = {name: [] for name in "ab"}

        def drain(name, subscriber, count):
            while (run := subscriber.next_run(count, timeout=0)) is not None:
                found[name] += [bundle[30]["n"][0].as_py() for _, bundle in run]
                run.ack()
                if (handle := subscriber.next_bundle(timeout=0)) is not None:
                    found[name].append(handle.bundle[30]["n"][0].as_py())
                    handle.ack()

        subscribers = {name: store.register(name, "earliest") for name in "ab"}
        threads = [
            threading.Thread(target=drain, args=(name, subscribers[name], count)) for name in "ab" for count in (3, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [sorted(numbers) for numbers in found.values()] == [list(range(300))] * 2


def test_chunks_out_of_sequence_are_looked_up():
    """Other engines may number the chunks of a stream in any order."""
    disk = CrashFileSystem()
    reader = SegmentReader.open(disk, _sealed(disk, 6))
    ends, slots, streams, chunks = reader._places
    reader._places = ends, slots, streams, memoryview(array("I", reversed(chunks)))
    assert _numbers(reader.bundles(0, 6, OTAP)) == [5, 4, 3, 2, 1, 0]


def test_times_of_ingestion_are_those_of_the_bundles():
    disk = CrashFileSystem()
    with open_store(ROOT, Settings(), fs=disk, clock=ManualClock(), background=False) as store:
        for number in range(9):
            store.ingest(Bundle({30: pa.record_batch({"n": [number]})}, ingested_at_ns=1000 + number))
        store.seal()
        found = [bundle.ingested_at_ns for bundle in store.internals.catalog.bundles(0, 3, 7)]
        assert found == [1003, 1004, 1005, 1006]


def test_a_run_stays_readable_when_the_store_is_closed_and_its_segment_deleted():
    disk = CrashFileSystem()
    _sealed(disk, 9)
    store = open_store(ROOT, Settings(), fs=disk, clock=ManualClock(), background=False)
    run = store.register("a", "earliest").next_run(timeout=0)
    through = iter(run)
    first = next(through)
    store.close()
    disk.remove(f"{ROOT}/segments/0000000000000000.qseg")
    found = [first, *through]
    assert _numbers([{30: bundle[30]} for _, bundle in found]) == list(range(9))
    with pytest.raises(StoreClosedError):
        run.ack()


@given(st.integers(1, 70), st.lists(st.tuples(st.integers(0, 69), st.integers(0, 2**70 - 1)), max_size=8))
def test_marks_of_a_run_are_those_of_its_bundles(count, steps):
    """`resolve_run` does what `resolve` does for each, and returns which were new."""
    bench, _ = _bench(count)
    record = bench.registry._records["a"]
    model = set()
    for first, bits in steps:
        if first >= count:
            continue
        within = bits & (1 << count - first) - 1
        wanted = {first + at for start, end in ranges_of(within) for at in range(start, end + 1)}
        new = record.state.resolve_run(0, first, within, count)
        assert {first + at for start, end in ranges_of(new) for at in range(start, end + 1)} == wanted - model
        model |= wanted
        assert {index for index in range(count) if record.state.is_resolved(BundleRef(0, index))} == model
        assert bench.registry.lag("a").pending_bundles == count - len(model)
    with pytest.raises(BundleUnavailableError, match=f"no index {count}"):
        record.state.resolve_run(0, 0, 1 << count, count)
