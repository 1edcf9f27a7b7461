"""Early progress: layout, limits, and what a damaged file looks like."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.errors import InvariantError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.early_progress import (
    EARLY_ENTRIES_MAX,
    EARLY_SEGMENTS_MAX,
    EarlyProgress,
    UnsealedSegment,
    decode_early_progress,
    encode_early_progress,
)

TWO = EarlyProgress(
    (UnsealedSegment(7, 4096, 60), UnsealedSegment(8, 9000, 163)),
    {("lake", 7): (103, (1 << 100) - 1), ("otlp", 8): (2, 2)},
)


def framed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def header(segments: int, entries: int) -> bytes:
    return struct.pack("<8sHHII4x", b"QUIVER\0E", 1, 24, segments, entries)


def entry(subscriber: bytes, seq: int, bundle_count: int, *words: int) -> bytes:
    return struct.pack("<64sQI4x", subscriber, seq, bundle_count) + struct.pack(f"<{len(words)}Q", *words)


SEGMENT = struct.pack("<QQQ", 7, 0, 0)


def test_layout_by_hand():
    """Header, segments, entries with their bitmaps, and the checksum are where the page puts them."""
    body = (
        header(2, 2)
        + struct.pack("<6Q", 7, 4096, 60, 8, 9000, 163)
        + entry(b"lake", 7, 103, 2**64 - 1, 2**36 - 1)
        + entry(b"otlp", 8, 2, 2)
    )
    assert encode_early_progress(TWO) == framed(body)
    assert decode_early_progress(memoryview(framed(body))) == Frame(TWO, len(body) + 4)


@pytest.mark.parametrize("progress", [EarlyProgress(), TWO], ids=["empty", "two"])
def test_mistreated(progress):
    """Cut anywhere it wants more, junk is left, and every flipped bit is seen."""
    data = encode_early_progress(progress)
    feeding.assert_prefixes_want_more(data, decode_early_progress)
    feeding.assert_junk_is_left(data, decode_early_progress, progress)
    feeding.assert_flips_are_seen(data, decode_early_progress)


@given(
    st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), max_size=4),
    st.dictionaries(st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True), st.integers(0, 2**130 - 1), max_size=4),
)
def test_round_trip(places, resolved):
    """All that is written is read."""
    segments = tuple(UnsealedSegment(seq * 3, *place) for seq, place in enumerate(places))
    names = {name: bits for name, bits in resolved.items() if name not in {"con", "prn", "aux", "nul"}}
    entries = {(name, one.seq): (130, bits) for name, bits in sorted(names.items()) for one in segments}
    progress = EarlyProgress(segments, entries)
    data = encode_early_progress(progress)
    assert decode_early_progress(memoryview(data)) == Frame(progress, len(data))


def test_a_larger_header_is_read():
    """A later version adds fields after those that are known."""
    body = struct.pack("<8sHHII4x", b"QUIVER\0E", 1, 32, 1, 0) + b"laterfld" + SEGMENT
    answer = decode_early_progress(memoryview(framed(body)))
    assert answer == Frame(EarlyProgress((UnsealedSegment(7, 0, 0),)), len(body) + 4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (header(EARLY_SEGMENTS_MAX + 1, 0), "segment_count"),
        (header(0, EARLY_ENTRIES_MAX + 1), "entry_count"),
        (struct.pack("<8sHHII4x", b"QUIVER\0E", 2, 24, 0, 0), "unsupported version 2"),
        (struct.pack("<8sHHII4x", b"QUIVER\0E", 1, 23, 0, 0), "header_size 23"),
        (header(2, 0) + SEGMENT + SEGMENT, "not ascending"),
        (header(1, 1) + SEGMENT + entry(b"x", 7, 65_537), "bundle_count 65537"),
        (header(1, 1) + SEGMENT + entry(b"x", 8, 0), "segment 8 of subscriber 'x' is not listed"),
        (header(1, 1) + SEGMENT + entry(b"", 7, 0), "not of a subscriber"),
        (header(1, 1) + SEGMENT + entry(b"a.b", 7, 0), "not of a subscriber"),
        (header(1, 2) + SEGMENT + entry(b"x", 7, 0) * 2, "comes after"),
        (header(1, 1) + SEGMENT + entry(b"x", 7, 2, 4), "beyond the 2 bundles"),
    ],
)
def test_contradictions_under_a_good_checksum(body, reason):
    """Lengths are bounded before they are used, and every value is checked."""
    answer = decode_early_progress(memoryview(framed(body)))
    assert isinstance(answer, Damage)
    assert reason in answer.reason


def test_what_cannot_be_read_is_not_written():
    """One segment above the limit."""
    segments = tuple(UnsealedSegment(seq, 0, 0) for seq in range(EARLY_SEGMENTS_MAX + 1))
    with pytest.raises(InvariantError, match="early progress lists more segments or subscribers than can be read"):
        encode_early_progress(EarlyProgress(segments))


@given(st.binary(max_size=300))
def test_any_bytes(data):
    """No bytes make it raise."""
    assert isinstance(decode_early_progress(memoryview(data)), Frame | Damage | NeedMore)
    decode_early_progress(memoryview(header(1, 1) + data))
