"""
One record entry of a segment, its id, and the scan from one to the next. Bytes only.

::

    0   u32  payload length   never 0: zeros after the last record end the scan
    4   u32  checksum         CRC-64/NVME of the payload, its halves folded by xor
    8   u64  timestamp        wall clock, nanoseconds
    16  u64  ext_id
    24       payload          as many bytes as the length; no padding after it

The id of a record is not stored: it is the segment's index in the high half and the record's offset in the file in the
low half. The checksum covers only the payload; the format cannot detect a flipped bit in timestamp or ext_id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from quiver.primitives.checksum import crc64_nvme, crc64_nvme_function, fold64to32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.kernel import KERNEL
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "RECORD_HEAD",
    "RECORD_HEAD_BYTES",
    "RecordEntry",
    "RecordScan",
    "checksum_of",
    "checksum_of_bytes",
    "continue_scan",
    "decode_record",
    "encode_record",
    "entries",
    "join_record_id",
    "scan_pieces",
    "scan_records",
    "split_record_id",
]

RECORD_HEAD = struct.Struct("<IIQQ")
RECORD_HEAD_BYTES = RECORD_HEAD.size
_OFFSET_MASK = 0xFFFF_FFFF
_HALF = 0xFFFF_FFFF
_BATCH_BYTES = 256 * 1024
"""Records whose checksums are compared at once: enough to share the cost of the calls, and few enough for a cache."""
_KERNEL_BATCH_BYTES = 4 * 1024 * 1024
"""Records that the kernel verifies in one call: enough that getting the GIL back between two calls takes little."""


class RecordEntry(NamedTuple):
    """A record in its segment; the payload is a view of the segment."""

    offset: int
    timestamp: int
    ext_id: int
    payload: memoryview


def join_record_id(segment_index: int, segment_offset: int) -> int:
    """Return the id of the record at *segment_offset* of segment *segment_index*; both have 32 bits."""
    return segment_index << 32 | segment_offset


def split_record_id(record_id: int) -> tuple[int, int]:
    """Return segment index and offset of a record."""
    return record_id >> 32, record_id & _OFFSET_MASK


def checksum_of(payload: Buffer) -> int:
    """Return the checksum of a payload: its CRC-64/NVME folded to 32 bits."""
    return fold64to32(crc64_nvme(payload))


def encode_record(payload: Buffer, *, timestamp: int, ext_id: int = 0) -> bytes:
    """Return the bytes of a record; *payload* has 1 to 2^32 - 1 bytes."""
    return RECORD_HEAD.pack(len(payload), checksum_of(payload), timestamp, ext_id) + bytes(payload)


def decode_record(view: memoryview, offset: int, limit: int) -> Answer[RecordEntry]:
    """
    Decode the record at *offset*. It must end at or before *limit*; `view` has at least that length.

    The answer is `NeedMore` for a length of zero, where nothing was written, and for a head too close to *limit*.
    """
    start = offset + RECORD_HEAD_BYTES
    if start > limit:
        return NeedMore(start - limit)
    length, checksum, timestamp, ext_id = RECORD_HEAD.unpack_from(view, offset)
    if length == 0:
        return NeedMore(RECORD_HEAD_BYTES + 1)
    end = start + length
    if end > limit:
        return Damage(offset, f"a record of {length} bytes would end {end - limit} bytes too late")
    payload = view[start:end]
    if checksum_of(payload) != checksum:
        return Damage(offset, f"checksum mismatch in a record of {length} bytes")
    return Frame(RecordEntry(offset, timestamp, ext_id, payload), end)


def entries(view: memoryview, offset: int, limit: int) -> Iterator[RecordEntry | Damage]:
    """Yield the records from *offset* to *limit*; a `Damage` ends the iteration."""
    while True:
        answer = decode_record(view, offset, limit)
        if isinstance(answer, NeedMore):
            return
        if isinstance(answer, Damage):
            yield answer
            return
        yield answer.value
        offset = answer.end


@dataclass(slots=True)
class RecordScan:
    """
    The result of a scan over a segment's records, up to the first bytes that are not a complete record.

    Attributes:
        end: the end of the last complete record.
        record_count: the number of complete records.
        last_offset: the start of the last of them, or of the scan when there is none.
        last_timestamp: its timestamp; 0 when there is none.
        crc64: CRC-64/NVME of all payloads, concatenated.
        damage: the damage that ended the scan; None when the records just end.
    """

    end: int
    last_offset: int
    record_count: int = 0
    last_timestamp: int = 0
    crc64: int = 0
    damage: Damage | None = None

    @property
    def checksum(self) -> int:
        """The checksum of these payloads in a footer."""
        return fold64to32(self.crc64)


def scan_records(view: memoryview, offset: int, limit: int) -> RecordScan:
    """Scan and verify the records from *offset* to *limit*."""
    return continue_scan(RecordScan(offset, offset), view, limit)


def continue_scan(found: RecordScan, view: memoryview, limit: int) -> RecordScan:
    """Scan and verify the records from the end of *found* to *limit*, add them to *found*, and return it."""
    while _scan_batch(found, view, limit):
        pass
    answer = decode_record(view, found.end, limit)
    found.damage = answer if isinstance(answer, Damage) else None
    return found


def checksum_of_bytes(view: memoryview, start: int, end: int, value: int = 0) -> int:
    """Return the CRC-64/NVME of the bytes from *start* to *end*, continued from *value*."""
    for at in range(start, end, _BATCH_BYTES):  # in pieces, so that other threads can run in between
        value = crc64_nvme(view[at : min(at + _BATCH_BYTES, end)], value)
    return value


def _scan_batch_in_python(found: RecordScan, view: memoryview, limit: int) -> bool:
    """
    Add the next complete records to *found*; return False if it met one that is not, or the end.

    Many records a call: for small ones, a call for each would cost several times more than its checksum.
    """
    unpack, at = RECORD_HEAD.unpack_from, found.end
    heads_end, batch_end = limit - RECORD_HEAD_BYTES, at + _BATCH_BYTES
    payloads: list[memoryview] = []
    checksums: list[int] = []
    timestamps: list[int] = []
    while at < batch_end and at <= heads_end:
        length, checksum, timestamp, _ = unpack(view, at)
        start = at + RECORD_HEAD_BYTES
        end = start + length
        if not length or end > limit or (payloads and end > batch_end):
            break
        payloads.append(view[start:end])
        checksums.append(checksum)
        timestamps.append(timestamp)
        at = end
    sums = [(value >> 32) ^ (value & _HALF) for value in map(crc64_nvme_function(), payloads)]
    is_intact = sums == checksums
    count = len(sums)
    if not is_intact:
        count = next(number for number, pair in enumerate(zip(sums, checksums, strict=True)) if pair[0] != pair[1])
        payloads = payloads[:count]
    if count:
        found.record_count += count
        found.crc64 = crc64_nvme(payloads[0] if count == 1 else b"".join(payloads), found.crc64)
        found.end += count * RECORD_HEAD_BYTES + sum(map(len, payloads))
        found.last_offset = found.end - len(payloads[-1]) - RECORD_HEAD_BYTES
        found.last_timestamp = timestamps[count - 1]
    return is_intact and count > 0


def _scan_batch_in_kernel(found: RecordScan, view: memoryview, limit: int) -> bool:
    """Add the next complete records to *found*; return False if there were none."""
    end, count, last_offset, last_timestamp, found.crc64 = KERNEL.scan_records(
        view, found.end, limit, _KERNEL_BATCH_BYTES, found.crc64
    )
    if count:
        found.record_count += count
        found.end, found.last_offset, found.last_timestamp = end, last_offset, last_timestamp
    return bool(count)


_scan_batch = _scan_batch_in_python if KERNEL is None else _scan_batch_in_kernel


def scan_pieces(pieces: Iterable[Buffer], offset: int, limit: int) -> RecordScan:
    """
    Scan the records from *offset* to *limit* as `scan_records` does, but from consecutive pieces of bytes.

    Only one piece is in memory, regardless of the length of a record or the length it claims.
    """
    found = RecordScan(offset, offset)
    head = bytearray()
    left = checksum = timestamp = payload_crc = crc64 = 0
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            if not left:
                taken = rest[: RECORD_HEAD_BYTES - len(head)]
                head += taken
                rest = rest[len(taken) :]
                if len(head) < RECORD_HEAD_BYTES:
                    continue
                left, checksum, timestamp, _ = RECORD_HEAD.unpack(head)
                end = found.end + RECORD_HEAD_BYTES + left
                if not left or found.end + RECORD_HEAD_BYTES > limit:
                    return found
                if end > limit:
                    found.damage = Damage(found.end, f"a record of {left} bytes would end {end - limit} bytes too late")
                    return found
                payload_crc, crc64 = 0, found.crc64
            taken = rest[:left]
            payload_crc, crc64 = crc64_nvme(taken, payload_crc), crc64_nvme(taken, crc64)
            rest, left = rest[len(taken) :], left - len(taken)
            if left:
                continue
            if fold64to32(payload_crc) != checksum:
                length = end - found.end - RECORD_HEAD_BYTES
                found.damage = Damage(found.end, f"checksum mismatch in a record of {length} bytes")
                return found
            found.record_count += 1
            found.last_offset, found.last_timestamp = found.end, timestamp
            found.crc64, found.end = crc64, end
            head.clear()
    return found
