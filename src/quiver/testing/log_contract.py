"""
The contract of an append log: what every log of this house promises, whatever its format, addresses and tiers.

Inherit it, say how the log is opened, and it is crashed at every step, failed at every call and cut at every byte::

    class TestMyLog(AppendLogContract):
        def open_log(self, files):     # creates or recovers; returns an AppendLog
        def tail(self, files):         # the file that took the last record, and the offset behind that record

The log should be set so small that a dozen records make it rotate or seal. Deleting is not part of it: nothing
that the contract appended may be released by anybody.
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
"""The last spans blocks of the disk: a power loss may keep the middle of it and not the rest."""

_BYTES = bytes(range(256)) * 37
"""From any of its first 256 places on as many as the largest record has."""

_FAULTS = ("create", "pwrite", "truncate", "sync", "rename", "sync_dir")
_OPENING = ("create", "open", "map", "list", "read_all")
"""What takes a descriptor; `sync_dir` finds one, or does without."""

_THREADS = 4
_EACH = 8


class AppendLog(Protocol):
    """What the contract asks of an open log. Tests of a log adapt their own to it."""

    def append(self, record: bytes, *, durable: bool) -> int:
        """Append one record; return a position that is above all returned before. With *durable* it is synced."""

    def sync(self) -> None:
        """Make everything appended so far durable."""

    def upkeep(self) -> None:
        """
        Let some seconds pass, and do by hand what the background would: seal, rotate, checkpoint,
        purge, try again.
        """

    def read(self) -> list[bytes]:
        """Return every record there is, in order, wherever it lies by now."""

    def close(self) -> None:
        """Make everything durable and let go. Idempotent."""


def record(number: int) -> bytes:
    """Return the record with that number; no two are alike, and no part of one is another."""
    size = _SIZES[number % len(_SIZES)]
    start = number * 31 & 0xFF
    return b"<%d:%b>" % (number, _BYTES[start : start + size])


def _require(condition: bool, promise: str) -> None:  # noqa: FBT001
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


@dataclass
class _Run:
    """What a caller tried, and what it was told at each moment: records 0 … logged - 1 were accepted."""

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
    """The disk just before one step, as each kind of crash leaves it, and what had been promised by then."""

    label: str
    promises: _Promises
    power_loss: tuple[CrashFileSystem, ...]
    kill: CrashFileSystem


class AppendLogContract(ABC):
    """What every append log does. Subclasses open the log and say where its tail is."""

    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """Choices of what a power loss keeps of unsynced bytes: nothing, all, and two mixtures."""

    @abstractmethod
    def open_log(self, fs: FileSystem) -> AppendLog:
        """Create or recover the log on *fs*, without threads of its own and without waiting for real time."""

    @abstractmethod
    def tail(self, fs: FileSystem) -> tuple[str, int]:
        """Return the file that holds the last record, and the offset behind that record in it."""

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

    # ── without trouble ──────────────────────────────────────────────────────────────────────────────────

    def test_what_is_appended_is_read_back_in_order(self) -> None:
        """Live, after closing and after opening again: every record whole, once, in order; positions only grow."""
        fs = CrashFileSystem()
        run = _Run()
        self._work(fs, run)
        expected = [record(number) for number in range(run.attempted)]
        with self._opened(fs) as log:
            _require(log.read() == expected, "all is there after opening again")
            run.append(log, durable=False)
            _require(log.read() == [*expected, record(run.attempted - 1)], "what was appended last is there at once")

    def test_opening_an_empty_log_twice_keeps_it_empty(self) -> None:
        """A log that nobody appended to has no records, however often it was opened."""
        fs = CrashFileSystem()
        for _ in range(3):
            with self._opened(fs) as log:
                _require(log.read() == [], "nothing is there")

    def test_threads_append_side_by_side(self) -> None:
        """Each thread's records are kept in its order; all that were confirmed as durable survive a power loss."""
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
        _require(not errors, f"nobody is refused: {errors}")
        lost = fs.clone_after_crash(0)
        log.close()
        with self._opened(lost) as again:
            found = [_number_of(one) for one in again.read()]
        _require(sorted(found) == list(range(_THREADS * _EACH)), f"all are there: {found}")
        for worker in range(_THREADS):
            own = [number for number in found if number // _EACH == worker]
            _require(own == sorted(own), f"the order of thread {worker} is kept: {own}")

    # ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

    def test_a_crash_at_any_step_keeps_what_was_acknowledged(self) -> None:
        """
        After power loss all that was durable is there, after a kill all that was accepted; nothing is invented,
        half a record is never seen, order is kept, and the log goes on behind what survived.
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
        _require(position > highest, f"{label}: position {position} is above {highest}, that of a record that is there")
        expected = [*found, promises.attempted]
        lost = fs.clone_after_crash(0)
        seen = [_number_of(one) for one in log.read()]
        _require(seen == expected, f"{label}: it goes on behind what survived: {expected}, not {seen}")
        log.close()
        # Recovery makes durable what it brought back: another crash right behind it changes nothing.
        for disk, numbers in ((again, found), (lost, expected)):
            with self._opened(disk) as recovered:
                seen = [_number_of(one) for one in recovered.read()]
                _require(seen == numbers, f"{label}: recovering twice equals once: {numbers}, not {seen}")

    def test_a_crash_during_recovery_is_recovered_from(self) -> None:
        """A second crash at any step of a recovery loses nothing that the first one left."""
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
        """`close` makes everything durable, may be repeated, and from then on nothing is taken."""
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
        Whatever call fails, and whenever: a log that said StoreFailedError takes nothing more, and what it had
        acknowledged is there when it is opened again.
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
        with suppress(OSError):  # while it was being opened
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
                        # At once: a later write of the same block would hide that the first was lost.
                        watched = False
                        with self._opened(disk.clone_after_crash(0)) as other:
                            _numbers(other.read(), run.attempted, run.durable, f"{label}, yet it went on")
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

    def test_a_full_disk_passes(self) -> None:
        """A write that finds no room raises CapacityError, keeps nothing, and succeeds when it is repeated later."""
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
                    _require(_appended(run, log, durable=turn % 2 == 0), f"write {nth} found no room, but now there is")
                if turn % 3 == 2:
                    log.upkeep()
            expected = [record(number) for number in range(12)]
            _require(log.read() == expected, f"write {nth} finds no room: each record is there once")
            reached = fs.calls["pwrite"] - calls_before >= nth
            log.close()
            with self._opened(disk.clone_after_crash(0)) as again:
                _require(again.read() == expected, f"write {nth} found no room: all are there after a crash")
            if not reached:
                return
            nth += 1

    def test_a_lack_of_descriptors_passes(self) -> None:
        """While no file can be opened, the log may raise CapacityError. It loses nothing, and goes on afterwards."""
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
        _require(log.read() == expected, f"{label}: each record is there once")
        log.close()
        with self._opened(disk.clone_after_crash(0)) as again:
            _require(again.read() == expected, f"{label}: all are there after a crash")
        return reached

    # ── the tail ─────────────────────────────────────────────────────────────────────────────────────────

    def test_a_tail_cut_anywhere_leaves_the_whole_records_before_it(self) -> None:
        """
        Cut the last file at every byte of its last record, and let nothing, zeros or junk stand behind the cut:
        what is left is exactly the records that are whole.
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
            whole = sum(file != path or end <= cut for file, end in ends)
            with self._opened(disk) as again:
                seen = again.read()
                _require(
                    seen == [record(number) for number in range(whole)], f"cut at {cut}: {whole} are left, not {seen}"
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
    with suppress(OSError, CapacityError):  # a pass that is cut off is made again
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
    _require(number >= 0 and found == record(number), f"a record is whole and as it was written: {found[:40]!r}")
    return number


def _numbers(found: Sequence[bytes], attempted: int, promised: int, label: str) -> list[int]:
    """Return the numbers of the records found, which are in order, once each, and include the first *promised*."""
    numbers = [_number_of(one) for one in found]
    _require(numbers == sorted(set(numbers)), f"{label}: in order, and none twice: {numbers}")
    _require(all(number < attempted for number in numbers), f"{label}: nothing is invented: {numbers} of {attempted}")
    missing = set(range(promised)) - set(numbers)
    _require(not missing, f"{label}: {promised} were promised, {sorted(missing)} are missing")
    return numbers
