"""
Read-only reports on slots. Safe while a sender runs.

A sender continues while a slot is read: it appends frames, removes segments from the oldest on, and replaces a segment
by a shorter one. So the newest segment is read first: concurrent changes then only complete the older ones, and a
segment that disappears was confirmed. Bytes that are not a frame may be a write in progress: they are a problem only if
they persist.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileStat, FileSystem
from quiver.primitives.disk.lock import is_held
from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason
from quiver.primitives.scan import Frame
from quiver.qwp.format.names import FAILED_NAME, LOCK_NAME, SYMBOLS_NAME, is_segment_name, is_sender_id
from quiver.qwp.format.newer import decode_symbol_file
from quiver.qwp.format.segment import scan_segment
from quiver.qwp.slots.dead_letters import count_dead_letters
from quiver.qwp.slots.recovery import Scanned, read_watermark, scan_file
from quiver.qwp.slots.slot import holder_of_slot
from quiver.qwp.wire.column_types import ColumnType
from quiver.qwp.wire.decoded import SCALE_KEY, TYPE_KEY, Table
from quiver.qwp.wire.decoder import SymbolDictionary, decode_message

__all__ = [
    "FrameReport",
    "KnownSegment",
    "SlotReport",
    "frames_of_slot",
    "inspect_slot",
    "rows_by_table",
    "rows_of",
    "slots_below",
]

_ATTEMPTS_MAX = 5
_FAILED_BYTES_MAX = 1 << 20
_SYMBOLS_BYTES_MAX = 512 << 20


@dataclass(slots=True)
class SlotReport:
    """
    One slot. Frames are identified by number; `confirmed` is -1 if none are.

    Attributes:
        sender_id: its name.
        segments: path → number of frames.
        size_bytes: the size of the segments on disk, including reserved space.
        first_fsn: the number of the oldest frame.
        next_fsn: the number after the newest.
        confirmed: the last number that the server has confirmed, from the watermark.
        backlog_bytes: the size of the unconfirmed messages.
        oldest_us: when the oldest segment with unconfirmed frames was created, microseconds since the epoch.
        holder: the pid of the last holder; it may have released the slot.
        is_held: whether a process holds the slot now; None where the system does not report it.
        failed: why drainers ignore it; None if they do not.
        dead_letters: the number of dead letters.
        problem: why it cannot be read, or not completely; None if it can.
        damaged_copies: copies of damaged files, by path.
    """

    sender_id: str
    segments: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    first_fsn: int = 0
    next_fsn: int = 0
    confirmed: int = -1
    backlog_bytes: int = 0
    oldest_us: int | None = None
    holder: str | None = None
    is_held: bool | None = None
    failed: str | None = None
    dead_letters: int = 0
    problem: str | None = None
    damaged_copies: tuple[str, ...] = ()

    @property
    def backlog(self) -> int:
        """The number of unconfirmed frames."""
        return max(0, self.next_fsn - max(self.first_fsn, self.confirmed + 1))


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """A segment as it was when it was last read."""

    stat: FileStat
    scanned: Scanned


@dataclass(frozen=True, slots=True)
class FrameReport:
    """One message of a slot: its tables, or why it cannot be read."""

    fsn: int
    size_bytes: int
    tables: tuple[Table, ...] = ()
    problem: str | None = None


def slots_below(fs: FileSystem, sf_dir: str) -> list[str]:
    """
    Return the names of all directories below *sf_dir* that a sender has used.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for name in filter(is_sender_id, fs.list_dir(sf_dir)):
        with suppress(NotADirectoryError):
            names = fs.list_dir(f"{sf_dir}/{name}")
            if FAILED_NAME in names or LOCK_NAME in names or any(is_segment_name(one) for one in names):
                found.append(name)
    return found


def inspect_slot(
    fs: FileSystem, sf_dir: str, sender_id: str, known: dict[str, KnownSegment] | None = None
) -> SlotReport:
    """
    Return a report on the slot *sender_id*. Damage is reported, not raised. Pass the same *known* each time to avoid
    reading unchanged segments again.

    Raises:
        OSError: a disk error.
    """
    try:
        report = _inspect_once(fs, sf_dir, sender_id, known)
        for _ in range(_ATTEMPTS_MAX - 1):
            if report.problem is None:
                break
            report = _inspect_once(fs, sf_dir, sender_id, known)
    except NO_FILE_ERRORS as error:
        return SlotReport(sender_id, problem=f"{error.filename}: {no_file_reason(error)}")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return SlotReport(sender_id, problem=f"{error.filename}: {error.strerror}; expected a regular file")
    return report


def _inspect_once(
    fs: FileSystem, sf_dir: str, sender_id: str, known: dict[str, KnownSegment] | None = None
) -> SlotReport:
    directory = f"{sf_dir}/{sender_id}"
    report = SlotReport(sender_id, holder=holder_of_slot(fs, directory))
    report.is_held = is_held(fs, f"{directory}/{LOCK_NAME}")
    with suppress(FileNotFoundError):
        failed = fs.read_all(f"{directory}/{FAILED_NAME}", size_max=_FAILED_BYTES_MAX)
        report.failed = failed.decode("utf-8", "replace").strip() or "no reason given"
    report.dead_letters = count_dead_letters(fs, directory)
    report.damaged_copies = tuple(f"{directory}/{name}" for name in fs.list_dir(directory) if name.endswith(".damaged"))
    try:
        found = _segments_of(fs, directory, known)
    except CorruptionError as damage:
        report.problem = str(damage)
        return report
    report.confirmed = read_watermark(fs, directory)
    report.segments = {one.path: one.count for one in found}
    report.size_bytes = sum(one.size_bytes for one in found)
    kept = sorted((one for one in found if one.count), key=lambda one: one.base)
    if kept:
        report.first_fsn, report.next_fsn = kept[0].base, kept[-1].next_fsn
        report.problem = _gap(kept)
    report.problem = report.problem or _hole(found)
    for one in kept:
        left = _unconfirmed(one, report.confirmed)
        report.backlog_bytes += sum(end - start for start, end in left)
        if left and one.scan is not None and report.oldest_us is None:
            report.oldest_us = one.scan.header.created_us
    return report


def _segments_of(fs: FileSystem, directory: str, known: dict[str, KnownSegment] | None = None) -> list[Scanned]:
    paths = [f"{directory}/{name}" for name in fs.list_dir(directory) if is_segment_name(name)]
    if known is not None:
        for path in [path for path in known if path.startswith(f"{directory}/") and path not in paths]:
            del known[path]
    found = []
    for path in reversed(paths):
        with suppress(FileNotFoundError):
            found.append(_scan(fs, path, known))
    return found[::-1]


def _scan(fs: FileSystem, path: str, known: dict[str, KnownSegment] | None) -> Scanned:
    if known is None:
        return scan_file(fs, path)
    stat = fs.stat(path)
    before = known.get(path)
    if before is not None and before.stat == stat:
        return before.scanned
    scanned = scan_file(fs, path)
    known[path] = KnownSegment(stat, scanned)
    return scanned


def _unconfirmed(one: Scanned, confirmed: int) -> tuple[tuple[int, int], ...]:
    return () if one.scan is None else one.scan.payloads[max(0, confirmed + 1 - one.base) :]


def _gap(kept: list[Scanned]) -> str | None:
    for before, after in itertools.pairwise(kept):
        if before.next_fsn != after.base:
            return f"{after.path}: starts with frame {after.base}, but the previous one ends with {before.next_fsn - 1}"
    return None


def _hole(found: list[Scanned]) -> str | None:
    for one in found:
        if one.scan is not None and one.scan.later is not None:
            return (
                f"{one.path}: damaged at offset {one.scan.tail}: invalid bytes, and intact frames from offset "
                f"{one.scan.later} on; a sender that opens the slot keeps a copy and sends the intact frames"
            )
    return None


def frames_of_slot(fs: FileSystem, sf_dir: str, sender_id: str) -> Iterator[FrameReport]:
    """
    Yield every message of the slot in order, including confirmed ones.

    Raises:
        CorruptionError: a segment cannot be read.
        OSError: a disk error.
    """
    directory = f"{sf_dir}/{sender_id}"
    dictionary = SymbolDictionary()
    with suppress(FileNotFoundError):
        symbols = decode_symbol_file(
            memoryview(fs.read_all(f"{directory}/{SYMBOLS_NAME}", size_max=_SYMBOLS_BYTES_MAX))
        )
        if isinstance(symbols, Frame):
            dictionary.accept(0, symbols.value)
    for one in sorted(_segments_of(fs, directory), key=lambda one: one.base):
        try:
            file = fs.open_read(one.path)
        except FileNotFoundError:
            continue
        try:
            view = memoryview(file.pread(file.size(), 0))
        finally:
            file.close()
        # Again: a shorter segment, with other frame offsets, may have replaced it.
        scan = scan_segment(view)
        if not isinstance(scan, Frame):
            continue
        for index, (start, end) in enumerate(scan.value.payloads):
            yield _frame(scan.value.header.base + index, view[start:end], dictionary)


def _frame(fsn: int, message: memoryview, dictionary: SymbolDictionary) -> FrameReport:
    answer = decode_message(message, dictionary)
    if isinstance(answer, Frame):
        return FrameReport(fsn, len(message), answer.value.tables)
    return FrameReport(fsn, len(message), problem=getattr(answer, "reason", "the message ends early"))


def rows_by_table(frames: Iterator[FrameReport]) -> dict[str, int]:
    """Return the number of rows of each table in *frames*."""
    counts: Counter[str] = Counter()
    for frame in frames:
        for table in frame.tables:
            counts[table.name] += table.rows
    return dict(counts)


def rows_of(table: Table) -> list[dict[str, Any]]:
    """
    Return the rows of *table* in human-readable form: UUIDs, addresses and geohashes as text, bytes in hexadecimal,
    arrays as nested lists.
    """
    batch = table.to_arrow()
    columns = {
        field.name: [_written(field, value) for value in column.to_pylist()]
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _written(field: Any, value: Any) -> Any:
    kind = ColumnType[field.metadata[TYPE_KEY].decode()]
    if value is None:
        return None
    if kind is ColumnType.GEOHASH:
        return _geohash(value, int(field.metadata[SCALE_KEY]))
    write = _WRITTEN.get(kind)
    return value if write is None else write(value)


def _geohash(value: int, bits: int) -> str:
    """Return the notation of the server: a letter for every five bits if possible, otherwise binary digits."""
    if bits % 5:
        return f"{value:0{bits}b}"
    return "".join(_BASE32[value >> shift & 31] for shift in range(bits - 5, -1, -5))


def _array(value: dict[str, Any]) -> Any:
    # JSON has no NaN.
    nested = np.array([None if one != one else one for one in value["values"]], object)  # noqa: PLR0124
    return nested.reshape(value["shape"]).tolist()


_BASE32 = "0123456789bcdefghjkmnpqrstuvwxyz"
_WRITTEN: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.UUID: lambda value: str(uuid.UUID(bytes=value)),
    ColumnType.LONG256: lambda value: hex(int.from_bytes(value, "little")),
    ColumnType.IPV4: lambda value: str(ipaddress.IPv4Address(value)),
    ColumnType.CHAR: lambda value: chr(value) if value else None,
    ColumnType.BINARY: lambda value: value.hex(),
    ColumnType.DOUBLE_ARRAY: _array,
    ColumnType.LONG_ARRAY: _array,
}
