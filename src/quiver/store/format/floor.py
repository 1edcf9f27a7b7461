r"""
The segment floor: every segment number below it has been used and is never used again. Bytes only.

A store whose segments are all delivered and deleted has no file name left that shows how far it has counted; the floor
records it. The layout is that of `sidecar`, with the magic b"QUIVER\0F". A store that was restored from a copy
continues above all numbers that the original can have used; its floor has two more fields, and version 2::

    0   8   magic
    8   u16 version        2
    10  u16 size           40: all bytes, including the checksum
    12  u64 value
    20  u64 skipped_first  the first number that was skipped
    28  u64 skipped_end    the number after the last one
    36  u32 crc32          IEEE, over all bytes before it

The file is a Quiver extension: engines that do not know it ignore it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame
from quiver.store.format.sidecar import SIDECAR_VERSION, decode_sidecar, encode_sidecar

__all__ = ["FLOOR_MAGIC", "FLOOR_SKIPPED", "Floor", "decode_floor", "decode_floor_file", "encode_floor"]

FLOOR_MAGIC = b"QUIVER\0F"
FLOOR_SKIPPED = struct.Struct("<8sHHQQQI")
_SKIPPED_VERSION = 2
_FIELDS = struct.Struct("<8sHHQQQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Floor:
    """
    The contents of a floor file.

    Attributes:
        value: the lowest free segment number.
        skipped: numbers that no segment of this store ever had, because it was restored; None if none are known.
    """

    value: int
    skipped: range | None = None


def encode_floor(floor: int, *, skipped: range | None = None) -> bytes:
    """Return a floor file: the next segment number is *floor* or higher. 24 bytes, or 40 with *skipped*."""
    if skipped is None:
        return encode_sidecar(FLOOR_MAGIC, floor)
    fields = _FIELDS.pack(FLOOR_MAGIC, _SKIPPED_VERSION, FLOOR_SKIPPED.size, floor, skipped.start, skipped.stop)
    return fields + _CRC.pack(crc32(fields))


def decode_floor(view: memoryview) -> Answer[int]:
    """Decode the floor from a floor file."""
    answer = decode_floor_file(view)
    return Frame(answer.value.value, answer.end) if isinstance(answer, Frame) else answer


def decode_floor_file(view: memoryview) -> Answer[Floor]:
    """Decode a complete floor file."""
    answer = decode_sidecar(view, FLOOR_MAGIC, "segment floor")
    if not isinstance(answer, Frame):
        return answer
    version = int.from_bytes(view[8:10], "little")
    if version == SIDECAR_VERSION or answer.end < FLOOR_SKIPPED.size:
        return Frame(Floor(answer.value), answer.end)
    *_, first, end, _ = FLOOR_SKIPPED.unpack_from(view)
    if not first <= end <= answer.value:
        return Damage(_FIELDS.size - 16, f"numbers {first} to {end} were skipped below the floor {answer.value}")
    return Frame(Floor(answer.value, range(first, end)), answer.end)
