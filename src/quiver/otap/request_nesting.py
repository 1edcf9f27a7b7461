"""
Nested messages of an OTLP request → the number, the times and the sizes of its items, without decoding the rest. Pure.

The fields of the messages are arguments, so the compiled kernel, which has the same function, knows no messages. The
walk costs a fraction of a parser, and accepts some requests that a parser refuses.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

__all__ = ["NESTINGS", "NO_TIME", "NestedItems", "Nesting", "nested_items_in_python"]

NO_TIME = (2**64 - 1, 0)
"""The earliest and the latest time of no items."""

_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_VARINT_BYTES_MAX, _TAG_BYTES_MAX = 10, 5
_TAG_MAX = 2**32 - 1

NestedItems = tuple[int, int, int, int, int]
"""
The number of items, the earliest and the latest time, the bytes that are repeated on every item, added up, and the
longest item or repeated field. `NO_TIME` are the times if no item has one.
"""


@dataclass(frozen=True, slots=True)
class Nesting:
    """
    The way from a request to its items.

    Attributes:
        levels: for each level of messages, the numbers of the fields that contain the next one; the last are items.
            Several fields are the arms of a oneof.
        repeated: for each level, the fields with text, bytes or messages that a view repeats on every item.
        times: the fields of an item with its time: the first one that is not 0 is the event time.
    """

    levels: tuple[tuple[int, ...], ...]
    repeated: tuple[tuple[int, ...], ...]
    times: tuple[int, ...]

    @property
    def packed(self) -> bytes:
        """Two masks of 64 bits for each level: the fields of `levels`, and those of `repeated`."""
        masks = [_mask(fields) for level in zip(self.levels, self.repeated, strict=True) for fields in level]
        return struct.pack(f"<{len(masks)}Q", *masks)


def _mask(fields: Sequence[int]) -> int:
    return sum(1 << field for field in fields)


NESTINGS = MappingProxyType(
    {
        "logs": Nesting(((1,), (2,), (2,)), ((), (1, 3), (1, 3)), (1, 11)),
        "spans": Nesting(((1,), (2,), (2,)), ((), (1, 3), (1, 3)), (7,)),
        "metrics": Nesting(((1,), (2,), (2,), (5, 7, 9, 10, 11), (1,)), ((), (1, 3), (1, 3), (1, 2, 3, 12), ()), (3,)),
    }
)
"""View → the nesting of its requests: resources, scopes, items; of metrics also kinds and data points."""


def nested_items_in_python(data: Any, offsets: Any, levels: bytes, fields: bytes) -> NestedItems | None:
    """
    Return the number, the times and the sizes of the items in some messages; None if one cannot be walked.

    Args:
        data: the messages.
        offsets: where they begin and end, as int32.
        levels: the masks of each level, as `Nesting.packed`.
        fields: the numbers of the fields with a time. Without any, items are not walked.
    """
    view = memoryview(data).cast("B")
    ends = array("i", bytes(offsets))
    walk = _Walk(view, list(struct.iter_unpack("<QQ", levels)), tuple(fields))
    try:
        for start, end in pairwise(ends):
            walk.message(start, end, 0)
    except (IndexError, struct.error):
        return None
    return walk.items, walk.low, walk.high, walk.repeated_bytes, walk.part_bytes_max


class _Walk:
    """Raises `IndexError` or `struct.error` for what it cannot walk."""

    def __init__(self, data: memoryview, levels: Sequence[tuple[int, int]], fields: tuple[int, ...]) -> None:
        self._data = data
        self._levels = levels
        self._fields = fields
        self.items = 0
        self.low, self.high = NO_TIME
        self.repeated_bytes = 0
        self.part_bytes_max = 0

    def message(self, at: int, end: int, level: int) -> None:
        is_item = level == len(self._levels)
        self.items += is_item
        if is_item and not self._fields:
            return
        nested, repeated = (0, 0) if is_item else self._levels[level]
        found = dict.fromkeys(self._fields, 0)
        met = repeated_bytes = 0
        items_before = self.items
        while at < end:
            field, wire_type, at, after = self._field(at, end)
            if wire_type == _FIXED_64 and is_item and field in found:
                (found[field],) = struct.unpack_from("<Q", self._data, at)
            elif wire_type == _LENGTH_DELIMITED and nested >> field & 1:
                met += 1
                if met > 1 and nested.bit_count() > 1:
                    raise IndexError  # two arms of a oneof
                if level + 1 == len(self._levels):
                    self.part_bytes_max = max(self.part_bytes_max, after - at)
                self.message(at, after, level + 1)
            elif wire_type == _LENGTH_DELIMITED and repeated >> field & 1:
                self.part_bytes_max = max(self.part_bytes_max, after - at)
                repeated_bytes += after - at
            at = after
        self.repeated_bytes += (self.items - items_before) * repeated_bytes
        if is_item:
            self._note(next((time for time in found.values() if time), 0))

    def _note(self, time: int) -> None:
        if time:
            self.low = min(self.low, time)
        self.high = max(self.high, time)

    def _field(self, at: int, end: int) -> tuple[int, int, int, int]:
        """Return the number of a field, its wire type, and where its content begins and ends."""
        tag, at = self._varint(at, min(end, at + _TAG_BYTES_MAX))
        field, wire_type = tag >> 3, tag & 7
        if field == 0 or tag > _TAG_MAX:
            raise IndexError
        size = _FIXED_BYTES.get(wire_type)
        if size is None and wire_type not in {_VARINT, _LENGTH_DELIMITED}:
            raise IndexError  # a group, which OTLP does not have
        if size is None:
            size, at = self._varint(at, end)
        if wire_type == _VARINT:
            size = 0
        if size > end - at:
            raise IndexError
        return field, wire_type, at, at + size

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        number = 0
        for place in range(min(_VARINT_BYTES_MAX, end - at)):
            byte = self._data[at + place]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
        raise IndexError
