"""
Losses and stalls of consumers that are known of another engine with the same formats.

Each test describes the error. Those about the log and the segments are in `test_store_known_losses.py`, and progress
that outlives its segments is tested with the subscribers.
"""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from quiver import (
    Bundle,
    BundleUnavailableError,
    CapacityError,
    CorruptionError,
    DirectoryInUseError,
    InvalidBundleError,
    Settings,
    SettingsError,
    Store,
)
from quiver import open as open_store
from quiver.bundle import OTAP, Adapter, BundleRef
from quiver.errors import UnsupportedFormatError
from quiver.primitives.scan import Frame
from quiver.store.format.progress import Progress, decode_progress, encode_progress
from quiver.store.format.wal_entry import ENTRY_BYTES_MAX
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import ROOT, drain, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

PROGRESS = f"{ROOT}/quiver.sub.s"
opened = partial(open_small, segment_bytes_max=1_000, wal_rotate_bytes=2_000)


def fill(store: Store, numbers: range) -> None:
    for number in numbers:
        store.ingest(numbered(number), durable=True)


def counted(store: Store, name: str) -> float:
    return store._observer.total(name)


# ── segment numbers and progress ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_segment_numbers_continue_after_all_were_deleted(fs: CrashFileSystem, profile: str, end: str) -> None:
    """Upstream #4024: without files, numbers began at 0 again, and old progress covered the new data."""
    for turn in range(3):
        store = opened(fs, format_profile=profile)
        fill(store, range(10 * turn, 10 * turn + 10))
        store.seal()
        assert drain(store) == list(range(10 * turn, 10 * turn + 10))
        store.maintain()
        store.maintain()
        assert not len(store.internals.catalog)
        if end == "close":
            store.close()
        fs = fs.clone_after_crash(0) if end == "power cut" else fs.clone_after_kill()


def test_segment_numbers_do_not_collide_after_a_restart(fs: CrashFileSystem) -> None:
    """Upstream #1855: the next number was always 0 after a restart, and that segment replaced the first one."""
    for turn in range(3):
        with opened(fs) as store:
            fill(store, range(5 * turn, 5 * turn + 5))
            store.seal()
            seqs = [info.seq for info in store.internals.catalog.segments()]
            assert seqs == sorted(set(seqs))
    with opened(fs) as store:
        assert drain(store) == list(range(15))


def test_a_restart_replays_the_log(fs: CrashFileSystem) -> None:
    """Upstream #1951: the log was written and never replayed; bundles that were not sealed were lost."""
    store = opened(fs, segment_bytes_max=1_000_000)
    fill(store, range(7))
    assert not len(store.internals.catalog)
    with opened(fs.clone_after_crash(0)) as again:
        again.seal()
        assert drain(again) == list(range(7))


def test_a_deleted_segment_does_not_return_after_a_power_loss(fs: CrashFileSystem) -> None:
    """Upstream #4137: the directory was not synced after an unlink; the file returned, but not its progress."""
    steps: list[tuple[str, CrashFileSystem]] = []
    store = opened(fs)
    fill(store, range(20))
    store.seal()
    assert drain(store) == list(range(20))
    assert store.maintain().progress_written == 1
    fs.on_step = lambda operation, path: steps.append((f"{operation} {path}", fs.clone_after_crash(0)))
    fill(store, range(20, 24))
    store.maintain()
    store.seal()
    store.maintain()
    for label, survived in steps:
        with opened(survived) as again:
            again.seal()
            assert not set(drain(again)) & set(range(20)), label


def test_both_checksums_of_progress_files_are_accepted(fs: CrashFileSystem) -> None:
    """The document requires CRC-32C, the engine wrote CRC-32; a reader of only one delivered everything again."""
    with opened(fs) as store:
        fill(store, range(20))
        store.seal()
        assert drain(store, most=7) == list(range(7))
        store.maintain()
    answer = decode_progress(memoryview(fs.read_all(PROGRESS, size_max=1 << 20)))
    assert isinstance(answer, Frame)
    for profile in ("otap", "spec"):
        fs.remove(PROGRESS)
        file = fs.create(PROGRESS)
        file.pwrite(encode_progress(answer.value, profile=profile), 0)
        file.sync()
        survived = fs.clone_after_kill()
        with opened(survived) as store:
            assert drain(store) == list(range(7, 20))


def test_the_oldest_incomplete_segment_of_complete_progress_is_the_next_one(fs: CrashFileSystem) -> None:
    """The engine wrote 0 and ignored the field; here it is the next number, and is used."""
    with opened(fs) as store:
        fill(store, range(20))
        store.seal()
        drain(store)
        store.maintain()
        after = store.stats()["next_segment"]
    answer = decode_progress(memoryview(fs.read_all(PROGRESS, size_max=1 << 20)))
    assert isinstance(answer, Frame)
    assert answer.value == Progress(after, {})


# ── who holds what ──────────────────────────────────────────────────────────────────────────────────────


def test_a_new_subscriber_gets_the_backlog_only_on_request(fs: CrashFileSystem) -> None:
    """The document requires a start at the latest segment; the engine delivered everything that was retained."""
    with opened(fs) as store:
        fill(store, range(10))
        store.seal()
        late = store.register("late")
        assert late.next_bundle(timeout=0) is None
        fill(store, range(10, 13))
        store.seal()
        assert drain(store, "late") == [10, 11, 12]


def test_unregister_counts_pending_bundles_as_dropped(fs: CrashFileSystem) -> None:
    """The engine only removed the file; here the bundles are counted, and no longer keep a segment."""
    with opened(fs) as store:
        store.register("leaver", start="earliest")
        fill(store, range(10))
        store.seal()
        drain(store)
        assert drain(store, "leaver", 4) == [0, 1, 2, 3]
        store.maintain()
        assert len(store.internals.catalog)
        store.unregister("leaver")
        assert counted(store, "quiver.subscriber.dropped_bundles_total") == 6
        store.maintain()
        assert not len(store.internals.catalog)


def test_an_orphan_is_reported_and_can_be_dropped(fs: CrashFileSystem) -> None:
    """A subscriber that was not registered again kept its segments forever, without a report or a remedy."""
    with opened(fs) as store:
        store.register("orphan", start="earliest")
        fill(store, range(10))
    with opened(fs) as store:
        assert drain(store) == list(range(10))
        store.maintain()
        assert len(store.internals.catalog)
        status = store.stats()["subscribers"]["orphan"]
        assert not status["registered"]
        assert status["pending_bundles"] == 10
        store.unregister("orphan")
        store.maintain()
        assert not len(store.internals.catalog)


def test_any_finished_segment_is_deleted(fs: CrashFileSystem) -> None:
    """One old pending bundle kept all later segments on disk."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(40))
        store.seal()
        before = len(store.internals.catalog)
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        assert drain(store) == list(range(1, 40))
        store.maintain()
        assert before > 3
        assert [info.seq for info in store.internals.catalog.segments()] == [handle.ref.segment]
        handle.ack()
        store.maintain()
        assert not len(store.internals.catalog)


def test_an_unreadable_segment_does_not_block_later_deletion(fs: CrashFileSystem) -> None:
    """A damaged or missing file stayed incomplete forever: every poll failed, and no later segment was deleted."""
    store = opened(fs)
    store.register("s", start="earliest")
    fill(store, range(60))
    store.close()
    with opened(fs) as store:
        infos = store.internals.catalog.segments()
        assert len(infos) > 4
        for info, byte in ((infos[1], 70), (infos[2], None)):
            data = bytearray(fs.read_all(info.path, size_max=1 << 20))
            fs.remove(info.path)
            if byte is not None:
                data[byte] ^= 1
                file = fs.create(info.path)
                file.pwrite(bytes(data), 0)
                file.sync()
                file.close()
        subscriber = store.register("s", start="earliest")
        got, failures = [], 0
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            try:
                got.append(handle.bundle[30]["n"][0].as_py())
            except (CorruptionError, BundleUnavailableError):
                failures += 1
                assert failures < 5
            else:
                handle.ack()
        assert len(got) == 60 - infos[1].bundle_count - infos[2].bundle_count
        store.maintain()
        assert not len(store.internals.catalog)
        assert counted(store, "quiver.segment.damaged_bundles_total") == infos[1].bundle_count + infos[2].bundle_count


def test_a_read_error_releases_the_claim(fs: CrashFileSystem) -> None:
    """The bundle stayed claimed; here it is delivered once the disk works again."""
    faults = FaultFileSystem(fs, error=errno.EIO, path_part=".qseg")
    with opened(faults) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(3))
        store.seal()
        faults.fail_on("map")
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        with pytest.raises(OSError, match="Input/output"):
            _ = handle.bundle
        faults.heal()
        assert sorted(drain(store)) == [0, 1, 2]


def test_a_segment_that_expires_while_it_is_read_is_not_damage(fs: CrashFileSystem) -> None:
    """Between the removal of the file and the end of that maintenance, it is missing but not damaged."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=5.0) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(3))
        store.seal()
        handle = subscriber.next_bundle(timeout=0)
        path = store.internals.catalog.segments()[0].path
        seen = []

        def read_while_it_goes(_operation: str, _path: str) -> None:
            if not fs.exists(path) and not seen:
                seen.append(handle.ref.segment in store.internals.catalog)
                with pytest.raises(BundleUnavailableError):
                    _ = handle.bundle

        fs.on_step = read_while_it_goes
        clock.advance(6.0)
        store.maintain()
        fs.on_step = None
        assert seen == [True]
        assert not counted(store, "quiver.segment.damaged_bundles_total")


def test_a_rejected_bundle_is_not_delivered_again(fs: CrashFileSystem) -> None:
    """Upstream #1918: bundles that could never be exported were delivered repeatedly; a rejection is durable."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(3))
        store.seal()
        for _ in range(3):
            handle = subscriber.next_bundle(timeout=0)
            assert handle is not None
            handle.reject()
        assert subscriber.next_bundle(timeout=0) is None
        assert counted(store, "quiver.subscriber.rejected_bundles_total") == 3
        store.maintain()
    with opened(fs.clone_after_crash(0)) as store:
        assert drain(store) == []


def test_retries_in_an_outage_use_bounded_memory(fs: CrashFileSystem) -> None:
    """Upstream #2552: each refusal added a timer and state; here each bundle waits in one place."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(20))
        store.seal()
        for _ in range(50):
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                handle.nack(1.0)
            clock.advance(1.5)
        (membership,) = store._subscribers.table.listed()
        queue = membership.queue
        assert queue is not None
        assert len(queue._delayed) + len(queue.due) < 200
        assert drain(store) == list(range(20))


def test_a_deferred_bundle_does_not_block_newer_ones(fs: CrashFileSystem) -> None:
    """A backoff delayed all later bundles; here only the deferred one waits."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(5))
        store.seal()
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        handle.nack(30)
        assert drain(store) == [1, 2, 3, 4]
        clock.advance(31)
        assert drain(store) == [0]


def test_a_waiter_wakes_for_a_returned_bundle(tmp_path: Path) -> None:
    """Only a new segment woke waiters; a bundle that another thread deferred was not noticed."""
    clock = ManualClock(waits="hold")
    store = open_store(tmp_path, Settings(), clock=clock, background=False)
    subscriber = store.register("s", start="earliest")
    store.ingest(numbered(0))
    store.seal()
    first = subscriber.next_bundle(timeout=0)
    assert first is not None
    got: list[int] = []

    def wait() -> None:
        handle = subscriber.next_bundle(timeout=3_600)
        assert handle is not None
        got.append(handle.bundle[30]["n"][0].as_py())
        handle.ack()

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_waiters()
    first.nack()
    thread.join(20)
    assert got == [0]
    store.close()


def test_claiming_an_unknown_bundle_is_refused(fs: CrashFileSystem) -> None:
    """
    A claim by reference did not check that the segment exists; here it is refused with a reason, and nothing is
    claimed.
    """
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(3))
        store.seal()
        for ref in (BundleRef(99, 0), BundleRef(0, 9_999)):
            with pytest.raises(BundleUnavailableError):
                subscriber.claim(ref)
        assert drain(store) == [0, 1, 2]


# ── caps and clocks ─────────────────────────────────────────────────────────────────────────────────────


def test_a_full_store_works_after_a_restart(fs: CrashFileSystem) -> None:
    """
    Upstream #2019, #2020: replay counted the log twice under the cap, so nothing could be sealed, deleted or
    ingested.
    """
    caps = {"size_cap_bytes": 12_000, "wal_rotate_bytes": 1_000, "wal_bytes_max": 60_000}
    count = 0
    for _ in range(4):
        store = opened(fs, **caps)
        store.register("s", start="earliest")
        with pytest.raises(CapacityError, match="size_cap"):
            for _ in range(1_000):
                store.ingest(numbered(count, 100), durable=True)
                count += 1
        fs = fs.clone_after_kill()
        with opened(fs, **caps) as store:
            store.seal()
            assert drain(store, most=3)
        fs = fs.clone_after_kill()
    with opened(fs, **caps) as store:
        rest = drain(store)
        assert rest[-1] == count - 1
        store.ingest(numbered(count, 100))


def test_the_count_of_log_bytes_does_not_drift(fs: CrashFileSystem) -> None:
    """Headers of rotated files were subtracted and never added: after many rotations the cap had no effect."""
    store = opened(fs)
    for turn in range(6):
        fill(store, range(20 * turn, 20 * turn + 20))
        drain(store, most=30)
        store.maintain()
        on_disk = sum(
            fs.stat(f"{ROOT}/{room}/{name}").size_bytes
            for room in ("wal", "segments")
            for name in fs.list_dir(f"{ROOT}/{room}")
            if name.endswith(".qseg") or (name.startswith("quiver.wal") and not name.endswith("cursor"))
        )
        assert on_disk <= store.disk_bytes <= on_disk + 2_000
    store.close()


def test_a_rotation_target_at_the_cap_is_refused() -> None:
    """A full log refused everything forever, also after a restart."""
    with pytest.raises(SettingsError, match=r"wal\.max_size"):
        Settings(wal_bytes_max=1 << 20, wal_rotate_bytes=1 << 20)


def test_an_entry_above_the_size_limit_is_refused(fs: CrashFileSystem) -> None:
    """Above 256 MiB the writer accepted an entry that the reader treated as a torn tail."""
    mib = 1 << 20
    huge = Bundle({30: pa.record_batch([pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(64 * mib), 5, [None, pa.allocate_buffer(5 * 64 * mib)]
    )], names=["b"])})  # fmt: skip
    assert huge.nbytes > ENTRY_BYTES_MAX
    with opened(fs, wal_bytes_max=1 << 30, segment_bytes_max=1 << 29) as store:
        with pytest.raises(InvalidBundleError, match="too large"):
            store.ingest(huge)
        fill(store, range(2))
        store.seal()
        assert drain(store) == [0, 1]


def test_a_segment_has_at_most_as_many_bundles_as_progress_can_store() -> None:
    """A segment exceeded 65,536 small bundles, its progress became unreadable, and all were delivered again."""
    assert Settings().segment_bundles_max == 65_536
    with pytest.raises(SettingsError, match="65536"):
        Settings(segment_bundles_max=65_537)


def test_maintenance_seals_by_age(fs: CrashFileSystem) -> None:
    """Only ingest checked the age of the open segment: the last bundles of a burst were never delivered."""
    clock = ManualClock()
    with opened(fs, clock, segment_open_s_max=5.0, segment_bytes_max=9_000, deliver_unsealed=False) as store:
        fill(store, range(2))
        clock.advance(4)
        store.maintain()
        assert drain(store) == []
        clock.advance(2)
        store.maintain()
        assert drain(store) == [0, 1]


# ── directories ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_process_on_a_directory_is_refused(tmp_path: Path) -> None:
    """There was no lock, and two writers corrupted one directory. The error names the owner."""
    with open_store(tmp_path, background=False), pytest.raises(DirectoryInUseError, match="pid"):
        open_store(tmp_path, background=False)


def test_the_config_hash_depends_on_the_slot_table(fs: CrashFileSystem) -> None:
    """It was a constant, so a log written with another table was read as if it had this one."""
    one = Adapter("metering", slots={1: "readings"})
    two = Adapter("metering", slots={1: "faults"})
    assert len({one.config_hash, two.config_hash, OTAP.config_hash}) == 3
    open_store(ROOT, fs=fs, adapter=one, clock=ManualClock(), background=False).close()
    with pytest.raises(UnsupportedFormatError, match="metering"):
        open_store(ROOT, fs=fs, adapter=two, clock=ManualClock(), background=False)


def test_headers_and_peer_are_kept_in_a_slot(fs: CrashFileSystem) -> None:
    """Upstream #4058: headers and peer of a request did not pass the buffer."""
    context = pa.record_batch({"header": ["x-tenant"], "value": ["7"]})
    with opened(fs) as store:
        store.ingest(Bundle({30: pa.record_batch({"n": [1]}), 63: context}), durable=True)
    with opened(fs.clone_after_crash(0)) as store:
        handle = store.register("s", start="earliest").next_bundle(timeout=0)
        assert handle is not None
        assert handle.bundle[63] == context
