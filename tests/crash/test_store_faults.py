"""Every call to the disk fails once, and a crash follows an earlier one: nothing accepted is lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from lanes import every, with_stride
from quiver import (
    Bundle,
    CapacityError,
    InvalidBundleError,
    QuiverError,
    Settings,
    Store,
    StoreClosedError,
    StoreFailedError,
    Subscriber,
)
from quiver import open as open_store
from quiver.clock import SYSTEM_CLOCK
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import OPERATIONS, FaultFileSystem
from store_rig import acknowledge, number_of, open_manual, sealed_numbers

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/f"
SETTINGS = Settings(
    segment_bytes_max=1_200, wal_rotate_bytes=900, wal_bytes_max=20_000, wal_files_max=6, delete_grace_s=0.0
)
SETTINGS_WIDE = Settings(segment_bytes_max=4_000, wal_rotate_bytes=8_000, wal_bytes_max=80_000, delete_grace_s=0.0)
opened = partial(open_manual, settings=SETTINGS, root=ROOT)


def bundle_of(number: int, size: int = 0) -> Bundle:
    return Bundle({30: pa.record_batch({"n": pa.array([number], pa.int32()), "pad": ["x" * size]})})


def contents(store: Store) -> list[int]:
    """The contents of the segments, in order, after everything is sealed."""
    store.seal()
    return sealed_numbers(store)


class Run:
    """A run that continues after every documented error; any other error ends the test."""

    def __init__(self, fs: FileSystem, *, files_fail_for_ever: bool = False) -> None:
        self.fs = fs
        self.files_fail_for_ever = files_fail_for_ever
        self.clock = ManualClock()
        self.attempted = 0
        self.durable: list[int] = []
        self.acked: set[int] = set()
        self.errors: list[str] = []

    def ingest(self, store: Store, count: int) -> None:
        for _ in range(count):
            number = self.attempted
            self.attempted += 1
            try:
                store.ingest(bundle_of(number), durable=True)
            except (CapacityError, StoreFailedError) as error:
                self.errors.append(type(error).__name__)
            else:
                self.durable.append(number)

    def work(self) -> None:
        store = opened(self.fs, clock=self.clock)
        subscriber = store.register("s", start="earliest")
        self.ingest(store, 9)
        self.try_to(lambda: self.consume(subscriber, 4))
        self.try_to(store.maintain)
        self.ingest(store, 6)
        self.try_to(store.seal)
        self.try_to(lambda: self.consume(subscriber, 5))
        self.try_to(store.maintain)
        self.ingest(store, 2)
        self.clock.advance(2)
        # The fault is over. Either the store works again, or it reports that it must be reopened.
        self.try_to(store.maintain)
        before = len(self.errors)
        self.ingest(store, 2)
        if not self.files_fail_for_ever:
            assert self.errors[before:] != ["CapacityError"] * 2, "the fault is over, and there is still no space"
        self.try_to(store.close)

    def consume(self, subscriber: Subscriber, most: int) -> None:
        while most > 0 and (handle := subscriber.next_bundle(timeout=0)) is not None:
            number = number_of(handle.bundle)
            handle.ack()
            self.acked.add(number)
            most -= 1

    def try_to(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (QuiverError, OSError) as error:
            self.errors.append(type(error).__name__)


def check(run: Run, disk: CrashFileSystem, label: str) -> None:
    with opened(disk) as store:
        kept = contents(store)
        assert kept == sorted(set(kept)), f"{label}: {kept}"
        assert set(kept) <= set(range(run.attempted)), f"{label}: invented {kept}"
        got = acknowledge(store.register("s", start="earliest"))
        missing = set(run.durable) - set(got) - run.acked
        assert not missing, f"{label}: {sorted(missing)} are missing of {run.durable}; errors {run.errors}"
        store.maintain()
        store.ingest(bundle_of(9_999), durable=True)
        assert contents(store)[-1] == 9_999, label


def calls_of_a_sound_run() -> dict[str, int]:
    fs = FaultFileSystem(CrashFileSystem())
    run = Run(fs)
    run.work()
    assert not run.errors
    assert len(run.durable) == run.attempted
    return dict(fs.calls)


@with_stride(3)
@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (errno.EIO, True),
        (errno.ENOSPC, False),
        pytest.param(errno.EIO, False, marks=pytest.mark.slow),
        pytest.param(errno.ENOSPC, True, marks=pytest.mark.slow),
    ],
)
def test_any_call_may_fail(error: int, lasting: bool, stride: int) -> None:
    """The n-th call of each operation fails, once or from then on: no bundle is lost, repeated or reordered."""
    tried = 0
    for operation, calls in sorted(calls_of_a_sound_run().items()):
        assert operation in OPERATIONS
        for nth in every(stride if calls < 60 else 3 * stride, range(1, calls + 1)):
            disk = CrashFileSystem()
            short = 11 if nth % 2 else 0
            fs = FaultFileSystem(disk, {operation: nth}, error=error, short_write=short, forever=lasting)
            run = Run(fs, files_fail_for_ever=lasting)
            try:
                run.work()
            except (QuiverError, OSError) as refused:
                assert lasting or not run.durable, f"{operation} {nth}: {refused!r}"
            label = f"{operation} {nth} of {calls}, errno {error}"
            check(run, disk.clone_after_crash(0), f"{label}, power loss")
            check(run, disk.clone_after_kill(), f"{label}, kill")
            tried += 1
    assert tried > 100 // stride


@with_stride(3)
def test_a_power_loss_after_a_kill(stride: int) -> None:
    """
    A kill between a rename and its sync, a reopen, and then a power loss.

    The new name that the second run saw was not durable yet; the run must sync it before the log discards anything.
    Files that the first run removed without a sync must not reappear as new ones.
    """
    states: list[tuple[str, CrashFileSystem, list[int], set[int], int]] = []
    fs = CrashFileSystem()
    run = Run(fs)
    fs.on_step = lambda operation, path: states.append(
        (
            f"step {len(states)} ({operation} {path})",
            fs.clone_after_kill(),
            list(run.durable),
            set(run.acked),
            run.attempted,
        )
    )
    run.work()
    fs.on_step = None
    assert len(states) > 100
    for label, killed, durable, acked, attempted in every(stride, states):
        for seed in (0, 2):
            again = Run(killed)
            again.attempted, again.acked = attempted, acked
            disk = killed.clone_after_kill()
            store = opened(disk)
            store.ingest(bundle_of(attempted), durable=True)
            again.durable = [*durable, attempted]
            again.attempted += 1
            check(again, disk.clone_after_crash(seed), f"{label}, kill, power loss {seed}")


def test_a_failed_cursor_write_does_not_block_the_log() -> None:
    """The disk was full when the cursor should advance; when there is space again, the log has space, too."""
    fs = FaultFileSystem(CrashFileSystem(), error=errno.ENOSPC, path_part="cursor.tmp", forever=True)
    store = opened(fs)
    subscriber = store.register("s", start="earliest")
    fs.fail_on("pwrite")
    with pytest.raises(CapacityError, match=r"wal.*the disk of /f is full"):
        for number in range(1_000):
            store.ingest(bundle_of(number))
    fs.heal()
    store.ingest(bundle_of(2_000))
    store.seal()
    got = acknowledge(subscriber)
    assert got == [*range(len(got) - 1), 2_000]
    store.close()


def test_finished_segments_free_space_for_progress_files() -> None:
    """Replacing a progress file needs space; a finished segment in its grace period is deleted for it."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=errno.ENOSPC, path_part="quiver.sub.s.tmp")
    settings = Settings(segment_bytes_max=1_200, delete_grace_s=1e9)
    store = opened(fs, settings=settings)
    subscriber = store.register("s", start="earliest")
    for number in range(20):
        store.ingest(bundle_of(number))
    store.seal()
    first = store.internals.catalog.segments()[0].bundle_count
    acknowledge(subscriber, first)
    store.maintain()
    before = len(store.internals.catalog)
    acknowledge(subscriber, 1)
    fs.fail_on("pwrite")
    report = store.maintain()
    assert report.progress_written == 1
    assert len(store.internals.catalog) < before
    store.close()


def test_ingest_does_not_wait_for_a_segment_that_failed() -> None:
    """The thread that writes segments has ended: a waiting caller gets an error instead of waiting forever."""
    fs = FaultFileSystem(CrashFileSystem(), {"pwrite": 1}, path_part=".qseg", forever=True)
    store = open_store(ROOT, SETTINGS_WIDE, fs=fs, clock=SYSTEM_CLOCK, background=True)
    seen: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(1_000):
                store.ingest(bundle_of(number, 100))
        except StoreFailedError as error:
            seen.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert seen
    store.close()


def test_segment_only_reports_a_failed_seal() -> None:
    """Without a log, nothing more is accepted after a failed segment, and `close` reports it."""
    fs = FaultFileSystem(CrashFileSystem(), {"pwrite": 1}, path_part=".qseg", forever=True)
    settings = Settings(durability="segment_only", segment_bytes_max=1_200)
    store = opened(fs, settings=settings)
    with pytest.raises(StoreFailedError):
        for number in range(100):
            store.ingest(bundle_of(number))
    with pytest.raises(StoreFailedError):
        store.ingest(bundle_of(100))
    with pytest.raises(StoreFailedError):
        store.close()
    fs.heal()
    opened(fs, settings=settings).close()


def test_a_closed_store_does_not_write_to_its_directory() -> None:
    """A segment that it could not seal must not be written later, over one of the directory's new owner."""
    fs = FaultFileSystem(CrashFileSystem(), {"pwrite": 1}, error=errno.ENOSPC, path_part=".qseg", forever=True)
    clock = ManualClock()
    old = opened(fs, clock=clock)
    old.ingest(bundle_of(0))
    old.close()
    fs.heal()
    clock.advance(10)
    with opened(fs, clock=clock) as new:
        new.ingest(bundle_of(1))
        new.seal()
        for call in (old.seal, old.maintain):
            with pytest.raises(StoreClosedError):
                call()
        assert contents(new) == [0, 1]


def test_a_bundle_that_fits_the_caps_is_accepted() -> None:
    """Even if the active log file, which is not needed any more, takes too much of the space."""
    settings = Settings(segment_bytes_max=4_000, wal_rotate_bytes=8_000, wal_bytes_max=16_000, delete_grace_s=0.0)
    disk = CrashFileSystem()
    with opened(disk, settings=settings) as store:
        for number in range(15):
            store.ingest(bundle_of(number, 100))
        store.ingest(bundle_of(15, 14_500))
        assert contents(store) == list(range(16))
        with pytest.raises(InvalidBundleError, match=r"wal\.max_size"):
            store.ingest(bundle_of(16, 16_000))
    smaller = Settings(segment_bytes_max=1_000, wal_rotate_bytes=1_000, wal_bytes_max=2_000)
    with opened(disk, settings=smaller) as store:
        store.ingest(bundle_of(16))
        assert contents(store) == list(range(17))


def test_waiting_for_room_ends_without_a_background_thread() -> None:
    """It waits for the given time, and then the error names the cap."""
    clock = ManualClock()
    settings = Settings(segment_bytes_max=4_000, wal_rotate_bytes=8_000, wal_bytes_max=80_000, size_cap_bytes=20_000)
    store = opened(CrashFileSystem(), settings=settings, clock=clock)
    subscriber = store.register("s", start="earliest")
    before = clock.monotonic()
    accepted = 0
    with pytest.raises(CapacityError, match="size_cap"):
        for number in range(1_000):
            store.ingest(bundle_of(number, 100), timeout=5)
            accepted += 1
    assert 5 <= clock.monotonic() - before < 6
    store.seal()
    assert acknowledge(subscriber) == list(range(accepted))
    store.ingest(bundle_of(accepted, 100))  # acknowledged bundles free space, with or without maintenance
    with pytest.raises(InvalidBundleError, match=r"retention\.size_cap"):
        store.ingest(bundle_of(0, 30_000))
    store.close()
