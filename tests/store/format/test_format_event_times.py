"""The index of event times: what comes back, what is refused, and that no bytes make it raise."""

from __future__ import annotations

import base64
import zlib
from array import array

import format_segments as segments
import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.primitives.scan import Damage
from quiver.store.format.segment.event_times import (
    EVENT_COLUMNS_KEY,
    EVENT_TIMES_KEY,
    ITEM_COUNTS_KEY,
    NO_EVENTS,
    EventColumn,
    EventStream,
    decode_event_columns,
    decode_event_times,
    decode_item_counts,
    encode_event_streams,
    encode_item_counts,
)
from quiver.store.format.segment.file import StreamEntry
from quiver.store.format.segment.manifest import Manifest, check_manifest, decode_manifest

I64 = st.integers(-(2**63), 2**63 - 1)
STREAMS = [EventStream(0, 1, (1000, 1500, *NO_EVENTS)), EventStream(2, 0, (-5, 7))]
COUNTS = {0: 2, 1: 9, 2: 1}


def packed(values: list[int], code: str = "q") -> bytes:
    return base64.b64encode(zlib.compress(array(code, values).tobytes()))


def test_comes_back():
    """Columns with the range of the stream; times by stream."""
    raw = encode_event_streams(STREAMS)
    columns = decode_event_columns(raw, 0)
    assert columns == (EventColumn(0, 1, 1000, 1500), EventColumn(2, 0, -5, 7))
    times = decode_event_times(raw[EVENT_TIMES_KEY], columns, COUNTS, 0)
    assert {stream: list(found) for stream, found in times.items()} == {0: [1000, 1500, 0, -1], 2: [-5, 7]}


def test_nothing_to_say():
    """No entry at all; and a stream without any time has an empty range."""
    assert encode_event_streams([]) == {}
    assert decode_event_columns({}, 0) == ()
    assert decode_event_times(None, (), {0: 5}, 0) == {}
    assert EventStream(0, 0, (*NO_EVENTS, *NO_EVENTS)).range_ns() == NO_EVENTS
    assert EventStream(0, 0, ()).range_ns() == NO_EVENTS


@given(st.lists(st.lists(st.tuples(I64, I64), max_size=5), min_size=1, max_size=5))
def test_round_trip(chunks):
    """Any times, the outermost too: differences wrap around."""
    streams = [EventStream(number, 3, [end for pair in pairs for end in pair]) for number, pairs in enumerate(chunks)]
    raw = encode_event_streams(streams)
    columns = decode_event_columns(raw, 0)
    assert [column.stream_id for column in columns] == list(range(len(chunks)))
    times = decode_event_times(raw[EVENT_TIMES_KEY], columns, {i: len(c) for i, c in enumerate(chunks)}, 0)
    assert {stream: list(found) for stream, found in times.items()} == {
        stream.stream_id: list(stream.ranges) for stream in streams
    }
    for column, pairs in zip(columns, chunks, strict=True):
        sound = [pair for pair in pairs if pair[0] <= pair[1]]
        expected = (min(low for low, _ in sound), max(high for _, high in sound)) if sound else NO_EVENTS
        assert (column.min_ns, column.max_ns) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"", b"???", b"QUJD", packed([1, 2, 3]), packed([0, 1, 2, 3, 4]), packed([0, -1, 0, 0]),
        packed([0, 1, 2, 3, 0, 1, 2, 3]), packed([0] * 4_000_000), packed([0, 1, 2, 3])[:-8], b"\xff" * 100,
    ],
    ids=lambda text: str(text[:20]),
)  # fmt: skip
def test_columns_that_make_no_sense(text):
    """Not base64, not zlib, not four numbers each, a stream twice, a column below 0, a bomb."""
    answer = decode_event_columns({EVENT_COLUMNS_KEY: text}, 77)
    assert isinstance(answer, Damage)
    assert answer.offset == 77


@pytest.mark.parametrize(
    "text",
    [
        None, b"", b"?", packed([1] * 5, "Q"), packed([1] * 7, "Q"), packed([1] * 5_000_000, "Q"),
        base64.b64encode(zlib.compress(b"\0" * 47)), base64.b64encode(zlib.compress(b"\0" * 48) + b"more"),
    ],
    ids=lambda text: str(text and text[:20]),
)  # fmt: skip
def test_times_that_do_not_fit_the_directory(text):
    """Exactly two for each chunk of the named streams, in one value, and nothing after it."""
    columns = decode_event_columns(encode_event_streams(STREAMS), 0)
    assert not isinstance(decode_event_times(packed([1] * 6, "Q"), columns, COUNTS, 0), Damage)
    assert isinstance(decode_event_times(text, columns, COUNTS, 5), Damage)


def test_a_stream_that_is_not_there():
    """Named by the index only."""
    columns = decode_event_columns(encode_event_streams(STREAMS), 0)
    answer = decode_event_times(packed([1] * 6, "Q"), columns, {0: 2}, 9)
    assert isinstance(answer, Damage)
    assert "stream 2" in answer.reason


def test_mistreated():
    """Cut anywhere or flipped anywhere it is seen, by zlib's checksum; nothing raises."""
    raw = encode_event_streams(STREAMS)
    columns = decode_event_columns(raw, 0)
    for size in range(len(raw[EVENT_COLUMNS_KEY])):
        assert isinstance(decode_event_columns({EVENT_COLUMNS_KEY: raw[EVENT_COLUMNS_KEY][:size]}, 0), Damage)
    for size in range(len(raw[EVENT_TIMES_KEY])):
        assert isinstance(decode_event_times(raw[EVENT_TIMES_KEY][:size], columns, COUNTS, 0), Damage)
    for _, hurt in feeding.flips(raw[EVENT_COLUMNS_KEY]):
        answer = decode_event_columns({EVENT_COLUMNS_KEY: hurt}, 0)
        assert isinstance(answer, Damage) or answer == columns  # the last character has spare bits
    good = decode_event_times(raw[EVENT_TIMES_KEY], columns, COUNTS, 0)
    for _, hurt in feeding.flips(raw[EVENT_TIMES_KEY]):
        answer = decode_event_times(hurt, columns, COUNTS, 0)
        assert isinstance(answer, Damage) or answer == good


@given(st.binary(max_size=100))
def test_any_bytes(data):
    """Damage, or an answer; never an exception."""
    decode_event_columns({EVENT_COLUMNS_KEY: data}, 0)
    decode_event_times(data, [EventColumn(0, 0, 0, 0)], {0: 1}, 0)
    squeezed = base64.b64encode(zlib.compress(data))
    decode_event_columns({EVENT_COLUMNS_KEY: squeezed}, 0)
    decode_event_times(squeezed, [EventColumn(0, 0, 0, 0)], {0: 1}, 0)


def test_in_the_manifest():
    """They are read with it, and compared with the directory when the whole is verified."""
    builder = segments.manifest_builder()
    builder.events = [EventStream(1, 0, (1, 2, 3, 4))]
    manifest = decode_manifest(builder.encode(segments.METADATA, "spec"), 3)
    assert isinstance(manifest, Manifest)
    directory = tuple(StreamEntry(stream, slot, b"f" * 32, 0, 0, 0, 2) for stream, slot in enumerate((30, 31, 30)))
    assert check_manifest(manifest, directory) is None
    assert {stream: list(times) for stream, times in manifest.event_times(directory).items()} == {1: [1, 2, 3, 4]}
    fewer = tuple(StreamEntry(s.stream_id, s.slot, s.fingerprint, 0, 0, 0, 3) for s in directory)
    assert isinstance(check_manifest(manifest, fewer), Damage)


def test_item_counts():
    """They come back; without any there is no entry, and one that cannot be read is ignored."""
    raw = encode_item_counts({3: 10, 0: 2**40})
    assert decode_item_counts(raw) == {0: 2**40, 3: 10}
    assert encode_item_counts({}) == decode_item_counts({}) == {}
    for text in (b"", b"AAAA", packed([1], "q"), packed([0, -1], "q"), raw[ITEM_COUNTS_KEY][:-6]):
        assert decode_item_counts({ITEM_COUNTS_KEY: text}) == {}
