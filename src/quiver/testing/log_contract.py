"""
The contract of append logs: the guarantees of every log of this library, regardless of format, addresses and tiers.

Inherit it and define how the log is opened. The tests crash the log at every step, fail it at every call and cut it at
every byte::

    class TestMyLog(AppendLogContract):
        def open_log(self, files):     # creates or recovers; returns an AppendLog
        def tail(self, fs):            # the file with the last record, and the end of that record

Configure the log so small that it rotates or seals within a dozen records. Deletion is not part of the contract: the
log must keep everything that the tests append.
"""

from __future__ import annotations

import errno
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol

from quiver.errors import CapacityError, QuiverError, StoreClosedError, StoreFailedError
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

__all__ = ["AppendLog", "AppendLogContract", "record"]

_SIZES = (0, 1, 17, 9000)
"""The last size spans several disk blocks: a power loss may preserve only its middle."""

_BYTES = bytes(range(256)) * 37
"""Enough bytes for the largest record, from each of the first 256 offsets on."""

_FAULTS = ("create", "pwrite", "truncate", "sync", "rename", "sync_dir")
_OPENING = ("create", "open", "map", "list", "read_all")
"""The operations that need a descriptor; `sync_dir` uses a spare one or none."""

_THREADS = 4
_EACH = 8


class AppendLog(Protocol):
    """The methods of an open log that the contract needs. The tests of a log adapt it to this protocol."""

    def append(self, record: bytes, *, durable: bool) -> int:
        """Append one record; return a position above all earlier ones. With *durable* the record is synced."""

    def sync(self) -> None:
        """Make everything appended so far durable."""

    def upkeep(self) -> None:
        """Advance the clock by some seconds and run maintenance: seal, rotate, checkpoint, purge, retry."""

    def read(self) -> list[bytes]:
        """Return all records in order, regardless of where they are stored."""

    def close(self) -> None:
        """Make everything durable and release all resources. Idempotent."""


def record(number: int) -> bytes:
    """Return the record with that number; all records differ, and none is part of another."""
    size = _SIZES[number % len(_SIZES)]
    start = number * 31 & 0xFF
    return b"<%d:%b>" % (number, _BYTES[start : start + size])


def _require(condition: bool, promise: str) -> None:  # noqa: FBT001
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


@dataclass
class _Run:
    """The records that a caller attempted, and the results so far: records 0 … logged - 1 were accepted."""

    attempted: int = 0
    logged: int = 0
    durable: int = 0
    positions: list[int] = field(default_factory=list)

    def append(self, log: AppendLog, *, durable: bool) -> None:
        number = self.attempted
        self.attempted += 1
        position = log.append(record(number), durable=durable)
        _require(position > max(self.positions, default=-1), f"position {position} is above {self.positions[-3:]}")
        self.positions.append(position)
        self.logged = number + 1
        if durable:
            self.durable = number + 1

    def sync(self, log: AppendLog) -> None:
        log.sync()
        self.durable = self.logged

    def promises(self) -> _Promises:
        return _Promises(self.attempted, self.logged, self.durable, tuple(self.positions))


@dataclass(frozen=True)
class _Promises:
    attempted: int
    logged: int
    durable: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class _Moment:
    """The disk directly before one step, after each kind of crash, and the promises up to then."""

    label: str
    promises: _Promises
    power_loss: tuple[CrashFileSystem, ...]
    kill: CrashFileSystem


class AppendLogContract(ABC):
    """Tests for every append log. Subclasses open the log and locate its tail."""

    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """Which unsynced bytes a power loss preserves: none, all, and two mixtures."""

    @abstractmethod
    def open_log(self, fs: FileSystem) -> AppendLog:
        """Create or recover the log on *fs*, without threads and without real-time waits."""

    @abstractmethod
    def tail(self, fs: FileSystem) -> tuple[str, int]:
        """Return the file with the last record, and the end of that record in it."""

    # ── the workload ─────────────────────────────────────────────────────────────────────────────────────

    def _work(self, fs: FileSystem, run: _Run) -> None:
        for durable_every in (3, 1, 4):
            log = self.open_log(fs)
            for turn in range(4):
                run.append(log, durable=turn % durable_every == 0)
                if turn % 3 == 2:
                    log.upkeep()
            run.sync(log)
            log.close()

    def _moments(self) -> list[_Moment]:
        fs = CrashFileSystem()
        run = _Run()
        moments: list[_Moment] = []

        def before(operation: str, path: str) -> None:
            moments.append(
                _Moment(
                    f"step {len(moments)} ({operation} {path})",
                    run.promises(),
                    tuple(fs.clone_after_crash(seed) for seed in self.seeds),
                    fs.clone_after_kill(),
                )
            )

        fs.on_step = before
        self._work(fs, run)
        fs.on_step = None
        return moments

    @contextmanager
    def _opened(self, fs: FileSystem) -> Iterator[AppendLog]:
        log = self.open_log(fs)
        try:
            yield log
        finally:
            log.close()

    # ── without failures ──────────────────────────────────────────────────────────────────────────────────

    def test_records_are_read_back_in_order(self) -> None:
        """While open and after reopening, every record is read completely, once and in order; positions only grow."""
        fs = CrashFileSystem()
        run = _Run()
        self._work(fs, run)
        expected = [record(number) for number in range(run.attempted)]
        with self._opened(fs) as log:
            _require(log.read() == expected, "all records exist after reopening")
            run.append(log, durable=False)
            _require(log.read() == [*expected, record(run.attempted - 1)], "the last record is visible immediately")

    def test_opening_an_empty_log_twice_keeps_it_empty(self) -> None:
        """A log without appends has no records, however often it is opened."""
        fs = CrashFileSystem()
        for _ in range(3):
            with self._opened(fs) as log:
                _require(log.read() == [], "the log is empty")

    def test_threads_append_concurrently(self) -> None:
        """The records of each thread stay in order, and all durable records survive a power loss."""
        fs = CrashFileSystem()
        log = self.open_log(fs)
        errors: list[BaseException] = []

        def work(worker: int) -> None:
            try:
                for turn in range(_EACH):
                    log.append(record(worker * _EACH + turn), durable=True)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _require(not errors, f"no append is refused: {errors}")
        lost = fs.clone_after_crash(0)
        log.close()
        with self._opened(lost) as again:
            found = [_number_of(one) for one in again.read()]
        _require(sorted(found) == list(range(_THREADS * _EACH)), f"all records exist: {found}")
        for worker in range(_THREADS):
            own = [number for number in found if number // _EACH == worker]
            _require(own == sorted(own), f"the order of thread {worker} is kept: {own}")

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

    def test_a_crash_at_any_step_keeps_what_was_acknowledged(self) -> None:
        """
        After a power loss all durable records exist, after a kill all accepted ones. No record is invented or partial,
        the order is preserved, and the log continues after the surviving records.
        """
        moments = self._moments()
        _require(len(moments) > 20, "the workload has steps to crash at")
        for moment in moments:
            for seed, fs in zip(self.seeds, moment.power_loss, strict=True):
                label = f"{moment.label}, power loss {seed}"
                self._check(fs, moment.promises, label, promised=moment.promises.durable)
            self._check(moment.kill, moment.promises, f"{moment.label}, kill", promised=moment.promises.logged)

    def _check(self, fs: CrashFileSystem, promises: _Promises, label: str, *, promised: int) -> None:
        log = self.open_log(fs)
        found = _numbers(log.read(), promises.attempted, promised, label)
        again = fs.clone_after_crash(0)
        position = log.append(record(promises.attempted), durable=True)
        highest = max((promises.positions[number] for number in found if number < promises.logged), default=-1)
        _require(
            position > highest, f"{label}: position {position} is above {highest}, the highest of existing records"
        )
        expected = [*found, promises.attempted]
        lost = fs.clone_after_crash(0)
        seen = [_number_of(one) for one in log.read()]
        _require(seen == expected, f"{label}: it continues after the survivors: {expected}, not {seen}")
        log.close()
        # Recovery makes recovered records durable: another crash directly after it changes nothing.
        for disk, numbers in ((again, found), (lost, expected)):
            with self._opened(disk) as recovered:
                seen = [_number_of(one) for one in recovered.read()]
                _require(seen == numbers, f"{label}: recovering twice equals once: {numbers}, not {seen}")

    def test_a_crash_during_recovery_is_recovered_from(self) -> None:
        """A second crash at any step of a recovery loses no record that survived the first one."""
        for moment in self._moments()[::7]:
            fs = moment.power_loss[-1]
            clones: list[CrashFileSystem] = []
            twin = fs.clone_after_kill()
            fs.on_step = lambda _op, _path, fs=fs, clones=clones: clones.append(fs.clone_after_crash(2))
            self.open_log(fs)
            fs.on_step = None
            with self._opened(twin) as log:
                expected = log.read()
            for clone in clones:
                with self._opened(clone) as log:
                    _require(log.read() == expected, f"{moment.label}: a crash in recovery changes nothing")

    # ── refusals ─────────────────────────────────────────────────────────────────────────────────────────

    def test_a_closed_log_refuses(self) -> None:
        """`close` makes everything durable and is idempotent; afterwards appends are refused."""
        fs = CrashFileSystem()
        log = self.open_log(fs)
        log.append(record(0), durable=False)
        log.close()
        log.close()
        try:
            log.append(record(1), durable=False)
        except StoreClosedError:
            pass
        else:
            raise AssertionError("broken promise: a closed log raises StoreClosedError")
        with self._opened(fs.clone_after_crash(0)) as again:
            _require(again.read() == [record(0)], "closing makes durable")

    def test_a_failed_log_refuses_until_it_is_opened_again(self) -> None:
        """
        For every failing call: a log that raised StoreFailedError refuses all appends, and acknowledged records exist
        when it is opened again.
        """
        for operation in _FAULTS:
            nth = 1
            while self._fail(operation, nth):
                nth += 1

    def _fail(self, operation: str, nth: int) -> bool:
        disk = CrashFileSystem()
        fs = FaultFileSystem(disk, {operation: nth}, error=errno.EIO)
        run = _Run()
        label = f"{operation} {nth} fails"
        with suppress(OSError):  # the call failed while the log was being opened
            self._work_until_failure(disk, fs, run, operation, nth)
        if fs.calls[operation] < nth:
            return False
        promises = run.promises()
        for seed in self.seeds:
            with self._opened(disk.clone_after_crash(seed)) as log:
                _numbers(log.read(), promises.attempted, promises.durable, f"{label}, power loss {seed}")
        return True

    def _work_until_failure(
        self, disk: CrashFileSystem, fs: FaultFileSystem, run: _Run, operation: str, nth: int
    ) -> None:
        label = f"{operation} {nth} failed"
        watched = True
        for _ in range(2):
            log = self.open_log(fs)
            try:
                for turn in range(8):
                    run.append(log, durable=turn % 2 == 0)
                    if watched and run.durable == run.attempted and fs.calls[operation] >= nth:
                        # Immediately: a later write of the same block would hide the loss of the first.
                        watched = False
                        with self._opened(disk.clone_after_crash(0)) as other:
                            _numbers(other.read(), run.attempted, run.durable, f"{label}, but the log continued")
                    if turn % 3 == 2:
                        log.upkeep()
            except StoreFailedError:
                _require_poisoned(log, label)
                with suppress(QuiverError):
                    log.close()
                return
            try:
                log.close()
            except StoreFailedError:
                return

    def test_a_full_disk_is_temporary(self) -> None:
        """A write to a full disk raises CapacityError, stores nothing, and succeeds when it is repeated later."""
        nth = 1
        while True:
            disk = CrashFileSystem()
            fs = FaultFileSystem(disk, error=errno.ENOSPC, short_write=5)
            log = self.open_log(fs)
            fs.fail_on("pwrite", nth)
            calls_before = fs.calls["pwrite"]
            run = _Run()
            for turn in range(12):
                if not _appended(run, log, durable=turn % 2 == 0):
                    log.upkeep()
                    _require(
                        _appended(run, log, durable=turn % 2 == 0),
                        f"write {nth} found a full disk, which has space now",
                    )
                if turn % 3 == 2:
                    log.upkeep()
            expected = [record(number) for number in range(12)]
            _require(log.read() == expected, f"write {nth} finds a full disk: each record exists once")
            reached = fs.calls["pwrite"] - calls_before >= nth
            log.close()
            with self._opened(disk.clone_after_crash(0)) as again:
                _require(again.read() == expected, f"write {nth} found a full disk: all records exist after a crash")
            if not reached:
                return
            nth += 1

    def test_a_lack_of_descriptors_is_temporary(self) -> None:
        """While no file can be opened, the log may raise CapacityError. It loses nothing, and continues afterwards."""
        for operation, is_brief in product(_OPENING, (True, False)):
            nth = 1
            while self._runs_short(operation, nth, is_brief=is_brief):
                nth += 1 + nth // 4 if is_brief else nth

    def _runs_short(self, operation: str, nth: int, *, is_brief: bool) -> bool:
        disk = CrashFileSystem()
        fs = FaultFileSystem(disk, error=errno.EMFILE, forever=not is_brief)
        label = f"{operation} {nth} {'finds' if is_brief else 'and those after it find'} no descriptor"
        log = self.open_log(fs)
        calls_before = fs.calls[operation]
        fs.fail_on(operation, nth)
        run = _Run()
        for turn in range(12):
            while not _appended(run, log, durable=turn % 2 == 0):
                _require(fs.calls[operation] - calls_before >= nth, f"{label}: nothing is refused before")
                fs.heal()
                _maintained(log)
            if turn % 3 == 2:
                _maintained(log)
        fs.heal()
        log.upkeep()
        log.sync()
        reached = fs.calls[operation] - calls_before >= nth
        expected = [record(number) for number in range(12)]
        _require(log.read() == expected, f"{label}: each record exists once")
        log.close()
        with self._opened(disk.clone_after_crash(0)) as again:
            _require(again.read() == expected, f"{label}: all records exist after a crash")
        return reached

    # ── the tail ─────────────────────────────────────────────────────────────────────────────────────────

    def test_a_truncated_tail_keeps_the_complete_records(self) -> None:
        """
        The last file is truncated at every byte of its last record, with nothing, zeros or junk after the cut: exactly
        the complete records are left.
        """
        fs = CrashFileSystem()
        log = self.open_log(fs)
        ends: list[tuple[str, int]] = []
        for number in range(3):
            log.append(record(number), durable=True)
            ends.append(self.tail(fs))
        path, last = ends[-1]
        first = ends[-2][1] if ends[-2][0] == path else 0
        for cut in range(first, last):
            disk = fs.clone_after_kill()
            _cut(disk, path, cut, filler=(b"", bytes(64), b"\xff" * 5)[cut % 3])
            complete = sum(file != path or end <= cut for file, end in ends)
            with self._opened(disk) as again:
                seen = again.read()
                _require(
                    seen == [record(number) for number in range(complete)],
                    f"cut at {cut}: {complete} are left, not {seen}",
                )
        log.close()


def _appended(run: _Run, log: AppendLog, *, durable: bool) -> bool:
    try:
        run.append(log, durable=durable)
    except CapacityError:
        run.attempted -= 1
        return False
    return True


def _maintained(log: AppendLog) -> None:
    with suppress(OSError, CapacityError):  # an interrupted pass runs again
        log.upkeep()


def _require_poisoned(log: AppendLog, label: str) -> None:
    for durable in (False, True):
        try:
            log.append(record(0), durable=durable)
        except StoreFailedError:
            continue
        raise AssertionError(f"broken promise: {label}: a failed log takes nothing more")


def _cut(fs: FileSystem, path: str, offset: int, *, filler: bytes) -> None:
    file = fs.open_write(path)
    file.truncate(offset)
    file.pwrite(filler, offset)
    file.close()


def _number_of(found: bytes) -> int:
    number = int(found[1:].partition(b":")[0]) if found.startswith(b"<") else -1
    _require(number >= 0 and found == record(number), f"a record is complete and unchanged: {found[:40]!r}")
    return number


def _numbers(found: Sequence[bytes], attempted: int, promised: int, label: str) -> list[int]:
    """Check that the records are in order, unique, and include the first *promised*; return their numbers."""
    numbers = [_number_of(one) for one in found]
    _require(numbers == sorted(set(numbers)), f"{label}: in order, and none twice: {numbers}")
    _require(all(number < attempted for number in numbers), f"{label}: nothing is invented: {numbers} of {attempted}")
    missing = set(range(promised)) - set(numbers)
    _require(not missing, f"{label}: {promised} were promised, {sorted(missing)} are missing")
    return numbers
