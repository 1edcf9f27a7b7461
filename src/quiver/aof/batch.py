"""
Many records at once: columns of numbers beside one buffer of payloads, for readers that count in millions. Needs numpy.

Records of one length after another are found with one comparison; where lengths change they are walked. Every payload
is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.aof.format.record import RECORD_HEAD_BYTES
from quiver.aof.source import Source
from quiver.primitives.checksum import crc64_nvme_function
from quiver.primitives.scan import Damage

__all__ = ["RecordRun", "behind_record", "read_run"]

_LENGTH = Struct("<I")
_HEAD = np.dtype([("length", "<u4"), ("checksum", "<u4"), ("timestamp", "<u8"), ("ext_id", "<u8")])
_UNIFORM_MIN = 16
"""Fewer records of one length than this are walked like any others."""

_UNIFORM_BYTES_MAX = 4096
"""Longer payloads are not worth a copy of their own just to be found together."""

_WALK_MAX = 4096
"""Records that are walked before looking again whether lengths have become alike."""

_RUN_BYTES_MAX = 16 << 20
"""A run ends with the record that brings it above this."""


@dataclass(frozen=True, slots=True)
class RecordRun:
    """
    Records that follow one another. The columns are numpy arrays, one value for each record.

    Attributes:
        record_ids, timestamps, ext_ids: as in `Record`.
        offsets: where each payload begins in `values`, and where the last one ends: one more than there are records.
        values: all payloads, one behind the other.
    """

    record_ids: Any
    timestamps: Any
    ext_ids: Any
    offsets: Any
    values: bytes

    def __len__(self) -> int:
        return len(self.record_ids)

    def to_arrow(self) -> pa.RecordBatch:
        """
        Return the same as ``record_id``, ``timestamp``, ``ext_id`` and ``payload`` (large_binary); nothing is copied.
        """
        payload = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(self.offsets), pa.py_buffer(self.values)]
        )
        return pa.record_batch(
            [pa.array(self.record_ids), pa.array(self.timestamps), pa.array(self.ext_ids), payload],
            names=["record_id", "timestamp", "ext_id", "payload"],
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """
    Records as they lie in the segment: where each begins, their heads, and their payloads in both forms.
    """

    starts: Any
    heads: Any
    payloads: list[Any]
    values: bytes
    end: int
    damage: Damage | None


def read_run(source: Source, offset: int, *, records_max: int) -> tuple[RecordRun, int, Damage | None]:
    """
    Read up to *records_max* records of *source* from *offset* on; return them and the offset behind them.

    With damage the run ends before it, and what is wrong comes with it.
    """
    found = _alike(source, offset, records_max) or _walked(source, offset, min(records_max, _WALK_MAX))
    wide = np.array(list(map(crc64_nvme_function(), found.payloads)), np.uint64)
    wrong = np.flatnonzero(((wide >> np.uint64(32)) ^ (wide & np.uint64(0xFFFF_FFFF))) != found.heads["checksum"])
    count, end, damage = len(found.payloads), found.end, found.damage
    if len(wrong):
        count = int(wrong[0])
        end = int(found.starts[count])
        damage = Damage(end, "checksum mismatch")
    heads = found.heads[:count]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(heads["length"], out=offsets[1:])
    run = RecordRun(
        found.starts[:count].astype(np.uint64) | np.uint64(source.segment_id << 32),
        heads["timestamp"].copy(),
        heads["ext_id"].copy(),
        offsets,
        found.values if count == len(found.payloads) else found.values[: int(offsets[-1])],
    )
    return run, end, damage


def _alike(source: Source, offset: int, records_max: int) -> _Found | None:
    """
    Take as many records as have the length of the first one; None when that is hardly any.
    """
    if offset + RECORD_HEAD_BYTES >= source.end:
        return None
    (length,) = _LENGTH.unpack_from(source.view, offset)
    stride = RECORD_HEAD_BYTES + int(length)
    count = min((source.end - offset) // stride, records_max, _RUN_BYTES_MAX // stride)
    if not 0 < length <= _UNIFORM_BYTES_MAX or count < _UNIFORM_MIN:
        return None
    heads = np.ndarray((count,), _HEAD, source.view, offset, (stride,))
    other = np.flatnonzero(heads["length"] != length)
    count = int(other[0]) if len(other) else count
    if count < _UNIFORM_MIN:
        return None
    rows = np.ndarray((count, stride), np.uint8, source.view, offset)
    body = np.ascontiguousarray(rows[:, RECORD_HEAD_BYTES:])
    payloads = body.view(f"V{length}").reshape(-1).tolist()
    starts = np.arange(offset, offset + count * stride, stride, dtype=np.int64)
    return _Found(starts, heads[:count], payloads, body.tobytes(), offset + count * stride, None)


def _walked(source: Source, offset: int, records_max: int) -> _Found:
    unpack = _LENGTH.unpack_from
    view, limit = source.view, source.end
    starts: list[int] = []
    payloads: list[memoryview] = []
    damage = None
    bytes_max = offset + _RUN_BYTES_MAX
    while offset < min(limit, bytes_max) and len(starts) < records_max:
        start = offset + RECORD_HEAD_BYTES
        length = unpack(view, offset)[0] if start < limit else 0
        behind = start + length
        if behind > limit or not length:
            damage = Damage(offset, f"a record of {length} bytes does not fit")
            break
        starts.append(offset)
        payloads.append(view[start:behind])
        offset = behind
    joined = b"".join([view[start : start + RECORD_HEAD_BYTES] for start in starts])
    heads = np.frombuffer(joined, _HEAD)
    return _Found(np.array(starts, np.int64), heads, payloads, b"".join(payloads), offset, damage)


def behind_record(source: Source, damage: Damage) -> int | None:
    """
    Return the offset behind a damaged record if its length can be believed, else None.
    """
    if damage.offset + RECORD_HEAD_BYTES >= source.end:
        return None
    (length,) = _LENGTH.unpack_from(source.view, damage.offset)
    behind = damage.offset + RECORD_HEAD_BYTES + int(length)
    return behind if length and behind <= source.end else None
