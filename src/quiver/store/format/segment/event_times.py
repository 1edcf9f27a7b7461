"""
A sparse index of event times, as opposed to times of ingestion, in the manifest's metadata. Bytes only.

=========================  =======================================================================
``quiver.event_columns``   four numbers for each stream that has a column of event times:
                           stream id, index of the column, earliest and latest time of the stream
``quiver.event_times``     for the same streams, in order: earliest and latest time of each chunk
``quiver.item_counts``     two numbers for each stream of OTLP requests: stream id, how many items it has
=========================  =======================================================================

Times are nanoseconds since the epoch. In a chunk or stream without any, the earliest time is above the latest. All
values are base64 of zlib of little-endian int64. The second is stored as wrapping differences: the first number, then
what is added to it. zlib's own checksum covers them, so they can be trusted before the segment's checksum is computed.
"""

from __future__ import annotations

import base64
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from quiver.primitives.scan import Damage
from quiver.store.format.segment.file import BUNDLES_WRITTEN_MAX, STREAMS_MAX
from quiver.store.format.wal_entry import SLOTS_MAX

__all__ = [
    "EVENT_COLUMNS_KEY",
    "EVENT_TIMES_KEY",
    "ITEM_COUNTS_KEY",
    "NO_EVENTS",
    "EventColumn",
    "EventStream",
    "decode_event_columns",
    "decode_event_times",
    "decode_item_counts",
    "encode_event_streams",
    "encode_item_counts",
]

EVENT_COLUMNS_KEY = b"quiver.event_columns"
EVENT_TIMES_KEY = b"quiver.event_times"
ITEM_COUNTS_KEY = b"quiver.item_counts"

NO_EVENTS = (0, -1)
"""The range of a chunk without any time."""

_WORD = 2**64
_SIGN = 2**63
_FIELDS = 4
_TIMES_MAX = 2 * SLOTS_MAX * BUNDLES_WRITTEN_MAX
"""Two per chunk; a bundle has one chunk in each of its slots."""


class EventColumn(NamedTuple):
    """The column of event times of one stream, as an index into the stream's schema, and its range."""

    stream_id: int
    column: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class EventStream:
    """
    The event times of one stream: its column, then earliest and latest time of each chunk, one after
    the other.
    """

    stream_id: int
    column: int
    ranges: Sequence[int]

    def range_ns(self) -> tuple[int, int]:
        """Return the earliest and the latest time of all chunks."""
        found = [(low, high) for low, high in zip(self.ranges[::2], self.ranges[1::2], strict=True) if low <= high]
        return (min(low for low, _ in found), max(high for _, high in found)) if found else NO_EVENTS


def encode_event_streams(streams: Sequence[EventStream]) -> dict[bytes, bytes]:
    """Return the two metadata entries; empty if no stream has event times."""
    if not streams:
        return {}
    head = array("q")
    times: list[int] = []
    for stream in streams:
        head.extend((stream.stream_id, stream.column, *stream.range_ns()))
        times.extend(stream.ranges)
    differences = array("Q", [(now - before) % _WORD for before, now in zip([0, *times], times, strict=False)])
    return {EVENT_COLUMNS_KEY: _pack(head), EVENT_TIMES_KEY: _pack(differences)}


def decode_event_columns(raw: Mapping[bytes, bytes], at: int) -> tuple[EventColumn, ...] | Damage:
    """
    Return which streams have event times, and their ranges. *at* is the manifest's offset, for a damage report.

    `decode_event_times` returns the times of the chunks; the caller checks that the streams exist.
    """
    text = raw.get(EVENT_COLUMNS_KEY)
    if text is None:
        return ()
    numbers = _unpack(text, "q", STREAMS_MAX * _FIELDS)
    if numbers is None or len(numbers) % _FIELDS:
        return Damage(at, f"{EVENT_COLUMNS_KEY.decode()} is not a list of streams with a column and two times")
    columns = tuple(EventColumn(*numbers[i : i + _FIELDS]) for i in range(0, len(numbers), _FIELDS))
    if len({column.stream_id for column in columns}) != len(columns) or any(column.column < 0 for column in columns):
        return Damage(at, f"{EVENT_COLUMNS_KEY.decode()} names a stream twice, or a column below 0")
    return columns


def decode_event_times(
    raw: bytes | None, columns: Iterable[EventColumn], chunk_counts: Mapping[int, int], at: int
) -> dict[int, array[int]] | Damage:
    """
    Return for each stream of *columns* the earliest and the latest time of every chunk, one after the other.

    *chunk_counts* are those of the directory, by stream id.
    """
    counts: dict[int, int] = {}
    for column in columns:
        if column.stream_id not in chunk_counts:
            return Damage(at, f"{EVENT_COLUMNS_KEY.decode()} names stream {column.stream_id}, which does not exist")
        counts[column.stream_id] = 2 * chunk_counts[column.stream_id]
    total = sum(counts.values())
    if not counts:
        return {}
    words = None if raw is None or total > _TIMES_MAX else _unpack(raw, "Q", total)
    if words is None or len(words) != total:
        return Damage(at, f"{EVENT_TIMES_KEY.decode()} is not two times for each of {total // 2} chunks")
    times = array("q", [word - _WORD if word >= _SIGN else word for word in accumulate(words, _add)])
    found: dict[int, array[int]] = {}
    start = 0
    for stream_id, count in counts.items():
        found[stream_id] = times[start : start + count]
        start += count
    return found


def encode_item_counts(counts: Mapping[int, int]) -> dict[bytes, bytes]:
    """Return the metadata entry for *counts*, by stream id; empty without any."""
    if not counts:
        return {}
    return {ITEM_COUNTS_KEY: _pack(array("q", [number for pair in sorted(counts.items()) for number in pair]))}


def decode_item_counts(raw: Mapping[bytes, bytes]) -> dict[int, int]:
    """
    Return how many items the requests of each stream have, by stream id. An entry that cannot be read is ignored.

    No other value depends on them, and so they make no segment unreadable.
    """
    text = raw.get(ITEM_COUNTS_KEY)
    numbers = None if text is None else _unpack(text, "q", 2 * STREAMS_MAX)
    if numbers is None or len(numbers) % 2 or min(numbers, default=0) < 0:
        return {}
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def _add(left: int, right: int) -> int:
    return (left + right) % _WORD


def _pack(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return base64.b64encode(zlib.compress(values.tobytes(), 1))


def _unpack(text: bytes, code: str, count_max: int) -> array[int] | None:
    """Return the numbers in *text*, or None if it is not valid or has more than *count_max*."""
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed, so that a decompression bomb is detected without unpacking it.
        data = inflater.decompress(base64.b64decode(text, validate=True), count_max * 8 + 1)
    except (ValueError, zlib.error):
        return None
    if len(data) > count_max * 8 or len(data) % 8 or not inflater.eof or inflater.unused_data:
        return None
    values = array(code, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
