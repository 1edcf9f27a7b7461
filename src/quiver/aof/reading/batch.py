"""
Batches of records: columns of numbers, and payloads in the segment's own bytes, for readers of millions of records.
Needs numpy.

Consecutive records of equal length are found with one comparison; others are read one by one. Every payload is
verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.aof.format.record import RECORD_HEAD_BYTES
from quiver.aof.reading.source import ReadableSegment
from quiver.primitives.checksum import crc64_nvme_function
from quiver.primitives.scan import Damage

__all__ = ["RecordRun", "read_run"]

_LENGTH = Struct("<I")
_HEAD = np.dtype([("length", "<u4"), ("checksum", "<u4"), ("timestamp", "<u8"), ("ext_id", "<u8")])
_UNIFORM_MIN = 16
"""Fewer records of equal length are read one by one."""

_COPIED_BYTES_MAX = 512
"""Shorter payloads are copied for their checksum: numpy copies them all together, but views are made one by one."""

_VIEW = np.dtype([("length", "<i4"), ("prefix", "V4"), ("buffer", "<i4"), ("start", "<i4")])
_PREFIX_BYTES = 4
_INLINE_BYTES = 12

_WALK_MAX = 4096
"""How many records are read one by one before checking for equal lengths again."""

_RUN_BYTES_MAX = 16 << 20
"""A run ends with the record that exceeds this."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """
    Consecutive records. The columns are numpy arrays with one value for each record. The payloads stay in the segment,
    which stays mapped while this object exists. Nothing is copied until it is used.

    Attributes:
        record_ids, timestamps, ext_ids: as in `Record`.
        starts: where each payload begins in `buffer`.
        lengths: the length of each payload in bytes.
        buffer: the segment.
    """

    record_ids: Any
    timestamps: Any
    ext_ids: Any
    starts: Any
    lengths: Any
    buffer: memoryview

    def __len__(self) -> int:
        return len(self.record_ids)

    @property
    def offsets(self) -> Any:
        """Where each payload begins in `values`, and where the last one ends: one more value than records."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @property
    def values(self) -> bytes:
        """A copy of all payloads, concatenated."""
        return b"".join(_slices(self.buffer, self.starts, self.lengths))

    def to_arrow(self) -> pa.RecordBatch:
        """
        Return the columns ``record_id``, ``timestamp``, ``ext_id`` and ``payload`` (binary_view, into the segment).

        Payloads of more than 12 bytes are not copied.
        """
        views = _views(np.frombuffer(self.buffer, np.uint8), self.starts, self.lengths)
        payload = pa.Array.from_buffers(
            pa.binary_view(), len(self), [None, pa.py_buffer(views), pa.py_buffer(self.buffer)]
        )
        return pa.record_batch(
            [pa.array(self.record_ids), pa.array(self.timestamps), pa.array(self.ext_ids), payload],
            names=["record_id", "timestamp", "ext_id", "payload"],
        )


@dataclass(frozen=True, slots=True)
class _FoundRecords:
    """Records in a segment: their starts, their heads, and their payloads as input for the checksum."""

    starts: Any
    heads: Any
    payloads: list[Any]
    end: int
    damage: Damage | None


def read_run(source: ReadableSegment, offset: int, *, records_max: int) -> tuple[RecordRun, int, Damage | None]:
    """
    Read up to *records_max* records of *source* from *offset* on; return them, their end, and the damage, if any.

    At damage the run ends.
    """
    found = _alike(source, offset, records_max) or _walked(source, offset, min(records_max, _WALK_MAX))
    wide = np.array(list(map(crc64_nvme_function(), found.payloads)), np.uint64)
    wrong = np.flatnonzero(((wide >> np.uint64(32)) ^ (wide & np.uint64(0xFFFF_FFFF))) != found.heads["checksum"])
    count, end, damage = len(found.payloads), found.end, found.damage
    if len(wrong):
        count = int(wrong[0])
        end = int(found.starts[count])
        damage = Damage(end, "checksum mismatch")
    heads, starts = found.heads[:count], found.starts[:count]
    run = RecordRun(
        starts.astype(np.uint64) | np.uint64(source.segment_id << 32),
        heads["timestamp"].copy(),
        heads["ext_id"].copy(),
        starts + RECORD_HEAD_BYTES,
        heads["length"].copy(),
        source.view,
    )
    return run, end, damage


def _alike(source: ReadableSegment, offset: int, records_max: int) -> _FoundRecords | None:
    """Read the records with the length of the first one; return None when they are too few."""
    if offset + RECORD_HEAD_BYTES >= source.limit:
        return None
    length = int(_LENGTH.unpack_from(source.view, offset)[0])
    stride = RECORD_HEAD_BYTES + length
    count = min((source.limit - offset) // stride, records_max, _RUN_BYTES_MAX // stride)
    if not length or count < _UNIFORM_MIN:
        return None
    heads = np.ndarray((count,), _HEAD, source.view, offset, (stride,))
    other = np.flatnonzero(heads["length"] != length)
    count = int(other[0]) if len(other) else count
    if count < _UNIFORM_MIN:
        return None
    starts = np.arange(offset, offset + count * stride, stride, dtype=np.int64)
    if length <= _COPIED_BYTES_MAX:
        kind = np.dtype(f"V{length}")
        payloads = np.ndarray((count,), kind, source.view, offset + RECORD_HEAD_BYTES, (stride,)).tolist()
    else:
        payloads = _slices(source.view, starts + RECORD_HEAD_BYTES, heads["length"][:count])
    return _FoundRecords(starts, heads[:count], payloads, offset + count * stride, None)


def _walked(source: ReadableSegment, offset: int, records_max: int) -> _FoundRecords:
    unpack = _LENGTH.unpack_from
    view, limit = source.view, source.limit
    starts: list[int] = []
    payloads: list[memoryview] = []
    damage = None
    bytes_max = offset + _RUN_BYTES_MAX
    while offset < min(source.end, bytes_max) and len(starts) < records_max:
        start = offset + RECORD_HEAD_BYTES
        length = unpack(view, offset)[0] if start < limit else 0
        end = start + length
        if end > limit or not length:
            damage = Damage(offset, f"a record of {length} bytes does not fit")
            break
        starts.append(offset)
        payloads.append(view[start:end])
        offset = end
    joined = b"".join([view[start : start + RECORD_HEAD_BYTES] for start in starts])
    return _FoundRecords(np.array(starts, np.int64), np.frombuffer(joined, _HEAD), payloads, offset, damage)


def _slices(view: memoryview, starts: Any, lengths: Any) -> list[memoryview]:
    return [view[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _views(data: Any, starts: Any, lengths: Any) -> Any:
    """Return Arrow's views of payloads in *data*: length, and short payloads inline or else prefix and place."""
    views = np.zeros(len(starts), _VIEW)
    views["length"] = lengths
    views["start"] = starts
    raw = views.view(np.uint8).reshape(-1, _VIEW.itemsize)
    last = len(data) - 1
    for is_short, width in ((False, _PREFIX_BYTES), (True, _INLINE_BYTES)):
        rows = np.flatnonzero((lengths <= _INLINE_BYTES) == is_short)
        if len(rows):
            places = starts[rows, None] + np.arange(width)
            found = data[np.minimum(places, last)]
            found[np.arange(width) >= lengths[rows, None]] = 0
            raw[rows, 4 : 4 + width] = found
    return views
