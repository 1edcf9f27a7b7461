"""The files of a slot: golden bytes, files of real clients, and damage."""

from __future__ import annotations

import importlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from vector_values import VECTORS

from quiver.errors import SettingsError
from quiver.primitives.checksum import crc32c
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.qwp.format.dead_letters import (
    DeadLetterRecord,
    decode_dead_letter,
    decode_dead_letters_header,
    encode_dead_letter,
    encode_dead_letters_header,
)
from quiver.qwp.format.names import check_sender_id, generation_of, is_segment_name, segment_name
from quiver.qwp.format.newer import (
    MANIFEST_MAGIC,
    NEWER_RECORD,
    DualRecord,
    decode_dual_record,
    decode_symbol_file,
)
from quiver.qwp.format.segment import (
    SEGMENT_HEADER,
    SegmentHeader,
    decode_frame,
    decode_segment_header,
    encode_frame_head,
    encode_segment_header,
    frames_after,
    scan_segment,
)
from quiver.qwp.format.watermark import WATERMARK_MAGIC, decode_watermark, encode_watermark
from quiver.qwp.wire.decoder import decode_message
from quiver.qwp.wire.varint import encode_varint

PAGES = Path(__file__).parents[2] / "docs" / "formats"
REAL_SLOT = VECTORS / "slot-5.0.0-dense"


def _page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def _segment(*payloads: bytes, base: int = 0, flags: int = 0, size: int = 400) -> bytes:
    data = encode_segment_header(SegmentHeader(base, 5, flags))
    data += b"".join(encode_frame_head(payload) + payload for payload in payloads)
    return data.ljust(size, b"\0")


def _scan(data: bytes) -> Any:
    answer = scan_segment(memoryview(data))
    assert isinstance(answer, Frame), answer
    return answer.value


@pytest.mark.parametrize(
    ("page", "structs"),
    [
        ("qwp-segment", ["SEGMENT_HEADER", "FRAME_HEAD"]),
        ("qwp-slot", ["WATERMARK", "DEAD_LETTERS_HEADER", "DEAD_LETTER", "NEWER_RECORD", "SYMBOL_FILE"]),
        ("qwp-message", ["MESSAGE_HEADER"]),
    ],
)
def test_field_tables_match_the_structs(page, structs):
    """Offsets without gaps, sizes and types: each table equals the Struct named above it."""
    codes = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
    found = []
    pattern = r"^Struct `([\w.]+)`\n\n\| offset \| size \| type \| field \| meaning \|\n\|[-|]+\|\n((?:\|.*\|\n)+)"
    for dotted, table in re.findall(pattern, _page(page), re.MULTILINE):
        module, _, name = dotted.rpartition(".")
        found.append(name)
        layout, at = "<", 0
        for line in table.splitlines():
            offset, size, kind, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
            array = re.fullmatch(r"(bytes|zeros)\[(\d+)\]", kind)
            code = f"{array[2]}{'s' if array[1] == 'bytes' else 'x'}" if array else codes[kind]
            assert (int(offset), int(size)) == (at, struct.calcsize(f"<{code}")), line
            layout, at = layout + code, at + int(size)
        assert layout == getattr(importlib.import_module(module), name).format
    assert found == structs


def test_limits_and_types_match_the_constants():
    """Each number equals its constant, each type its code."""
    page = _page("qwp-message")
    limits = re.findall(r"^\| [^|]+ \| (\d+) \| `([\w.]+)` \|$", page, re.MULTILINE)
    assert len(limits) == 8
    for value, dotted in limits:
        module, _, name = dotted.rpartition(".")
        assert getattr(importlib.import_module(module), name) == int(value)
    kinds = importlib.import_module("quiver.qwp.wire.column_types")
    rows = re.findall(r"^\| (0x\w\w) \| (\w+) \| .* \| ([^|]+) \|$", page, re.MULTILINE)
    assert [(int(code, 16), name) for code, name, _ in rows] == [(int(kind), kind.name) for kind in kinds.ColumnType]
    assert {name for _, name, null in rows if null != "bitmap"} == {kind.name for kind in kinds.SENTINELS}


def _examples(page: str) -> dict[str, tuple[bytes, Any]]:
    pattern = r"^```hex ?(.*?)\n(.*?)```(?:\n\n```json\n(.*?)```)?"
    found = re.findall(pattern, _page(page), re.MULTILINE | re.DOTALL)
    return {name: (bytes.fromhex(text), json.loads(reported) if reported else None) for name, text, reported in found}


def test_examples_decode_to_the_documented_values():
    """The hex on each page equals the encoded bytes, and decodes to the documented values."""
    data, expected = _examples("qwp-segment")[""]
    scan = _scan(data)
    assert [list(one) for one in scan.payloads] == expected["payloads"]
    header = scan.header
    assert {"base": header.base, "created_us": header.created_us, "flags": header.flags} == {
        key: expected[key] for key in ("base", "created_us", "flags")
    }
    data, expected = _examples("qwp-slot")["watermark"]
    assert encode_watermark(expected["confirmed"]) == data
    data, expected = _examples("qwp-slot")["dead letters"]
    letter = DeadLetterRecord(**expected, message=b"QWP1")
    assert encode_dead_letters_header() + encode_dead_letter(letter) == data
    data, expected = _examples("qwp-message")[""]
    message = decode_message(memoryview(data))
    assert isinstance(message, Frame)
    table = message.value.tables[0]
    assert {"table": table.name, **{column.name: column.values() for column in table.columns}} == expected


def test_file_names_round_trip():
    """Built names parse; foreign names have no number."""
    assert segment_name(0x1F) == "sf-000000000000001f.sfa"
    assert generation_of(segment_name(2**64 - 1)) == 2**64 - 1
    assert generation_of("sf-initial.sfa") is None
    assert is_segment_name("sf-initial.sfa")
    assert not is_segment_name("sf-0000000000000000.sfa.00000000.damaged")
    for bad in ("", "a/b", "..", ".", "a\\b", "a b", "x" * 256):
        with pytest.raises(SettingsError):
            check_sender_id(bad)


def test_the_slot_of_a_real_client_is_read():
    """Segments of the official client 5: headers, frame numbers and rows."""
    rows = 0
    base = 0
    for number in range(2):
        data = (REAL_SLOT / segment_name(number)).read_bytes()
        scan = _scan(data)
        assert (scan.header.base, scan.header.flags, scan.torn, scan.later) == (base, 0, False, None)
        base += len(scan.payloads)
        for start, end in scan.payloads:
            assert encode_frame_head(data[start:end]) == data[start - 8 : start]
            message = decode_message(memoryview(data)[start:end])
            assert isinstance(message, Frame)
            assert message.value.is_self_sufficient
            rows += sum(table.rows for table in message.value.tables)
        assert encode_segment_header(scan.header) == data[:24]
    assert (base, rows) == (13, 37)
    assert isinstance(decode_watermark(memoryview((REAL_SLOT / ".ack-watermark").read_bytes())), Damage)


def test_a_header_is_checked_field_by_field():
    """Another magic, version or flag, reserved bytes, a negative base: each is damage at its offset."""
    good = encode_segment_header(SegmentHeader(3, 4))
    assert good[:8] == b"SF01\1\0\0\0"
    assert decode_segment_header(memoryview(good)) == Frame(SegmentHeader(3, 4), 24)
    assert isinstance(decode_segment_header(memoryview(_segment(flags=1))), Frame)
    for at, byte, words in (
        (0, b"T", "magic"), (4, b"\2", "unsupported version 2"), (5, b"\2", "unsupported flags"),
        (6, b"\1", "reserved"),
        (15, b"\x80", "negative"),
    ):  # fmt: skip
        answer = decode_segment_header(memoryview(good[:at] + byte + good[at + 1 :]))
        assert isinstance(answer, Damage)
        assert words in answer.reason
    for size in range(24):
        assert isinstance(decode_segment_header(memoryview(good)[:size]), NeedMore)


def test_frames_end_where_zeros_begin():
    """Zeros and negative lengths are not frames, and a frame must not exceed the file."""
    assert isinstance(decode_frame(memoryview(bytes(16)), 0), NeedMore)
    assert isinstance(decode_frame(memoryview(struct.pack("<Ii", 0, -1)), 0), Damage)
    assert crc32c(bytes(4)) == 0x48674BC7
    complete = encode_frame_head(b"abc") + b"abc"
    for size in range(len(complete)):
        assert isinstance(decode_frame(memoryview(complete)[:size], 0), NeedMore)
    for at in range(len(complete)):
        flipped = complete[:at] + bytes([complete[at] ^ 0x10]) + complete[at + 1 :]
        assert not isinstance(decode_frame(memoryview(flipped), 0), Frame)


def test_a_scan_stops_at_the_torn_frame():
    """For every part of the last frame: the earlier frames are read, and the rest is reported as torn."""
    first, second = b"QWP1" + b"a" * 20, b"QWP1" + b"b" * 30
    data = _segment(first, second)
    clean = _scan(data)
    assert len(clean.payloads) == 2
    assert (clean.torn, clean.later) == (False, None)
    start = clean.payloads[1][0] - 8
    for cut in range(start + 1, clean.tail):
        scan = _scan(data[:cut].ljust(len(data), b"\0"))
        assert len(scan.payloads) == 1
        assert scan.tail == start
        assert scan.torn == any(data[start : min(cut, start + 8)])
        assert scan.later is None


def test_intact_frames_after_a_hole_are_detected():
    """Lost pages in the middle are not the end of what was written."""
    payloads = [b"QWP1" + bytes([65 + number]) * 20 for number in range(4)]
    data = bytearray(_segment(*payloads))
    starts = [start for start, _ in _scan(bytes(data)).payloads]
    data[starts[1] - 8 : starts[2] - 8] = bytes(starts[2] - starts[1])
    scan = _scan(bytes(data))
    assert len(scan.payloads) == 1
    assert scan.later == starts[2] - 8


def test_an_incomplete_watermark_is_ignored():
    """Zeros, another magic, reserved bytes and a negative number all count as no watermark."""
    assert decode_watermark(memoryview(encode_watermark(7))) == Frame(7, 16)
    for data in (bytes(16), b"AKW2" + bytes(12), b"AKW1\1" + bytes(11), encode_watermark(-1), b"XXXX" + bytes(12)):
        assert isinstance(decode_watermark(memoryview(data)), Damage)
    for size in range(16):
        assert isinstance(decode_watermark(memoryview(encode_watermark(7))[:size]), NeedMore)


def _dual(*records: tuple[int, int, int, int], magic: bytes = MANIFEST_MAGIC, version: int = 1) -> bytes:
    data = bytearray(8192)
    for place, generation, first, second in records:
        record = NEWER_RECORD.pack(magic, version, generation, first, second, 0)[:60]
        data[place : place + 64] = record + struct.pack("<I", crc32c(record))
    return bytes(data)


def test_the_newer_of_two_records_is_used():
    """The valid record with the higher generation; an invalid one is ignored."""
    both = _dual((4096, 7, 3, 9), (0, 8, 4, 9))
    assert decode_dual_record(memoryview(both), MANIFEST_MAGIC) == Frame(DualRecord(8, 4, 9), 8192)
    torn = both[:20] + b"\xff" + both[21:]
    assert decode_dual_record(memoryview(torn), MANIFEST_MAGIC) == Frame(DualRecord(7, 3, 9), 8192)
    middle = _dual((0, 1, -1, 0), (64, 2, 5, 0), magic=WATERMARK_MAGIC)[:128]
    assert decode_dual_record(memoryview(middle), WATERMARK_MAGIC) == Frame(DualRecord(2, 5, 0), 128)
    assert isinstance(decode_dual_record(memoryview(bytes(8192)), MANIFEST_MAGIC), Damage)
    assert isinstance(decode_dual_record(memoryview(both[:10]), MANIFEST_MAGIC), NeedMore)
    later = decode_dual_record(memoryview(_dual((0, 8, 4, 9), version=2)), MANIFEST_MAGIC)
    assert isinstance(later, Damage)
    assert "unsupported version 2" in later.reason


def test_symbol_files_of_both_versions_are_decoded():
    """Up to the first invalid entry: these files were never synced."""

    def entry(text: str) -> bytes:
        return encode_varint(len(text.encode())) + text.encode()

    def crc(data: bytes) -> bytes:
        return data + struct.pack("<I", crc32c(data))

    pieces = {
        1: [crc(encode_varint(2) + encode_varint(5) + entry("a") + entry("é")), crc(b"\1\2" + entry("b"))],
        2: [crc(entry("a")), crc(entry("é")), crc(entry("b"))],
    }
    for version, chunks in pieces.items():
        head = b"SYD1" + bytes([version, 0, 0, 0])
        data = head + b"".join(chunks)
        assert decode_symbol_file(memoryview(data)) == Frame(("a", "é", "b"), len(data))
        for size in range(8, len(data)):
            answer = decode_symbol_file(memoryview(data)[:size])
            assert isinstance(answer, Frame)
            assert answer.value == ("a", "é", "b")[: len(answer.value)]
        assert isinstance(decode_symbol_file(memoryview(data)[:7]), NeedMore)
        flipped = data[:9] + b"\xff" + data[10:]
        assert decode_symbol_file(memoryview(flipped)).value == ()
    assert isinstance(decode_symbol_file(memoryview(b"SYD1\3\0\0\0")), Damage)
    assert isinstance(decode_symbol_file(memoryview(b"SYD1\1\1\0\0")), Damage)
    assert isinstance(decode_symbol_file(memoryview(b"NOPE\1\0\0\0")), Damage)


def test_dead_letters_end_at_the_last_complete_record():
    """Header, records, and each prefix of the last one."""
    header = encode_dead_letters_header()
    assert decode_dead_letters_header(memoryview(header)) == Frame(None, 8)
    for size in range(8):
        assert isinstance(decode_dead_letters_header(memoryview(header)[:size]), NeedMore)
    assert isinstance(decode_dead_letters_header(memoryview(b"QDL1\2\0\x08\0")), Damage)
    assert isinstance(decode_dead_letters_header(memoryview(b"QDL2\1\0\x08\0")), Damage)
    letter = DeadLetterRecord(9, 10, 3, "grund", b"QWP1....")
    data = header + encode_dead_letter(letter)
    assert decode_dead_letter(memoryview(data), 8) == Frame(letter, len(data))
    for size in range(8, len(data)):
        assert isinstance(decode_dead_letter(memoryview(data)[:size], 8), NeedMore)
    for at in range(8, len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert not isinstance(decode_dead_letter(memoryview(flipped), 8), Frame)
    long = DeadLetterRecord(0, 0, 3, "é" * 40_000, b"")
    again = decode_dead_letter(memoryview(encode_dead_letter(long)), 0)
    assert isinstance(again, Frame)
    assert again.value.reason == "é" * 32_767


def test_a_flipped_byte_loses_one_frame():
    """At every offset after the header: all frames before and after it are found."""
    payloads = [b"QWP1" + bytes([number]) * (3 + 5 * number) for number in range(5)]
    frames = [encode_frame_head(payload) + payload for payload in payloads]
    data = encode_segment_header(SegmentHeader(0, 1)) + b"".join(frames) + bytes(64)
    at = SEGMENT_HEADER.size
    for lost, frame in enumerate(frames):
        for offset in range(at, at + len(frame)):
            for bit in (1, 0x80):
                broken = bytearray(data)
                broken[offset] ^= bit
                view = memoryview(broken)
                answer = scan_segment(view)
                assert isinstance(answer, Frame)
                found = [*answer.value.payloads, *frames_after(view, answer.value.tail)]
                assert [bytes(view[start:end]) for start, end in found] == payloads[:lost] + payloads[lost + 1 :]
        at += len(frame)
