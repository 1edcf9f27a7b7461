"""The durable retry set: saved entries survive any crash, unsaved ones are tried once more, and it has one writer."""

import pytest

from quiver.bundle import BundleRef
from quiver.errors import CapacityError, CorruptionError, DirectoryInUseError
from quiver.store.format.names import retry_set_name
from quiver.store.format.retry_set import RETRY_ENTRIES_MAX
from quiver.store.subscribers.progress_store import delete
from quiver.store.subscribers.retry_set import RetrySet, RetrySetReader, before_retries, load_retry_set
from quiver.store.subscribers.state import SegmentRef
from quiver.testing.clock import ManualClock
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/store"
A, B, C = BundleRef(1, 0), BundleRef(1, 1), BundleRef(3, 9)
PATH = f"{ROOT}/{retry_set_name('out')}"


def overwrite(disk, data):
    file = disk.create_or_truncate(PATH)
    file.pwrite(data, 0)
    file.close()


def test_attempts_and_times_survive_a_restart(disk, clock):
    """The count continues, and the first failure and the next retry keep their times."""
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
    """Nor by a save without changes."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    assert load_retry_set(disk, ROOT, "out") == ()
    assert (retries.save(), retries.save()) == (True, False)
    assert [entry.ref for entry in load_retry_set(disk, ROOT, "out")] == [A]
    assert (retries.resolved(A), retries.resolved(A), len(retries), A in retries) == (True, False, 0, False)
    retries.close()
    retries.close()
    assert load_retry_set(disk, ROOT, "out") == ()


def test_a_retry_set_has_one_writer(disk, clock):
    """Any process may read it; a second writer is refused until the first one closes it."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    with pytest.raises(DirectoryInUseError, match="retries of out"):
        RetrySet.open(disk, ROOT, "out", clock=clock)
    RetrySet.open(disk, ROOT, "other", clock=clock).close()
    retries.close()
    RetrySet.open(disk, ROOT, "out", clock=clock).close()


def test_a_full_set_refuses_new_bundles(disk, clock):
    """Those in the set may fail again; a new one is accepted when another was delivered."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock, entries_max=2)
    for ref in (A, B, A):
        retries.failed(ref, delay_s=1.0, reason="down")
    assert retries.is_full
    with pytest.raises(CapacityError):
        retries.failed(C, delay_s=1.0, reason="down")
    retries.resolved(B)
    retries.failed(C, delay_s=1.0, reason="down")


def test_a_failed_save_loses_nothing(disk, clock):
    """The next save writes the changes."""
    fs = FaultFileSystem(disk)
    retries = RetrySet.open(fs, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    fs.fail_on("sync")
    with pytest.raises(OSError, match="error"):
        retries.save()
    fs.heal()
    assert retries.save()
    assert [entry.ref for entry in load_retry_set(disk.clone_after_crash(0), ROOT, "out")] == [A]


def test_a_crash_at_any_step_leaves_the_state_before_or_after(disk, clock):
    """Never a mixture; after a save, the state after."""
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
def test_a_damaged_set_is_replaced(disk, clock, data):
    """Its bytes are kept; if a reader in order relies on it, all unresolved bundles are added again."""
    overwrite(disk, data)
    with pytest.raises(CorruptionError):
        load_retry_set(disk, ROOT, "out")
    with pytest.raises(CorruptionError):
        RetrySetReader(disk, ROOT, "out").refresh()
    with RetrySet.open(disk, ROOT, "out", unresolved=lambda: [A, C], clock=clock) as retries:
        assert [entry.ref for entry in retries.due()] == [A, C]
    assert [entry.ref for entry in load_retry_set(disk.clone_after_crash(0), ROOT, "out")] == [A, C]
    (copy,) = disk.list_dir(f"{ROOT}/quarantine")
    assert disk.read_all(f"{ROOT}/quarantine/{copy}", size_max=100) == data
    overwrite(disk, data)
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert len(retries) == 0


def test_a_damaged_set_with_a_long_backlog_is_replaced(disk, clock):
    """With the oldest bundles; later ones were not read yet."""
    overwrite(disk, b"not one")
    backlog = [BundleRef(segment, index) for segment in (2, 1) for index in range(40_000)]
    with RetrySet.open(disk, ROOT, "out", unresolved=lambda: backlog, clock=clock):
        pass
    assert [entry.ref for entry in load_retry_set(disk, ROOT, "out")] == sorted(backlog)[:RETRY_ENTRIES_MAX]


def test_a_reader_in_order_sees_the_bundles_in_the_set(disk, clock):
    """Those of the last save; without a file none. The file is read again only if it changed."""
    held = RetrySetReader(disk, ROOT, "out")
    assert (held.refresh(), held.refs) == (False, frozenset())
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.failed(A, delay_s=1.0, reason="down")
    retries.save()
    assert (held.refresh(), held.refresh(), held.refs) == (True, False, {A})
    clock.advance(1.0)
    retries.resolved(A)
    retries.save()
    assert (held.refresh(), held.refs) == (True, frozenset())
    disk.remove(PATH)
    assert (held.refresh(), held.refresh()) == (True, False)


def test_a_halt_lasts_until_the_set_is_opened_again(disk, clock):
    """Opening means that the exporter was restarted: the bundle is due, and the next save records it."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=0.0, reason="HTTP 400", is_halted=True)
    assert [entry.is_halted for entry in load_retry_set(disk, ROOT, "out")] == [True]
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        assert [(entry.attempts, entry.is_halted) for entry in retries.due()] == [(1, False)]
        assert retries.save()
        assert [entry.is_halted for entry in load_retry_set(disk, ROOT, "out")] == [False]


def test_an_entry_from_the_future_is_due_now(disk, clock):
    """The wall clock may have been set back."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=5.0, reason="down")
    earlier = ManualClock(now_ns=clock.now_ns() - 86_400_000_000_000)
    with RetrySet.open(disk, ROOT, "out", clock=earlier) as retries:
        assert [(entry.ref, entry.attempts) for entry in retries.due()] == [(A, 1)]
        assert retries.elapsed_s(A) == 0.0


def test_a_closed_set_writes_nothing(disk, clock):
    """Another process may own the file by then."""
    retries = RetrySet.open(disk, ROOT, "out", clock=clock)
    retries.close()
    retries.failed(A, delay_s=5.0, reason="down")
    assert retries.save() is False
    assert load_retry_set(disk, ROOT, "out") == ()


def test_the_set_is_removed_with_its_subscriber(disk, clock):
    """A new subscriber of the same name starts without it."""
    with RetrySet.open(disk, ROOT, "out", clock=clock) as retries:
        retries.failed(A, delay_s=1.0, reason="down")
    delete(disk, ROOT, "out")
    assert load_retry_set(disk.clone_after_crash(0), ROOT, "out") == ()


def test_a_set_in_memory_behaves_the_same(clock):
    """For an exporter whose attempts need not survive a restart."""
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
def test_before_held_steps_back_over_bundles_in_the_set(position, held, expected):
    """Across segments and gaps between them; it stops before the first resolved bundle."""
    segments = [SegmentRef(0, 4), SegmentRef(1, 0), SegmentRef(2, 2)]
    assert before_retries(BundleRef(*position), {BundleRef(*one) for one in held}, segments) == BundleRef(*expected)
