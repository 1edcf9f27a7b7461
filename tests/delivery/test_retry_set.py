"""The durable retry set: what was saved survives anything, what was not is tried once more; nobody else changes it."""

import pytest

from quiver.bundle import BundleRef
from quiver.errors import CapacityError, CorruptionError, DirectoryInUseError
from quiver.store.format.names import retry_set_name
from quiver.store.format.retry_set import RETRY_ENTRIES_MAX
from quiver.store.reading.retry_set import HeldBundles, RetrySet, before_held, load_retry_set
from quiver.store.subscribers.progress_store import delete
from quiver.store.subscribers.state import SegmentRef
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/store"
A, B, C = BundleRef(1, 0), BundleRef(1, 1), BundleRef(3, 9)
PATH = f"{ROOT}/{retry_set_name('out')}"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def disk(clock):
    disk = CrashFileSystem(clock=clock)
    disk.make_dirs(ROOT)
    return disk


def overwrite(disk, data):
    file = disk.create_or_truncate(PATH)
    file.pwrite(data, 0)
    file.close()


def test_attempts_and_times_outlive_the_process(disk, clock):
    """The count goes on, the first failure keeps its time, the next try is due when it was due."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        first = retries.failed(A, delay_s=10.0, reason="down")
        retries.failed(B, delay_s=1.0, reason="down")
        retries.save()
    clock.advance(4.0)
    with RetrySet.open(disk.clone_after_kill(), ROOT, "out", clock=clock) as retries:
        assert [entry.ref for entry in retries.entries()] == [B, A]
        assert [entry.ref for entry in retries.due()] == [B]
        assert retries.wait_s(A) == pytest.approx(6.0)
        assert (retries.wait_s(C), retries.elapsed_s(A), retries.elapsed_s(C)) == (0.0, pytest.approx(4.0), 0.0)
        again = retries.failed(A, delay_s=20.0, reason="still down")
    assert (again.attempts, again.first_failed_at_ns, again.reason) == (2, first.first_failed_at_ns, "still down")


def test_nothing_is_written_before_save(disk, clock):
    """And nothing when nothing changed."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    assert load_retry_set(disk, ROOT, "out") == ()
    assert (retries.save(), retries.save()) == (True, False)
    assert [entry.ref for entry in load_retry_set(disk, ROOT, "out")] == [A]
    assert (retries.resolved(A), retries.resolved(A), len(retries), A in retries) == (True, False, 0, False)
    retries.close()
    retries.close()
    assert load_retry_set(disk, ROOT, "out") == ()


def test_one_exporter_changes_it(disk, clock):
    """Anybody reads it; a second writer is refused until the first has let go."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    with pytest.raises(DirectoryInUseError, match="retries of out"):
        RetrySet.open(disk, ROOT, "out", clock=clock)
    RetrySet.open(disk, ROOT, "other", clock=clock).close()
    retries.close()
    RetrySet.open(disk, ROOT, "out", clock=clock).close()


def test_it_takes_no_more_than_it_holds(disk, clock):
    """What is in may fail again; what is new is refused, and finds room when another is delivered."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock, entries_max=2)
    for ref in (A, B, A):
        retries.failed(ref, delay_s=1.0, reason="down")
    assert retries.is_full
    with pytest.raises(CapacityError):
        retries.failed(C, delay_s=1.0, reason="down")
    retries.resolved(B)
    retries.failed(C, delay_s=1.0, reason="down")


def test_a_disk_that_refuses_loses_nothing(disk, clock):
    """What was not written is written by the next save."""
    files = FaultFileSystem(disk)
    retries = RetrySet.open(files, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    files.fail_on("sync")
    with pytest.raises(OSError, match="error"):
        retries.save()
    files.heal()
    assert retries.save()
    assert [entry.ref for entry in load_retry_set(disk.clone_after_crash(0), ROOT, "out")] == [A]


def test_a_crash_at_any_step_leaves_the_state_before_or_after(disk, clock):
    """Never neither, and never a mixture; after save, the state after."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    retries.save()
    retries.resolved(A)
    retries.failed(B, delay_s=2.0, reason="down")
    retries.failed(C, delay_s=2.0, reason="down")
    states = []
    disk.on_step = lambda *_: states.extend(disk.clone_after_crash(seed) for seed in range(8))
    retries.save()
    disk.on_step = None
    assert len(states) >= 32
    for state in states:
        with RetrySet.open(state, ROOT, "out", clock=clock) as again:
            assert {entry.ref for entry in again.entries()} in ({A}, {B, C})
    for seed in range(8):
        assert {entry.ref for entry in load_retry_set(disk.clone_after_crash(seed), ROOT, "out")} == {B, C}


@pytest.mark.parametrize("data", [b"not one", b"QUIVER\0R\1\0", b""])
def test_a_damaged_set_begins_anew(disk, clock, data):
    """The bytes are kept; where a reader in order relies on it, all that is not resolved is held."""
    overwrite(disk, data)
    with pytest.raises(CorruptionError):
        load_retry_set(disk, ROOT, "out")
    with pytest.raises(CorruptionError):
        HeldBundles(disk, ROOT, "out").look()
    with RetrySet.open(disk, ROOT, "out", unresolved=lambda: [A, C], clock=clock) as retries:
        assert [entry.ref for entry in retries.due()] == [A, C]
    assert [entry.ref for entry in load_retry_set(disk.clone_after_crash(0), ROOT, "out")] == [A, C]
    (copy,) = disk.list_dir(f"{ROOT}/quarantine")
    assert disk.read_all(f"{ROOT}/quarantine/{copy}", size_max=100) == data
    overwrite(disk, data)
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert len(retries) == 0


def test_a_damaged_set_before_a_long_backlog_begins_anew_too(disk, clock):
    """With the oldest; those behind have not been read yet."""
    overwrite(disk, b"not one")
    backlog = [BundleRef(segment, index) for segment in (2, 1) for index in range(40_000)]
    with RetrySet.open(disk, ROOT, "out", unresolved=lambda: backlog, clock=clock):
        pass
    assert [entry.ref for entry in load_retry_set(disk, ROOT, "out")] == sorted(backlog)[:RETRY_ENTRIES_MAX]


def test_who_acknowledges_in_order_sees_what_is_held(disk, clock):
    """The newest set that was saved; without a file nothing is held. It is read again only when it changed."""
    held = HeldBundles(disk, ROOT, "out")
    assert (held.look(), held.refs) == (False, frozenset())
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    retries.save()
    assert (held.look(), held.look(), held.refs) == (True, False, {A})
    clock.advance(1.0)
    retries.resolved(A)
    retries.save()
    assert (held.look(), held.refs) == (True, frozenset())
    disk.remove(PATH)
    assert (held.look(), held.look()) == (True, False)


def test_a_halt_lasts_until_the_set_is_opened_again(disk, clock):
    """Who opens it is the exporter that was started again: the bundle is due, and the file says so when it is saved."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=0.0, reason="HTTP 400", is_halted=True)
    assert [entry.is_halted for entry in load_retry_set(disk, ROOT, "out")] == [True]
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert [(entry.attempts, entry.is_halted) for entry in retries.due()] == [(1, False)]
        assert retries.save()
        assert [entry.is_halted for entry in load_retry_set(disk, ROOT, "out")] == [False]


def test_a_clock_that_was_set_back_makes_nobody_wait(disk, clock):
    """What failed in the future is due now."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=5.0, reason="down")
    earlier = ManualClock(now_ns=clock.now_ns() - 86_400_000_000_000)
    with RetrySet.open(disk, ROOT, "out", clock=earlier) as retries:
        assert [(entry.ref, entry.attempts) for entry in retries.due()] == [(A, 1)]
        assert retries.elapsed_s(A) == 0.0


def test_once_closed_it_writes_nothing(disk, clock):
    """The file may be somebody else's by then."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.close()
    retries.failed(A, delay_s=5.0, reason="down")
    assert retries.save() is False
    assert load_retry_set(disk, ROOT, "out") == ()


def test_it_goes_with_its_subscriber(disk, clock):
    """A namesake begins without it."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=1.0, reason="down")
    delete(disk, ROOT, "out")
    assert load_retry_set(disk.clone_after_crash(0), ROOT, "out") == ()


def test_in_memory_it_is_the_same_without_a_file(clock):
    """For an exporter whose attempts need not outlive it."""
    retries = RetrySet(clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    assert (retries.save(), retries.path, A in retries) == (False, None, True)
    retries.close()


@pytest.mark.parametrize(
    ("position", "held", "expected"),
    [
        ((2, 0), [], (2, 0)),
        ((2, 2), [(2, 1)], (2, 1)),
        ((2, 2), [(2, 0)], (2, 2)),
        ((2, 1), [(2, 0), (0, 3), (0, 2)], (0, 2)),
        ((0, 1), [(0, 0)], (0, 0)),
        ((5, 0), [(2, 1)], (2, 1)),
    ],
)
def test_a_batch_that_was_not_committed_may_ask_again(position, held, expected):
    """Directly before the position, over segments and gaps of them; nothing that is resolved comes with it."""
    segments = [SegmentRef(0, 4), SegmentRef(1, 0), SegmentRef(2, 2)]
    assert before_held(BundleRef(*position), {BundleRef(*one) for one in held}, segments) == BundleRef(*expected)
