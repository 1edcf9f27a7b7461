r"""
The cold list: which sealed segments have a copy in the object tier, and where the objects are. Bytes only.

::

    0   8   magic          b"QUIVER\0O"
    8   u16 version        2; 1 has no changes after the list
    10  u16 header_size    24; more in a future that only adds fields: they are skipped
    12  u16 entry_size     80; as above, for each entry
    14  u16 location_size
    16  u32 entry_count
    20  4   reserved       zeros
    from header_size on:
        location           UTF-8 text of JSON: backend, container, prefix, options; no secrets
    for every entry, ascending by number:
        u64 seg_seq
        u64 size_bytes
        u64 wal_start      log position of its first bundle, and the position after its last
        u64 wal_end
        u64 sequence_first
        u64 sequence_last
        i64 ingested_min   nanoseconds since the epoch
        i64 ingested_max
        u32 bundle_count
        u32 crc32          the checksum in the file's own last four bytes
        u8  state          0 sent, 1 verified, 2 damaged
        u8  known          bits: 1 log positions, 2 sequences, 4 times of ingestion; unknown fields are 0
        6   reserved       zeros
    after the last entry:
        u32 crc32          IEEE, over all bytes before it
    then any number of changes, each written twice, one after the other:
        entry              as above; entry_size bytes
        u8  kind           0 the entry is added or replaced, 1 the segment is removed
        3   reserved       zeros
        u32 number         1, 2, … in this file
        u32 list_crc32     the checksum of the list before the changes
        u32 crc32          IEEE, over the bytes of this copy before it

A crash during a write can leave an incomplete change at the end, which is ignored. One of the two copies may be
damaged, so a flipped bit is never mistaken for an incomplete write. The list is written again after many changes.

An entry is durable before its object is created, and is removed after its object is deleted. Only a verified entry
may be relied on. The file is a Quiver extension: engines that do not know it see only the segments on the local disk.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quiver.errors import UsageError
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.store.format.names import U64_MAX, parse_segment_name, segment_name

__all__ = [
    "COLD_CHANGE",
    "COLD_CHANGES_MAX",
    "COLD_ENTRIES_MAX",
    "COLD_ENTRY",
    "COLD_HEADER",
    "COLD_LIST_BYTES_MAX",
    "COLD_LOCATION_BYTES_MAX",
    "COLD_MAGIC",
    "COLD_VERSION",
    "ColdChange",
    "ColdList",
    "ColdSegment",
    "ColdState",
    "decode_cold_list",
    "encode_cold_changes",
    "encode_cold_list",
    "object_name",
    "parse_object_name",
]

ColdState = Literal["sent", "verified", "damaged"]

COLD_MAGIC = b"QUIVER\0O"
COLD_VERSION = 2
COLD_HEADER = struct.Struct("<8sHHHHI4x")
COLD_ENTRY = struct.Struct("<QQQQQQqqIIBB6x")
COLD_CHANGE = struct.Struct("<B3xIII")
"""The end of each copy of a change, after its entry."""
COLD_ENTRIES_MAX = 1_000_000
COLD_CHANGES_MAX = 100_000
COLD_LOCATION_BYTES_MAX = 16_384
COLD_LIST_BYTES_MAX = 256 * 1024 * 1024
"""Well above the size of a valid list, even with added fields: a larger file is not read."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
_ENTRY_SIZE_MAX = 512
_STATES: tuple[ColdState, ...] = ("sent", "verified", "damaged")
_POSITIONS, _SEQUENCES, _TIMES = 1, 2, 4


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """
    One segment that has, or may have, an object in the tier.

    Attributes:
        seq: its number.
        size_bytes: length of the file, and of the object.
        crc32: the checksum in the last bytes of the file.
        bundle_count: how many bundles it has.
        wal: log position of its first bundle, and the position after its last; None if unknown.
        sequences: of its first and its last bundle; None if unknown.
        ingested_ns: earliest and latest time of ingestion; None if unknown.
        state: `sent`: the object may be missing or incomplete, and nothing relies on it. `verified`: the object equals
            the segment byte for byte. `damaged`: it was verified once, but no longer is.
    """

    seq: int
    size_bytes: int
    crc32: int
    bundle_count: int
    wal: tuple[int, int] | None
    sequences: tuple[int, int] | None
    ingested_ns: tuple[int, int] | None
    state: ColdState


@dataclass(frozen=True, slots=True)
class ColdList:
    """
    The complete list. *location* is what `quiver.objects` needs to find the objects, without secrets;
    entries ascend.
    """

    location: Mapping[str, Any]
    entries: tuple[ColdSegment, ...]


@dataclass(frozen=True, slots=True)
class ColdChange:
    """
    One change of the list.

    Attributes:
        entry: the new entry, or the removed one.
        is_removal: whether the segment is removed from the list.
    """

    entry: ColdSegment
    is_removal: bool = False


def object_name(seq: int, checksum: int) -> str:
    """
    Return the last part of the key of a segment's object: number and checksum, so that different contents never share a
    name.
    """
    return f"{segment_name(seq).removesuffix('.qseg')}-{checksum:08x}.qseg"


def parse_object_name(name: str) -> tuple[int, int] | None:
    """Return number and checksum of the segment whose object is called *name*, or None if it is not such a name."""
    number, dash, checksum = name.removesuffix(".qseg").rpartition("-")
    seq = parse_segment_name(f"{number}.qseg")
    if seq is None or not dash or re.fullmatch("[0-9a-f]{8}", checksum) is None or not name.endswith(".qseg"):
        return None
    return seq, int(checksum, 16)


def encode_cold_list(found: ColdList) -> bytes:
    """
    Return the complete file.

    Raises:
        UsageError: there are more than 1,000,000 entries, a segment appears twice, or the location takes more than
            16 KiB. Such a file could not be read again.
    """
    ordered = sorted(found.entries, key=lambda entry: entry.seq)
    if len(ordered) > COLD_ENTRIES_MAX or len({entry.seq for entry in ordered}) < len(ordered):
        raise UsageError(f"{len(ordered)} cold segments: at most {COLD_ENTRIES_MAX}, each once")
    location = json.dumps(dict(found.location), sort_keys=True, separators=(",", ":")).encode()
    if len(location) > COLD_LOCATION_BYTES_MAX:
        raise UsageError(f"the location of the object tier takes {len(location)} bytes; {COLD_LOCATION_BYTES_MAX} fit")
    header = COLD_HEADER.pack(COLD_MAGIC, COLD_VERSION, COLD_HEADER.size, COLD_ENTRY.size, len(location), len(ordered))
    body = b"".join((header, location, *map(_encode_entry, ordered)))
    return body + _CRC.pack(crc32(body))


def _encode_entry(entry: ColdSegment) -> bytes:
    pairs = (entry.wal, entry.sequences, entry.ingested_ns)
    known = sum(bit for bit, pair in zip((_POSITIONS, _SEQUENCES, _TIMES), pairs, strict=True) if pair is not None)
    numbers = [number for pair in pairs for number in pair or (0, 0)]
    return COLD_ENTRY.pack(
        entry.seq, entry.size_bytes, *numbers, entry.bundle_count, entry.crc32, _STATES.index(entry.state), known
    )


def encode_cold_changes(changes: Iterable[ColdChange], *, number: int, list_crc32: int) -> bytes:
    """
    Return *changes* as they are appended to a list.

    Args:
        changes: the changes.
        number: of the first one, from 1.
        list_crc32: the last four bytes of the list that `encode_cold_list` returned.
    """
    copies = bytearray()
    for at, change in enumerate(changes, number):
        body = _encode_entry(change.entry) + COLD_CHANGE.pack(change.is_removal, at, list_crc32, 0)[: -_CRC.size]
        copies += (body + _CRC.pack(crc32(body))) * 2
    return bytes(copies)


def decode_cold_list(view: memoryview) -> Answer[ColdList]:
    """Decode a cold list with its changes. Other bytes after the list, and an incomplete last change, are ignored."""
    header = _decode_header(view)
    if not isinstance(header, _Header):
        return header
    if len(view) < header.end + _CRC.size:
        return NeedMore(header.end + _CRC.size - len(view))
    (list_crc32,) = _CRC.unpack_from(view, header.end)
    if list_crc32 != crc32(view[: header.end]):
        return Damage(header.end, "checksum mismatch in the cold list")
    location = _decode_location(bytes(view[header.header_size : header.start]))
    if location is None:
        return Damage(header.header_size, "the location is not a JSON object")
    entries = _decode_entries(view[: header.end], header.start, header.entry_size)
    if isinstance(entries, Damage):
        return entries
    end = header.end + _CRC.size
    if header.version == 1:
        return Frame(ColdList(location, entries), end)
    changed = _decode_changes(view, end, header.entry_size, list_crc32, entries)
    return changed if isinstance(changed, Damage) else Frame(ColdList(location, changed[0]), changed[1])


@dataclass(frozen=True, slots=True)
class _Header:
    version: int
    header_size: int
    entry_size: int
    start: int
    """Where the entries begin."""
    end: int
    """Where they end."""


def _decode_header(view: memoryview) -> _Header | NeedMore | Damage:
    if not COLD_MAGIC.startswith(bytes(view[: len(COLD_MAGIC)])):
        return Damage(0, "not a cold list: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if not 1 <= version <= COLD_VERSION:
        return Damage(8, f"unsupported version {version} of a cold list; this reads 1 to {COLD_VERSION}")
    if header_size < COLD_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {COLD_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, entry_size, location_size, count = COLD_HEADER.unpack_from(view)
    if not COLD_ENTRY.size <= entry_size <= _ENTRY_SIZE_MAX:
        return Damage(12, f"entry_size {entry_size} is not {COLD_ENTRY.size} to {_ENTRY_SIZE_MAX}")
    if location_size > COLD_LOCATION_BYTES_MAX:
        return Damage(14, f"location_size {location_size} is above the limit of {COLD_LOCATION_BYTES_MAX}")
    if count > COLD_ENTRIES_MAX:
        return Damage(16, f"entry_count {count} is above the limit of {COLD_ENTRIES_MAX}")
    start = header_size + location_size
    return _Header(version, header_size, entry_size, start, start + count * entry_size)


def _decode_changes(
    view: memoryview, start: int, entry_size: int, list_crc32: int, before: tuple[ColdSegment, ...]
) -> tuple[tuple[ColdSegment, ...], int] | Damage:
    """Return the entries after all changes, and the offset after the last complete one."""
    copy_size = entry_size + COLD_CHANGE.size

    def change(number: int) -> ColdChange | Damage | None:
        at = start + 2 * (number - 1) * copy_size
        for begin in (at, at + copy_size):
            if _is_copy(view[begin : begin + copy_size], copy_size, number, list_crc32):
                return _decode_change(view, begin, entry_size)
        return None

    entries: dict[int, ColdSegment] | None = None
    number = 1
    while (found := change(number)) is not None:
        if isinstance(found, Damage):
            return found
        if entries is None:
            entries = {entry.seq: entry for entry in before}
        if found.is_removal:
            entries.pop(found.entry.seq, None)
        else:
            entries[found.entry.seq] = found.entry
        number += 1
    end = start + 2 * (number - 1) * copy_size
    if any(change(later) is not None for later in range(number + 1, number + 2 + (len(view) - end) // (2 * copy_size))):
        return Damage(end, f"change {number} of the cold list is damaged, and later ones are not")
    if entries is None:
        return before, end
    return tuple(entries[seq] for seq in sorted(entries)), min(end, len(view))


def _is_copy(data: memoryview, copy_size: int, number: int, list_crc32: int) -> bool:
    if len(data) < copy_size:
        return False
    _, found, of_list, checksum = COLD_CHANGE.unpack_from(data, copy_size - COLD_CHANGE.size)
    return (found, of_list) == (number, list_crc32) and checksum == crc32(data[: -_CRC.size])


def _decode_change(view: memoryview, at: int, entry_size: int) -> ColdChange | Damage:
    entry = _decode_entry(view, at)
    if isinstance(entry, Damage):
        return entry
    kind = COLD_CHANGE.unpack_from(view, at + entry_size)[0]
    return (
        ColdChange(entry, kind == 1) if kind <= 1 else Damage(at + entry_size, f"unsupported kind {kind} of a change")
    )


def _decode_location(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decode_entries(view: memoryview, start: int, entry_size: int) -> tuple[ColdSegment, ...] | Damage:
    entries: list[ColdSegment] = []
    for at in range(start, len(view), entry_size):
        entry = _decode_entry(view, at)
        if isinstance(entry, Damage):
            return entry
        if entries and entry.seq <= entries[-1].seq:
            return Damage(at, f"segment {entry.seq} comes after {entries[-1].seq}")
        entries.append(entry)
    return tuple(entries)


def _decode_entry(view: memoryview, at: int) -> ColdSegment | Damage:
    seq, size_bytes, *numbers, bundle_count, checksum, state, known = COLD_ENTRY.unpack_from(view, at)
    if state >= len(_STATES):
        return Damage(at, f"segment {seq}: unsupported state {state}")
    if seq > U64_MAX - 1:
        return Damage(at, f"segment {seq} is above the highest possible segment number")
    return ColdSegment(
        seq,
        size_bytes,
        checksum,
        bundle_count,
        (numbers[0], numbers[1]) if known & _POSITIONS else None,
        (numbers[2], numbers[3]) if known & _SEQUENCES else None,
        (numbers[4], numbers[5]) if known & _TIMES else None,
        _STATES[state],
    )
