"""
Read one WAL file from its bytes: entries in order, damage, and where the tail is. No I/O.

A zero length ends the log: the writer keeps zeros ahead of itself. What follows a good entry and is neither an
entry nor zeros is a torn tail when nothing readable comes after it, and damage when something does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quiver.errors import Damaged
from quiver.primitives.scan import Damage, Frame, is_zero
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE, WalEntry, decode_entry, find_entry
from quiver.store.format.wal_file import WAL_HEADER_BYTES, WalHeader, decode_wal_header

__all__ = ["ScannedEntry", "WalFileScan", "scan_wal_file"]

Tail = Literal["clean", "zeros", "torn"]


@dataclass(frozen=True, slots=True)
class ScannedEntry:
    """
    One entry with its place in the stream: positions count data bytes since the log began.
    """

    start: int
    end: int
    entry: WalEntry


@dataclass(slots=True)
class WalFileScan:
    """
    What one WAL file holds.

    Attributes:
        header: None when the file is too short for one or all zero. A damaged header is replaced by what
            version 1 prescribes, at position 0, and `header_sound` is False.
        entries: in file order; payloads are views into the scanned bytes.
        damage: byte ranges that are not entries though something readable follows, with the reason.
        damage_spans: the same ranges as (file offset, length).
        tail_offset: file offset behind the last good entry; the next append goes here.
        tail: what lies there: nothing, zeros, or the torn rest of a write.
        position_end: stream position of `tail_offset`.
    """

    path: str
    size_bytes: int
    header: WalHeader | None = None
    header_sound: bool = True
    entries: list[ScannedEntry] = field(default_factory=list)
    damage: list[Damaged] = field(default_factory=list)
    damage_spans: list[tuple[int, int]] = field(default_factory=list)
    tail_offset: int = 0
    tail: Tail = "clean"

    @property
    def position_end(self) -> int:
        """
        The stream position of `tail_offset`, by the file's own header.
        """
        if self.header is None:
            return 0
        return self.header.position_start + self.tail_offset - self.header.header_size


def scan_wal_file(view: memoryview, path: str) -> WalFileScan:
    """
    Scan all of *view*, the contents of the WAL file *path*. Never raises on any bytes.
    """
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
        scan.damage.append(Damaged(path, damage.offset, damage.reason))
        scan.damage_spans.append((0, WAL_HEADER_BYTES))
        scan.header = WalHeader(1, WAL_HEADER_BYTES, b"", 0)
        scan.header_sound = False
    _scan_entries(scan, view)
    return scan


def _fits(view: memoryview, header: WalHeader) -> bool:
    """
    Say whether the header's size can be believed: the header has no checksum of its own.

    Another size than version 1's is lawful; but when an entry starts where version 1 puts it and none where the
    header says, a bit has flipped.
    """
    if header.header_size == WAL_HEADER_BYTES:
        return True
    return not isinstance(decode_entry(view, WAL_HEADER_BYTES), Frame)


def _scan_entries(scan: WalFileScan, view: memoryview) -> None:
    header = scan.header
    if header is None:  # the caller checked; this tells the type checker
        return
    shift = header.position_start - header.header_size
    offset = header.header_size
    sequence_min = 0
    while True:
        answer = decode_entry(view, offset)
        if isinstance(answer, Frame):
            scan.entries.append(ScannedEntry(offset + shift, answer.end + shift, answer.value))
            if answer.value.entry_type == ENTRY_TYPE_BUNDLE:
                sequence_min = answer.value.sequence + 1
            offset = answer.end
            continue
        found = None
        if isinstance(answer, Damage) or not is_zero(view, offset):
            found = _next_entry(view, offset, sequence_min)
        if found is None:
            break
        reason = answer.reason if isinstance(answer, Damage) else "the entry is cut short, yet entries follow"
        scan.damage.append(Damaged(scan.path, offset, reason))
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
    Find where reading can go on behind damage at offset *damaged*.

    The damaged entry's own length is tried first: a flipped payload byte leaves it true, and then nothing
    inside the payload can be mistaken for an entry.
    """
    claimed_end = _claimed_end(view, damaged)
    if claimed_end is not None:
        if isinstance(decode_entry(view, claimed_end), Frame):
            return claimed_end
        if is_zero(view, claimed_end):
            return None
    return find_entry(view, damaged + 1, sequence_min)


def _claimed_end(view: memoryview, offset: int) -> int | None:
    if offset + 4 > len(view):
        return None
    end = offset + 8 + int.from_bytes(view[offset : offset + 4], "little")
    return end if end <= len(view) else None
