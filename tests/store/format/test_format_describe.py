"""`describe` on valid, truncated, corrupted and foreign files. It never raises."""

import json
import struct
import zlib

import format_segments as segments
import pytest
from hypothesis import given
from hypothesis import strategies as st

import format_feeding as feeding
from disk_files import with_new_crc32
from quiver.primitives.findings import Description, Problem
from quiver.store.format.cursor import encode_cursor
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.floor import encode_floor
from quiver.store.format.progress import Progress, SegmentProgress, encode_progress
from quiver.store.format.segment.manifest import ManifestMetadata
from quiver.store.format.wal_entry import WalEntry, WalSlot, encode_entry
from quiver.store.format.wal_file import encode_wal_header

NAMES = ["quiver.wal", "quiver.wal.3", "quiver.wal.cursor", "0000000000000001.qseg", "quiver.segment.floor",
         "quiver.sub.x", "other"]  # fmt: skip
HEAD = encode_wal_header(b"h" * 16, 500)
ENTRIES = [
    encode_entry(WalEntry(0, 10 + sequence, sequence, (WalSlot(30, b"f" * 32, 2, memoryview(b"payload" * sequence)),)))
    for sequence in range(1, 5)
]
WAL = HEAD + b"".join(ENTRIES)
ENDS = [len(HEAD) + sum(map(len, ENTRIES[:count])) for count in range(5)]
SEGMENT = segments.build_segment()


def told(name: str, data: bytes, **kwargs: int) -> Description:
    description = STORE_FILES.describe(name, memoryview(data), **kwargs)
    assert json.loads(json.dumps(description.as_dict())) == description.as_dict()
    assert all(0 <= problem.offset <= len(data) for problem in description.problems)
    assert description.size_bytes == len(data)
    return description


def test_wal():
    """Header, entries and where the log ends."""
    description = told("wal/quiver.wal", WAL)
    assert (description.kind, description.version, description.is_intact, description.problems) == ("wal", 1, True, [])
    assert description.fields == {
        "header_size": 38,
        "config_hash": (b"h" * 16).hex(),
        "wal_position_start": 500,
        "entries": 4,
        "bundles": 4,
        "rows": 8,
        "wal_position_end": 500 + len(WAL) - 38,
        "bytes_behind_last_entry": 0,
    }
    rows = description.tables["entries"]
    assert [(row["offset"], row["sequence"], row["slots"], row["rows"]) for row in rows] == [
        (end, sequence, [30], [2]) for sequence, end in enumerate(ENDS[:4], 1)
    ]
    assert rows[1]["wal_position"] == 500 + ENDS[1] - 38


def test_wal_rows_are_limited_and_counts_are_not():
    """A long log is not printed whole."""
    description = told("quiver.wal", WAL, rows_max=2)
    assert len(description.tables["entries"]) == 2
    assert description.fields["entries"] == 4


def test_wal_zeros_ahead():
    """Zeros after the last entry cause no warning."""
    description = told("quiver.wal", WAL + bytes(100_000))
    assert (description.is_intact, description.problems) == (True, [])
    assert description.fields["bytes_behind_last_entry"] == 100_000


def test_wal_unknown_entry_types_are_listed():
    """Entries of a later version are counted, not damaged."""
    body = b"\x01" + b"checkpoint"
    later = struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body))
    description = told("quiver.wal", WAL + later + ENTRIES[3])
    assert (description.fields["entries"], description.fields["bundles"], description.is_intact) == (6, 5, True)


@pytest.mark.parametrize("zeros", [0, 5000])
def test_wal_cut_anywhere(zeros):
    """A cut entry at the end is a torn tail at its own start: a warning, and everything before it is there."""
    for size in range(len(HEAD), len(WAL)):
        description = told("quiver.wal", WAL[:size] + bytes(zeros))
        complete = sum(end <= size for end in ENDS[1:])
        assert description.fields["entries"] >= complete
        if size in ENDS:
            assert description.problems == []
        elif not zeros:
            assert [problem.offset for problem in description.problems] == [ENDS[complete]]
            assert "torn tail" in description.problems[0].reason
        assert description.is_intact


def test_wal_flipped_anywhere():
    """A flipped entry is damage at that entry, the later ones still come out, and positions stay right."""
    for at, hurt in feeding.flips(WAL):
        description = told("quiver.wal", hurt)
        if at < len(HEAD):
            continue
        number = sum(end <= at for end in ENDS[1:])
        assert [problem.offset for problem in description.problems] == [ENDS[number]], (at, description.problems)
        assert [row["sequence"] for row in description.tables["entries"]] == [
            sequence for sequence in range(1, 5) if sequence != number + 1
        ]
        assert description.is_intact == (number == 3)


def test_wal_header_cut_and_unsupported():
    """A truncated header reports how much is missing, a later version its number."""
    assert [p.reason for p in told("quiver.wal", HEAD[:20]).problems] == ["cut short: at least 18 bytes are missing"]
    description = told("quiver.wal", HEAD[:10] + b"\x02" + HEAD[11:])
    assert description.version == 2
    assert "unsupported version 2" in description.problems[0].reason


@pytest.mark.parametrize(
    ("data", "kind", "fields"),
    [
        (encode_cursor(77), "cursor", {"size": 24, "wal_position": 77}),
        (encode_floor(9), "floor", {"size": 24, "segment_floor": 9}),
    ],
)
def test_sidecars(data, kind, fields):
    """The magic identifies a file under any name; bytes after the end are a warning."""
    description = told("whatever", data)
    assert (description.kind, description.version, description.fields) == (kind, 1, fields)
    assert description.problems == []
    longer = told("whatever", data + b"x")
    assert longer.is_intact
    assert longer.problems[0].offset == 24
    for _, hurt in feeding.flips(data):
        assert not told("whatever", hurt).is_intact
    for size in range(len(data)):
        assert not told("quiver.wal.cursor", data[:size]).is_intact


@pytest.mark.parametrize(("profile", "checksum"), [("spec", "crc32c"), ("otap", "crc32")])
def test_progress(profile, checksum):
    """Which checksum it has, and how far each segment is."""
    data = encode_progress(Progress(5, {5: SegmentProgress(3, 0b101), 6: SegmentProgress(70, 0)}), profile=profile)
    description = told("quiver.sub.exporter", data)
    assert (description.kind, description.version, description.is_intact) == ("progress", 1, True)
    assert description.fields == {
        "header_size": 32, "flags": 0, "oldest_incomplete_seg": 5, "entry_count": 2, "checksum": checksum,
    }  # fmt: skip
    assert description.tables["segments"] == [
        {"segment": 5, "bundles": 3, "finished": 2, "waiting": 1},
        {"segment": 6, "bundles": 70, "finished": 0, "waiting": 70},
    ]
    for _, hurt in feeding.flips(data):
        assert not told("quiver.sub.exporter", hurt).is_intact
    for size in range(len(data)):
        assert not told("quiver.sub.exporter", data[:size]).is_intact


def test_progress_flags_are_a_warning():
    """Unknown flags are named, and the rest is described."""
    data = bytearray(encode_progress(Progress(5, {}), profile="otap"))
    data[12] = 3
    description = told("quiver.sub.x", with_new_crc32(bytes(data)))
    assert (description.is_intact, description.fields["flags"]) == (True, 3)
    assert description.problems == [Problem(12, "flags 0x0003 are not known to version 1", "warning")]


def test_segment():
    """Footer, streams, bundles and the part of the log it covers."""
    description = told("segments/0000000000000007.qseg", SEGMENT)
    assert (description.kind, description.version, description.problems) == ("segment", 1, [])
    fields = description.fields
    assert (fields["stream_count"], fields["bundle_count"], fields["checksum"]) == (3, 3, "matches")
    assert (fields["wal_position_start"], fields["wal_position_end"]) == (1000, 2500)
    assert [(row["slot"], row["row_count"]) for row in description.tables["streams"]] == [(30, 3), (31, 3), (30, 1)]
    assert description.tables["bundles"][2] == {
        "bundle": 2, "ingested_at_ns": segments.TIMES_NS[2], "slots": [30, 31], "streams": [2, 1], "chunks": [0, 1],
    }  # fmt: skip
    assert told("x", segments.build_segment(profile="otap")).fields["item_count"] == 6
    assert len(told("x", SEGMENT, rows_max=1).tables["bundles"]) == 1


def test_segment_cut_anywhere():
    """A segment that was never finished is damaged, under its name and under another."""
    for size in range(0, len(SEGMENT), 7):
        description = told("0000000000000007.qseg", SEGMENT[:size])
        assert description.kind == "segment"
        assert not description.is_intact


def test_segment_flipped_anywhere():
    """Every flipped bit is detected; the readable rest is described."""
    for at, hurt in list(feeding.flips(SEGMENT))[::5]:
        description = told("0000000000000007.qseg", hurt)
        assert (description.kind, description.is_intact) == ("segment", False), at
    hurt = bytearray(SEGMENT)
    hurt[100] ^= 1
    description = told("0000000000000007.qseg", bytes(hurt))
    assert description.fields["checksum"] == "does not match"
    assert len(description.tables["bundles"]) == 3


def test_segment_contradictions_under_a_good_checksum():
    """A later footer is named; a manifest of other streams and a stream that is none are pointed at."""
    data = bytearray(SEGMENT)
    data[-50] = 2
    description = told("x", with_new_crc32(bytes(data)))
    assert description.version == 2
    assert "unsupported version 2" in description.problems[0].reason
    builder = segments.manifest_builder()
    data = segments.build_segment(manifest=builder.encode(ManifestMetadata(), "spec"))
    assert told("x", data).fields["wal_position_end"] is None
    wrong = segments.ManifestBuilder()
    for _ in range(3):
        wrong.append((30,), (1,), (0,), 0)
    description = told("x", segments.build_segment(manifest=wrong.encode(ManifestMetadata(), "spec")))
    assert [problem.offset for problem in description.problems] == [description.fields["manifest_offset"]]
    description = told("x", with_new_crc32(b"BROKEN" + SEGMENT[6:]))
    assert [problem.offset for problem in description.problems] == [0]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=80))
def test_any_bytes(name, data):
    """Any bytes under any name get an answer, and no made-up content is reported as intact."""
    assert not told(name, data).is_intact
    for magic in (b"QUIVER\0WAL", b"QUIVER\0T", b"QUIVER\0F", b"QUIVSUB\0"):
        told(name, magic + data)
    told(name, data + b"\x22\0\0\0QUIVER\0S\0\0\0\0")


def test_foreign_files():
    """A file of another kind is unknown, with any contents."""
    description = told("README.md", b"# Quiver\n")
    assert (description.kind, description.version, description.is_intact) == ("unknown", None, False)
    assert told("a\\b\\quiver.sub.x", b"").kind == "progress"
