"""
One entry of the write-ahead log: a bundle as it was ingested. Bytes only.

::

    u32 entry_len             bytes from entry_type to the last payload byte
    --- the checksum covers the bytes from here …
    u8  entry_type            0: a bundle; any other is skipped by its length
    i64 ingestion_ts_nanos    since the epoch, UTC
    u64 per_core_sequence     one more with every entry
    u64 slot_bitmap           bit n: slot n is present
    for every slot, ascending:
        u16  payload_type_id      the slot id
        [32] schema_fingerprint
        u32  row_count
        u32  payload_len
        [payload_len]             one Arrow IPC stream
    --- … to here
    u32 crc32                 IEEE

A length of zero means that nothing was written here yet: the writer zeroes the file ahead.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from quiver.errors import InvalidBundleError
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "CRC",
    "ENTRY_BYTES_MAX",
    "ENTRY_HEAD",
    "ENTRY_TYPE_BUNDLE",
    "FINGERPRINT_BYTES",
    "SLOTS_MAX",
    "SLOT_HEAD",
    "EntryHead",
    "WalEntry",
    "WalSlot",
    "check_entry",
    "decode_entry",
    "encode_entry",
    "find_entry",
    "looks_like_entry",
    "read_entry",
    "valid_bundles",
]

ENTRY_HEAD = struct.Struct("<IBqQQ")
"""The length, and the 25 bytes at the start of every bundle entry."""

SLOT_HEAD = struct.Struct("<H32sII")
_SLOT_ENDS = struct.Struct("<H36xI")
"""Of a slot's header, the id and the length of the payload."""

_HEAD_AND_SLOT = struct.Struct("<IB8xQQH36xI")
"""The start of an entry, without its time, and the same of its first slot."""

CRC = struct.Struct("<I")
_CRC_OF_CHECKED = 0x2144DF1C
"""The CRC-32 of any bytes that are followed by their own CRC-32: one call instead of a checksum and a comparison."""

ENTRY_BYTES_MAX = 256 * 1024 * 1024
"""The largest `entry_len` that is written or accepted."""

ENTRY_TYPE_BUNDLE = 0
SLOTS_MAX = 64
FINGERPRINT_BYTES = 32

_LENGTH = struct.Struct("<I")
_BODY_BYTES_MIN = ENTRY_HEAD.size - _LENGTH.size
_ONE_SLOT_BYTES = _BODY_BYTES_MIN + SLOT_HEAD.size

# The number of entries that are walked over before their checksums are computed. It grows while they are valid: the
# length in a damaged entry is arbitrary, and so are those that are found by following it.
_GROUP_ENTRIES_MIN = 8
_GROUP_ENTRIES_MAX = 1024

# An entry without slots, or one whose first slot block starts with a slot id. Both have entry_type 0, a time after the
# epoch and a sequence below 2^48. The regex engine rejects zeros and nearly all payload bytes at full speed.
_HEAD_PATTERN = rb"\x00.{7}[\x00-\x7f].{6}\x00\x00"
_CANDIDATE = re.compile(
    rb"(?s)(?=\x19\x00\x00\x00" + _HEAD_PATTERN + rb"\x00{8}"
    rb"|(?![\x00-\x42]\x00\x00\x00)...[\x00-\x10]" + _HEAD_PATTERN + rb"(?!\x00{8}).{8}[\x00-\x3f]\x00)"
)


class WalSlot(NamedTuple):
    """One slot of an entry. `payload` is one Arrow IPC stream, a view into the decoded bytes."""

    slot: int
    fingerprint: bytes
    row_count: int
    payload: memoryview


class WalEntry(NamedTuple):
    """One entry. For an unknown `entry_type` only its length is known: the rest is zero and empty."""

    entry_type: int
    ingested_at_ns: int
    sequence: int
    slots: tuple[WalSlot, ...]


class EntryHead(NamedTuple):
    """The type of an entry and its sequence number, which is 0 for an unknown type."""

    entry_type: int
    sequence: int


# A third of the cost of the classes' own constructors: these run for every entry of a log.
_wal_slot: Callable[[tuple[int, bytes, int, memoryview]], WalSlot] = partial(tuple.__new__, WalSlot)
_wal_entry: Callable[[tuple[int, int, int, tuple[WalSlot, ...]]], WalEntry] = partial(tuple.__new__, WalEntry)


def encode_entry(entry: WalEntry) -> bytes:
    """
    Return the complete entry, from length to checksum, its slots in ascending order.

    Raises:
        InvalidBundleError: a slot is out of range or given twice, a fingerprint does not have 32 bytes, or the entry
            is larger than `ENTRY_BYTES_MAX`.
    """
    slots = sorted(entry.slots, key=lambda slot: slot.slot)
    bitmap = 0
    body_bytes = _BODY_BYTES_MIN
    for slot in slots:
        if not 0 <= slot.slot < SLOTS_MAX or bitmap >> slot.slot & 1:
            raise InvalidBundleError(f"slot {slot.slot} is out of range or given twice")
        if len(slot.fingerprint) != FINGERPRINT_BYTES:
            raise InvalidBundleError(f"slot {slot.slot}: a fingerprint has {FINGERPRINT_BYTES} bytes")
        bitmap |= 1 << slot.slot
        body_bytes += SLOT_HEAD.size + len(slot.payload)
    if body_bytes > ENTRY_BYTES_MAX:
        raise InvalidBundleError(f"an entry of {body_bytes} bytes is above the limit of {ENTRY_BYTES_MAX}")
    parts: list[bytes | memoryview] = [
        ENTRY_HEAD.pack(body_bytes, entry.entry_type, entry.ingested_at_ns, entry.sequence, bitmap)
    ]
    for slot in slots:
        parts.append(SLOT_HEAD.pack(slot.slot, slot.fingerprint, slot.row_count, len(slot.payload)))
        parts.append(slot.payload)
    framed = b"".join(parts)
    return framed + CRC.pack(crc32(memoryview(framed)[_LENGTH.size :]))


def decode_entry(view: memoryview, offset: int) -> Answer[WalEntry]:
    """
    Decode the entry at *offset* of *view*.

    *Need more* means that the entry continues after the view, or that nothing was written here. Payloads are
    views, not copies. Damage is reported at the offset of *view* where it was found.
    """
    answer = check_entry(view, offset)
    return Frame(read_entry(view, offset), answer.end) if isinstance(answer, Frame) else answer


def check_entry(view: memoryview, offset: int) -> Answer[EntryHead]:
    """
    Check the entry at *offset* of *view* as `decode_entry` does, but decode only its header.

    Most entries of a log are never needed, because segments have them.
    """
    have = len(view) - offset
    if have < _LENGTH.size:
        return NeedMore(_LENGTH.size - have)
    (body_bytes,) = _LENGTH.unpack_from(view, offset)
    if body_bytes == 0:
        return NeedMore(1)
    if body_bytes > ENTRY_BYTES_MAX:
        return Damage(offset, f"entry_len {body_bytes} is above the limit of {ENTRY_BYTES_MAX}")
    total = _LENGTH.size + body_bytes + CRC.size
    if have < total:
        return NeedMore(total - have)
    body = offset + _LENGTH.size
    end = body + body_bytes
    (stored,) = CRC.unpack_from(view, end)
    actual = crc32(view[body:end])
    if actual != stored:
        return Damage(offset, f"checksum mismatch: stored {stored:08x}, computed {actual:08x}")
    entry_type = view[body]
    if entry_type != ENTRY_TYPE_BUNDLE:
        return Frame(EntryHead(entry_type, 0), end + CRC.size)
    if body_bytes < _BODY_BYTES_MIN:
        return Damage(offset, f"entry_len {body_bytes} is below {_BODY_BYTES_MIN}")
    _, _, _, sequence, bitmap = ENTRY_HEAD.unpack_from(view, offset)
    problem = _check_slots(view, offset + ENTRY_HEAD.size, end, bitmap)
    return Frame(EntryHead(entry_type, sequence), end + CRC.size) if problem is None else problem


def valid_bundles(view: memoryview, offset: int, starts: array[int], ends: array[int], sequences: array[int]) -> int:
    """
    Walk over consecutive valid bundle entries from *offset* on.

    Appends the start, the end and the sequence number of each entry to the three arrays, and returns where the walk
    ended; call `check_entry` there to learn why. This is fast: logs have hundreds of thousands of small entries.
    """
    count_max = _GROUP_ENTRIES_MIN
    while True:
        first = len(starts)
        bodies, end = _walk(view, offset, count_max, starts, sequences)
        sums = list(map(crc32, bodies))
        valid = len(sums)
        if sums.count(_CRC_OF_CHECKED) != valid:
            valid = next(at for at, found in enumerate(sums) if found != _CRC_OF_CHECKED)
            end = starts[first + valid]
            del starts[first + valid :], sequences[first + valid :]
        if valid:
            ends.extend(starts[first + 1 :])
            ends.append(end)
        if valid < count_max:
            return end
        offset = end
        count_max = min(2 * count_max, _GROUP_ENTRIES_MAX)


def _walk(
    view: memoryview, offset: int, count_max: int, starts: array[int], sequences: array[int]
) -> tuple[list[memoryview], int]:
    """
    Append start and sequence number of at most *count_max* bundle entries from *offset* on, by their lengths alone.

    Returns the bytes of each entry from its type to its checksum, which is not compared yet, and where the walk ended.
    """
    bodies: list[memoryview] = []
    unpack = _HEAD_AND_SLOT.unpack_from
    add_start, add_sequence, add_body = starts.append, sequences.append, bodies.append
    size, last = len(view), len(view) - _HEAD_AND_SLOT.size
    for _ in range(count_max):
        if offset > last:  # only entries without slots are that short
            if size - offset < ENTRY_HEAD.size + CRC.size:
                break
            body_bytes, entry_type, _, sequence, bitmap = ENTRY_HEAD.unpack_from(view, offset)
            slot = payload_bytes = 0
        else:
            body_bytes, entry_type, sequence, bitmap, slot, payload_bytes = unpack(view, offset)
        body = offset + _LENGTH.size
        end = body + body_bytes + CRC.size
        if entry_type != ENTRY_TYPE_BUNDLE or end > size or not _BODY_BYTES_MIN <= body_bytes <= ENTRY_BYTES_MAX:
            break
        # Most entries have one slot, and then one comparison of lengths replaces the loop.
        has_one_slot = payload_bytes + _ONE_SLOT_BYTES == body_bytes and slot < SLOTS_MAX and bitmap == 1 << slot
        if not has_one_slot and _check_slots(view, offset + ENTRY_HEAD.size, end - CRC.size, bitmap) is not None:
            break
        add_start(offset)
        add_sequence(sequence)
        add_body(view[body:end])
        offset = end
    return bodies, offset


def _check_slots(view: memoryview, at: int, end: int, bitmap: int) -> Damage | None:
    # Other writers may list the slots in another order, so the id in the block counts, not its place.
    seen = 0
    for _ in range(bitmap.bit_count()):
        if end - at < SLOT_HEAD.size:
            return Damage(at, f"a slot block starts {end - at} bytes before the end of its entry")
        slot, payload_bytes = _SLOT_ENDS.unpack_from(view, at)
        if slot >= SLOTS_MAX or not bitmap >> slot & 1 or seen >> slot & 1:
            return Damage(at, f"slot {slot} is not in the bitmap {bitmap:#x}, or appears twice")
        seen |= 1 << slot
        at += SLOT_HEAD.size
        if payload_bytes > end - at:
            return Damage(at, f"slot {slot}: payload_len {payload_bytes}, but {end - at} bytes are left")
        at += payload_bytes
    return None if at == end else Damage(at, f"{end - at} bytes after the last slot of the entry")


def read_entry(view: memoryview, offset: int) -> WalEntry:
    """Return the entry at *offset* of *view*, where `check_entry` found one, without checking it again."""
    entry_type = view[offset + _LENGTH.size]
    if entry_type != ENTRY_TYPE_BUNDLE:
        return WalEntry(entry_type, 0, 0, ())
    _, _, ingested_at_ns, sequence, bitmap = ENTRY_HEAD.unpack_from(view, offset)
    at = offset + ENTRY_HEAD.size
    slots: list[WalSlot] = []
    for _ in range(bitmap.bit_count()):
        slot, fingerprint, row_count, payload_bytes = SLOT_HEAD.unpack_from(view, at)
        at += SLOT_HEAD.size
        slots.append(_wal_slot((slot, fingerprint, row_count, view[at : at + payload_bytes])))
        at += payload_bytes
    return _wal_entry((entry_type, ingested_at_ns, sequence, tuple(slots)))


def looks_like_entry(view: memoryview, offset: int, sequence_min: int) -> bool:
    """
    Return whether a complete bundle entry may start at *offset*: its lengths add up exactly. No checksum is computed.

    *sequence_min* is the smallest plausible sequence number. This is for finding the next valid entry
    after damage; only `decode_entry` proves that it is one.
    """
    if len(view) - offset < ENTRY_HEAD.size + CRC.size:
        return False
    body_bytes, entry_type, ingested_at_ns, sequence, bitmap = ENTRY_HEAD.unpack_from(view, offset)
    if entry_type != ENTRY_TYPE_BUNDLE or not _BODY_BYTES_MIN <= body_bytes <= ENTRY_BYTES_MAX:
        return False
    if sequence < sequence_min or ingested_at_ns < 0:
        return False
    end = offset + _LENGTH.size + body_bytes
    if end + CRC.size > len(view):
        return False
    at = offset + ENTRY_HEAD.size
    for _ in range(bitmap.bit_count()):
        if end - at < SLOT_HEAD.size:
            return False
        slot, _, _, payload_bytes = SLOT_HEAD.unpack_from(view, at)
        if slot >= SLOTS_MAX or not bitmap >> slot & 1:
            return False
        at += SLOT_HEAD.size + payload_bytes
    return at == end


def find_entry(view: memoryview, offset: int, sequence_min: int) -> int | None:
    """
    Return the first offset from *offset* on where `decode_entry` decodes a complete bundle entry, or None.

    Takes one pass over the bytes; entries with a sequence number of 2^48 or more are not found.
    """
    for match in _CANDIDATE.finditer(view, offset):
        start = match.start()
        if looks_like_entry(view, start, sequence_min) and isinstance(check_entry(view, start), Frame):
            return start
    return None
