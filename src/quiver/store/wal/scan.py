"""
Read one WAL file from its bytes: entries in order, damage, and the tail. No I/O.

A length of zero ends the log: the writer keeps zeros ahead of itself. Bytes after a valid entry that are neither an
entry nor zeros are a torn tail if nothing readable follows them, and damage if something does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from quiver.errors import CorruptionError
from quiver.primitives.scan import Damage, Frame, is_zero
from quiver.store.format.wal_entry import (
    ENTRY_TYPE_BUNDLE,
    EntryHead,
    WalEntry,
    check_entry,
    find_entry,
    read_entry,
    valid_bundles,
)
from quiver.store.format.wal_file import WAL_HEADER_BYTES, WalHeader, decode_wal_header

__all__ = ["ScannedEntries", "ScannedEntry", "WalFileScan", "scan_wal_file"]

Tail = Literal["clean", "zeros", "torn"]


class ScannedEntry:
    """One entry and its place in the stream: positions count data bytes since the start of the log."""

    __slots__ = ("_offset", "_view", "end", "entry_type", "sequence", "start")

    def __init__(  # one is created for every entry of a log
        self, start: int, end: int, entry_type: int, sequence: int, view: memoryview, offset: int
    ) -> None:
        self.start = start
        self.end = end
        self.entry_type = entry_type
        self.sequence = sequence
        self._view = view
        self._offset = offset

    @property
    def entry(self) -> WalEntry:
        """The entry itself, decoded on each access; payloads are views into the scanned bytes."""
        return read_entry(self._view, self._offset)


class ScannedEntries(Sequence[ScannedEntry]):
    """The entries of one file in order, 25 bytes each: an object is created only for an entry that is requested."""

    __slots__ = ("_ends", "_sequences", "_shift", "_starts", "_types", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        """The scanned bytes: the complete file."""
        self._shift = 0
        self._starts = array("Q")
        self._ends = array("Q")
        self._sequences = array("Q")
        self._types = array("B")

    def place(self, shift: int) -> None:
        """Set how much further an entry is in the stream than in the file."""
        self._shift = shift

    def append(self, start: int, end: int, head: EntryHead) -> None:
        """Add the entry from *start* to *end* in the file."""
        self._starts.append(start)
        self._ends.append(end)
        self._sequences.append(head.sequence)
        self._types.append(head.entry_type)

    def extend(self, offset: int) -> int:
        """Add the valid bundles from *offset* of the file on; return where they end."""
        end = valid_bundles(self.view, offset, self._starts, self._ends, self._sequences)
        self._types.frombytes(bytes(len(self._starts) - len(self._types)))  # ENTRY_TYPE_BUNDLE is 0
        return end

    @property
    def shift(self) -> int:
        """How much further an entry is in the stream than in the file."""
        return self._shift

    def offsets(self, at: int) -> tuple[int, int]:
        """Return where an entry starts and ends in the scanned bytes."""
        return self._starts[at], self._ends[at]

    def part(self, at: int, count_max: int) -> tuple[memoryview, memoryview]:
        """Return where at most *count_max* entries from *at* on start and end in the scanned bytes."""
        stop = at + count_max
        return memoryview(self._starts)[at:stop], memoryview(self._ends)[at:stop]

    def sequences(self, at: int, count: int) -> array[int]:
        """Return the sequence numbers of *count* entries from *at* on."""
        return self._sequences[at : at + count]

    @property
    def sequence_next(self) -> int:
        """One more than the number of the last bundle; 0 if there is none."""
        known = zip(reversed(self._types), reversed(self._sequences), strict=True)
        return next((sequence + 1 for kind, sequence in known if kind == ENTRY_TYPE_BUNDLE), 0)

    def needed(
        self, holds: Callable[[int, int], bool], *, position_end: int, sequence_end: int, shift: int = 0
    ) -> ScannedEntries:
        """
        Return the bundles that no segment holds, *shift* bytes further in the stream.

        *holds* is called with the sequence number and the (shifted) stream position after a bundle. It is assumed to
        be true for all that end at or before *position_end*, and false for those after it whose sequence number is
        at least *sequence_end*: that decides about most entries without a call.
        """
        ends, sequences = self._ends, self._sequences
        shift += self._shift
        first = bisect_right(ends, position_end - shift)
        which: slice | list[int] = slice(first, None)
        # Entries of unknown types come from a later version and are skipped by their length.
        if any(self._types) or min(sequences[first:], default=sequence_end) < sequence_end:
            which = [
                at
                for at in range(first, len(ends))
                if self._types[at] == ENTRY_TYPE_BUNDLE and not holds(sequences[at], ends[at] + shift)
            ]
        found = ScannedEntries(self.view)
        found._shift = shift
        found._starts, found._ends = _those(self._starts, which), _those(ends, which)
        found._sequences, found._types = _those(sequences, which), _those(self._types, which)
        return found

    def within(self, view: memoryview) -> ScannedEntries:
        """Return the same entries as parts of *view*, which has the same bytes as the scanned ones."""
        same = ScannedEntries(view)
        same._shift = self._shift
        same._starts, same._ends = self._starts, self._ends
        same._sequences, same._types = self._sequences, self._types
        return same

    @property
    def sequence_end(self) -> int:
        """One more than the highest sequence number."""
        # Entries of other types have the number 0.
        return max(self._sequences) + 1 if ENTRY_TYPE_BUNDLE in self._types else 0

    def ends_by_sequence(self) -> dict[int, int]:
        """Return sequence number → position after that entry."""
        shift = self._shift
        return {sequence: end + shift for sequence, end in zip(self._sequences, self._ends, strict=True)}

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> ScannedEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScannedEntry]: ...
    def __getitem__(self, index: int | slice) -> ScannedEntry | list[ScannedEntry]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        start, shift = self._starts[index], self._shift
        return ScannedEntry(
            start + shift, self._ends[index] + shift, self._types[index], self._sequences[index], self.view, start
        )

    def __iter__(self) -> Iterator[ScannedEntry]:
        view, shift = self.view, self._shift
        for start, end, entry_type, sequence in zip(
            self._starts, self._ends, self._types, self._sequences, strict=True
        ):
            yield ScannedEntry(start + shift, end + shift, entry_type, sequence, view, start)


def _those(values: array[int], which: slice | list[int]) -> array[int]:
    return values[which] if isinstance(which, slice) else array(values.typecode, map(values.__getitem__, which))


@dataclass(slots=True)
class WalFileScan:
    """
    The contents of one WAL file.

    Attributes:
        header: None if the file is too short for one, or all zero. A damaged header is replaced by a header of
            version 1 at position 0, and `header_valid` is False.
        entries: in file order. They keep the scanned bytes alive.
        damage: byte ranges that are not entries although something readable follows, with the reason.
        damage_spans: the same ranges as (file offset, length).
        tail_offset: file offset after the last valid entry; the next append is written here.
        tail: the bytes there: none, zeros, or the torn rest of a write.
        position_end: stream position of `tail_offset`.
    """

    path: str
    size_bytes: int
    header: WalHeader | None = None
    header_valid: bool = True
    entries: ScannedEntries = field(default_factory=lambda: ScannedEntries(memoryview(b"")))
    damage: list[CorruptionError] = field(default_factory=list)
    damage_spans: list[tuple[int, int]] = field(default_factory=list)
    tail_offset: int = 0
    tail: Tail = "clean"

    @property
    def position_end(self) -> int:
        """The stream position of `tail_offset`, according to the file's own header."""
        if self.header is None:
            return 0
        return self.header.position_start + self.tail_offset - self.header.header_size


def scan_wal_file(view: memoryview, path: str) -> WalFileScan:
    """Scan all of *view*, the contents of the WAL file *path*. Never raises on any bytes."""
    scan = WalFileScan(path, len(view))
    if is_zero(view, 0):
        scan.tail = "zeros" if view else "clean"
        return scan
    answer = decode_wal_header(view)
    if isinstance(answer, Frame) and _fits(view, answer.value):
        scan.header = answer.value
    elif len(view) < WAL_HEADER_BYTES:
        scan.tail = "torn"
        return scan
    else:
        damage = answer if isinstance(answer, Damage) else Damage(12, "header_size points at no entry")
        scan.damage.append(CorruptionError(path, damage.offset, damage.reason))
        scan.damage_spans.append((0, WAL_HEADER_BYTES))
        scan.header = WalHeader(1, WAL_HEADER_BYTES, b"", 0)
        scan.header_valid = False
    _scan_entries(scan, view)
    return scan


def _fits(view: memoryview, header: WalHeader) -> bool:
    """
    Return whether the header's size is plausible: the header has no checksum of its own.

    A size other than version 1's is valid. But if an entry starts where version 1 puts it, and none where the
    header points, then a bit has flipped.
    """
    if header.header_size == WAL_HEADER_BYTES:
        return True
    return not isinstance(check_entry(view, WAL_HEADER_BYTES), Frame)


def _scan_entries(scan: WalFileScan, view: memoryview) -> None:
    header = scan.header
    if header is None:  # the caller checked; this is for the type checker
        return
    entries = scan.entries = ScannedEntries(view)
    entries.place(header.position_start - header.header_size)
    offset = header.header_size
    while True:
        offset = entries.extend(offset)
        answer = check_entry(view, offset)
        if isinstance(answer, Frame):  # a type of a later version
            entries.append(offset, answer.end, answer.value)
            offset = answer.end
            continue
        found = None
        if isinstance(answer, Damage) or not is_zero(view, offset):
            found = _next_entry(view, offset, entries.sequence_next)
        if found is None:
            break
        reason = answer.reason if isinstance(answer, Damage) else "the entry is cut short, yet entries follow"
        scan.damage.append(CorruptionError(scan.path, offset, reason))
        scan.damage_spans.append((offset, found - offset))
        offset = found
    scan.tail_offset = min(offset, len(view))
    scan.tail = _kind_of_tail(view, scan.tail_offset)


def _kind_of_tail(view: memoryview, offset: int) -> Tail:
    if offset >= len(view):
        return "clean"
    return "zeros" if is_zero(view, offset) else "torn"


def _next_entry(view: memoryview, damaged: int, sequence_min: int) -> int | None:
    """
    Find the next entry after damage at offset *damaged*.

    The damaged entry's own length is tried first: a flipped payload byte leaves the length intact, and then nothing
    inside the payload can be mistaken for an entry.
    """
    claimed_end = _claimed_end(view, damaged)
    if claimed_end is not None:
        if isinstance(check_entry(view, claimed_end), Frame):
            return claimed_end
        if is_zero(view, claimed_end):
            return None
    return find_entry(view, damaged + 1, sequence_min)


def _claimed_end(view: memoryview, offset: int) -> int | None:
    if offset + 4 > len(view):
        return None
    end = offset + 8 + int.from_bytes(view[offset : offset + 4], "little")
    return end if end <= len(view) else None
