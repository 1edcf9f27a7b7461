"""The pages docs/formats/aof-*.md match the code: offsets, sizes, types, limits, kinds, examples."""

import dataclasses
import json
import re
import struct
from typing import Any

import pytest

from format_feeding import PAGES, code_of, page_of
from quiver.aof.format.durability import decode_durability, encode_durability
from quiver.aof.format.manifest_chunk import decode_chunk
from quiver.aof.format.manifest_record import LAYOUTS, Event
from quiver.aof.format.record import entries
from quiver.aof.format.sealed_pointer import decode_pointer
from quiver.aof.format.segment_file import decode_footer, decode_header
from quiver.aof.format.sink_batch import COMMITS
from quiver.aof.format.sparse_index import decode_index
from quiver.aof.format.status import decode_status, encode_status
from quiver.aof.format.warm_file import FRAME_BYTES, SKIPPABLE_MAGIC, decode_seek_table
from quiver.primitives.scan import Frame

CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
STRUCTS = {
    "aof-segment": ["SEGMENT_HEADER", "RECORD_HEAD", "SEGMENT_FOOTER"],
    "aof-pointer": ["SEALED_POINTER"],
    "aof-manifest": ["CHUNK_HEADER", "MANIFEST_RECORD_HEAD"],
    "aof-warm": ["SEEK_HEAD", "SEEK_ENTRY", "SEEK_FOOTER"],
    "aof-index": ["INDEX_HEADER", "INDEX_ENTRY"],
}
MAGICS = {
    "segment_file.SEGMENT_MAGIC": "aof-segment",
    "segment_file.FOOTER_MAGIC": "aof-segment",
    "sealed_pointer.POINTER_MAGIC": "aof-pointer",
    "manifest_chunk.CHUNK_MAGIC": "aof-manifest",
    "warm_file.SEEK_MAGIC": "aof-warm",
    "sparse_index.INDEX_MAGIC": "aof-index",
}


def examples_of(kind: str) -> dict[str, tuple[bytes, Any]]:
    found = re.findall(r"^```hex (\w+)\n(.*?)```\n\n```json\n(.*?)```", page_of(kind), re.MULTILINE | re.DOTALL)
    return {name: (bytes.fromhex(text), json.loads(reported)) for name, text, reported in found}


def value_of(answer: Any) -> Any:
    assert isinstance(answer, Frame), answer
    return answer.value


@pytest.mark.parametrize("kind", STRUCTS)
def test_field_tables_match_the_structs(kind):
    """Each table describes a Struct in the code: offsets without gaps, and the same format."""
    found = []
    pattern = r"^Struct `([\w.]+)`\n\n\| offset \| size \| type \| field \| meaning \|\n\|[-|]+\|\n((?:\|.*\|\n)+)"
    for dotted, table in re.findall(pattern, page_of(kind), re.MULTILINE):
        expected = code_of(dotted)
        found.append(dotted.rpartition(".")[2])
        fmt, at = "<", 0
        for line in table.splitlines():
            offset, size, type_name, _, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
            zeros = re.fullmatch(r"zeros\[(\d+)\]", type_name)
            code = f"{zeros[1]}x" if zeros else CODES[type_name]
            assert (int(offset), int(size)) == (at, struct.calcsize(f"<{code}")), line
            assert meaning
            fmt, at = fmt + code, at + int(size)
        assert (fmt, at) == (expected.format, expected.size)
    assert found == STRUCTS[kind]


@pytest.mark.parametrize("dotted", MAGICS)
def test_magics_match_the_constants(dotted):
    """The magic on the page is the one in the code."""
    assert f"| magic | `0x{code_of(f'quiver.aof.format.{dotted}'):X}` |" in page_of(MAGICS[dotted])


@pytest.mark.parametrize(
    ("kind", "count"), [("aof-segment", 1), ("aof-manifest", 1), ("aof-warm", 2), ("aof-index", 1), ("aof-sink", 2)]
)
def test_limits_match_the_constants(kind, count):
    """Each limit equals the constant in its row."""
    rows = re.findall(r"^\| [\w ]+ \| (\d+) \| `([\w.]+)` \|$", page_of(kind), re.MULTILINE)
    assert len(rows) == count
    for value, dotted in rows:
        assert int(value) == code_of(dotted)


def test_manifest_kinds_match_the_layouts():
    """Every kind is on the page with its number, and with as many fields as its layout."""
    rows = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \| (.*) \|$", page_of("aof-manifest"), re.MULTILINE)
    assert [(int(number), name) for number, name, _ in rows] == [(event.value, event.name) for event in Event]
    for number, _, reported in rows:
        layout = LAYOUTS[Event(int(number))]
        widths = re.findall(r"\bu(8|16|32|64)\b", reported)
        plain = [{"8": "B", "16": "H", "32": "I", "64": "Q"}[width] for width in widths]
        if set(layout) <= set("BHIQ"):
            assert plain == list(layout), reported


def test_the_segment_example_decodes_to_its_values():
    """Header, records and footer decode to the values next to them."""
    found = examples_of("aof-segment")
    header, expected = found["header"]
    assert dataclasses.asdict(value_of(decode_header(memoryview(header)))) == expected
    footer, expected = found["footer"]
    assert dataclasses.asdict(value_of(decode_footer(memoryview(footer)))) == expected
    records, expected = found["records"]
    view = memoryview(records)
    assert [[one.timestamp, one.ext_id, bytes(one.payload).decode()] for one in entries(view, 0, len(view))] == expected


def test_the_pointer_example_decodes_to_its_values():
    """The pointer decodes to the values next to it."""
    data, expected = examples_of("aof-pointer")["pointer"]
    assert dataclasses.asdict(value_of(decode_pointer(memoryview(data)))) == expected


def test_the_manifest_example_decodes_to_its_records():
    """The chunk decodes to the records next to it."""
    data, expected = examples_of("aof-manifest")["chunk"]
    _, records = value_of(decode_chunk(memoryview(data)))
    assert [
        [one.kind, one.segment_id, one.logical_offset, one.timestamp_ms, list(one.fields)] for one in records
    ] == expected


def test_the_warm_example_decodes_to_its_frames():
    """The table decodes to the documented frames, and frames have the documented size."""
    data, expected = examples_of("aof-warm")["table"]
    frames = value_of(decode_seek_table(memoryview(data), 140 + len(data)))
    assert [list(dataclasses.astuple(one)) for one in frames] == expected
    assert f"each of {FRAME_BYTES} bytes" in page_of("aof-warm")
    assert f"`0x{SKIPPABLE_MAGIC:X}`" in page_of("aof-warm")


def test_the_durability_example_round_trips():
    """The text is the encoding of the values below it, and decodes to these values."""
    page = page_of("aof-durability")
    text = re.findall(r"^```text\n(.*?)\n```", page, re.MULTILINE)[0].encode()
    decoded = json.loads(re.findall(r"^```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)[0])
    found = value_of(decode_durability(memoryview(text)))
    assert [dataclasses.asdict(one) for one in found] == decoded
    assert encode_durability(found) == text


def test_the_status_example_round_trips():
    """The text is the encoding of the values below it, and decodes to these values."""
    page = page_of("aof-status")
    text = re.findall(r"^```text\n(.*?)\n```", page, re.MULTILINE)[0].encode()
    decoded = json.loads(re.findall(r"^```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)[0])
    found = value_of(decode_status(memoryview(text)))
    assert dataclasses.asdict(found) == decoded
    assert encode_status(found) == text


def test_the_index_example_decodes_to_its_marks():
    """The index decodes to the marks next to it."""
    data, expected = examples_of("aof-index")["index"]
    found = value_of(decode_index(memoryview(data)))
    assert {**dataclasses.asdict(found), "marks": [list(mark) for mark in found.marks]} == expected


def test_the_sink_example_is_the_encoded_text():
    """The text is exactly the output of the code."""
    (text,) = re.findall(r"^```text\n(.*?)```", page_of("aof-sink"), re.MULTILINE | re.DOTALL)
    commit = value_of(COMMITS.decode(text.encode()))
    assert COMMITS.encode(commit) == text.encode()
    assert commit.parts[0].records == 2


def test_the_index_lists_all_pages():
    """The index also names the code of each page."""
    pages = [path.name for path in PAGES.glob("aof-*.md")]
    assert [name for name in pages if f"({name})" not in page_of("README")] == []
