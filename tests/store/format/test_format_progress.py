"""The progress file of a subscriber, in both profiles."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_crc32
from quiver.errors import InvariantError
from quiver.primitives.checksum import crc32c
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.progress import (
    Progress,
    SegmentProgress,
    decode_progress,
    encode_progress,
    progress_checksum,
)

EMPTY = Progress(0, {})
ONE = Progress(5, {5: SegmentProgress(3, 0b101)})
HEAD_EMPTY = "5155495653554200010020000000000000000000000000000000000000000000"
BODY_ONE = (
    "5155495653554200010020000000050000000000000001000000000000000000"  # the head
    "0500000000000000030000000100"  # segment 5, 3 bundles, 1 word
    "0500000000000000"
)
GOLDEN = {
    ("otap", "empty"): bytes.fromhex(HEAD_EMPTY + "5d29f376"),
    ("spec", "empty"): bytes.fromhex(HEAD_EMPTY + "fa64f50b"),
    ("otap", "one"): bytes.fromhex(BODY_ONE + "1e39e7e4"),
    ("spec", "one"): bytes.fromhex(BODY_ONE + "5e8ef2a6"),
}


@st.composite
def segments(draw):
    count = draw(st.integers(0, 300))
    return SegmentProgress(count, draw(st.integers(0, (1 << count) - 1)))


progresses = st.builds(
    Progress,
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, 2**64 - 1), segments(), max_size=5),
)


def header(entry_count: int, *, version: int = 1, size: int = 32, flags: int = 0) -> bytes:
    return struct.pack("<8sHHHQI6x", b"QUIVSUB\0", version, size, flags, 9, entry_count)


@pytest.mark.parametrize(("key", "data"), GOLDEN.items(), ids=[" ".join(key) for key in GOLDEN])
def test_golden(key, data):
    """The engine's two files byte by byte; with CRC-32C in their place in the document's profile."""
    profile, which = key
    progress = EMPTY if which == "empty" else ONE
    assert encode_progress(progress, profile=profile) == data
    assert decode_progress(memoryview(data)) == Frame(progress, len(data))
    assert progress_checksum(memoryview(data)) == {"spec": "crc32c", "otap": "crc32"}[profile]


def test_which_checksum():
    """`spec` is CRC-32C, `otap` is zlib's CRC-32, over all bytes before it."""
    spec, otap = GOLDEN["spec", "one"], GOLDEN["otap", "one"]
    assert spec[-4:] == crc32c(spec[:-4]).to_bytes(4, "little")
    assert otap[-4:] == zlib.crc32(otap[:-4]).to_bytes(4, "little")
    assert spec[:-4] == otap[:-4]
    assert progress_checksum(memoryview(b"abc")) is None
    assert progress_checksum(memoryview(b"abcdefgh")) is None


@given(progresses, st.sampled_from(["spec", "otap"]))
def test_round_trip(progress, profile):
    """Every stored progress is read back, ascending."""
    answer = decode_progress(memoryview(encode_progress(progress, profile=profile)))
    assert isinstance(answer, Frame)
    assert answer.value == progress
    assert list(answer.value.entries) == sorted(progress.entries)


@pytest.mark.parametrize("data", GOLDEN.values(), ids=[" ".join(key) for key in GOLDEN])
def test_mistreated(data):
    """A prefix is incomplete or damaged, never valid; flipped bits and trailing junk are detected."""
    for size in range(len(data)):
        assert not isinstance(decode_progress(memoryview(data)[:size]), Frame), size
    feeding.assert_flips_are_seen(data, decode_progress)
    for junk in (b"\0", b"junk", data):
        assert isinstance(decode_progress(memoryview(data + junk)), Damage)


def test_short_files_say_how_much_is_missing():
    """A head alone wants a checksum; a head with an entry to come wants that too."""
    assert decode_progress(memoryview(header(0))) == NeedMore(4)
    assert decode_progress(memoryview(header(1) + bytes(4))) == NeedMore(14)


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_other_versions_are_refused(version):
    """A future version is named even though its checksum is right."""
    answer = decode_progress(memoryview(with_crc32(header(0, version=version))))
    assert isinstance(answer, Damage)
    assert (answer.offset, f"unsupported version {version}" in answer.reason) == (8, True)


def test_a_larger_head_is_read():
    """Fields added to the head are skipped by `header_size`."""
    body = header(1, size=40) + b"new" + bytes(5) + struct.pack("<QIHQ", 7, 64, 1, 2**64 - 1)
    answer = decode_progress(memoryview(with_crc32(body)))
    assert answer == Frame(Progress(9, {7: SegmentProgress(64, 2**64 - 1)}), len(body) + 4)


def test_a_smaller_head_is_refused():
    """Version 1 has 32 bytes at least."""
    answer = decode_progress(memoryview(with_crc32(header(0, size=31) + bytes(8))))
    assert answer == Damage(10, "header_size 31 is below 32")


def test_flags_are_handed_on():
    """Unknown flags warn and do not fail: the caller sees them."""
    answer = decode_progress(memoryview(with_crc32(header(0, flags=0x8001))))
    assert answer == Frame(Progress(9, {}, flags=0x8001), 36)
    assert encode_progress(answer.value, profile="otap")[12:14] == b"\0\0"


def test_bytes_behind_the_entries_are_ignored():
    """Bytes that a later writer adds between the last entry and the checksum are skipped."""
    data = with_crc32(header(0) + b"something new")
    assert decode_progress(memoryview(data)) == Frame(Progress(9, {}), len(data))


@pytest.mark.parametrize(
    "body",
    [
        header(1_000_001),
        header(1),
        header(1) + struct.pack("<QIH", 1, 65_537, 1025) + bytes(1025 * 8),
        header(1) + struct.pack("<QIHQ", 1, 65, 1, 0),
        header(1) + struct.pack("<QIHQ", 1, 0, 1, 0),
        header(1) + struct.pack("<QIH", 1, 2**32 - 1, 65535),
        header(1) + struct.pack("<QIH", 1, 64, 1),
        header(2) + struct.pack("<QIHQ", 1, 64, 1, 0) * 2,
    ],
)
def test_contradictions_under_a_good_checksum(body):
    """Counts beyond the limits, words that do not fit the bundles, a segment twice: damage, in little memory."""
    assert isinstance(decode_progress(memoryview(with_crc32(body))), Damage)


def test_bits_beyond_the_last_bundle_are_ignored():
    """Bits that another writer sets beyond the last bundle have no effect."""
    body = header(1) + struct.pack("<QIHQ", 1, 3, 1, 2**64 - 1)
    assert decode_progress(memoryview(with_crc32(body))).value.entries == {1: SegmentProgress(3, 0b111)}


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 65_535, 65_536])
def test_sizes_at_the_edges(count):
    """Word boundaries and the largest segment come back whole."""
    progress = Progress(1, {1: SegmentProgress(count, (1 << count) - 1)})
    answer = decode_progress(memoryview(encode_progress(progress, profile="otap")))
    assert answer.value == progress


@pytest.mark.parametrize("entry", [SegmentProgress(65_537, 0), SegmentProgress(3, 0b1000)])
def test_what_cannot_be_read_is_not_written(entry):
    """A file that no reader would accept is never written."""
    with pytest.raises(InvariantError, match="a progress file has one bit for each bundle of a segment"):
        encode_progress(Progress(0, {0: entry}), profile="spec")


@given(st.binary(max_size=100), st.booleans())
def test_any_bytes(data, fix):
    """No bytes make it raise, with a good checksum neither."""
    decode_progress(memoryview(data))
    data = b"QUIVSUB\0\x01\0 \0" + data
    decode_progress(memoryview(with_crc32(data) if fix else data))
