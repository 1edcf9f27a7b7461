"""The pages in docs/formats match the code: offsets, sizes, types, limits, columns, examples."""

import base64
import dataclasses
import json
import re
import struct
import zlib
from typing import Any

import format_segments as segments
import pyarrow as pa
import pytest

from format_feeding import PAGES, code_of, page_of
from quiver.primitives.scan import Frame
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.segment.event_times import (
    EVENT_COLUMNS_KEY,
    EVENT_TIMES_KEY,
    EventStream,
    decode_event_columns,
    decode_event_times,
    encode_event_streams,
)
from quiver.store.format.segment.file import DIRECTORY_SCHEMA, decode_segment_footer
from quiver.store.format.segment.manifest import INGESTED_AT_KEY

KINDS = [
    "wal", "cursor", "segment", "progress", "early-progress", "floor", "drops", "cores", "room", "retry-set",
    "cold-list", "fleet-positions", "fleet-batch",
]  # fmt: skip
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}
STRUCTS = {
    "wal": ["WAL_HEADER", "ENTRY_HEAD", "SLOT_HEAD", "CRC"],
    "cursor": ["SIDECAR"],
    "segment": ["SEGMENT_FOOTER", "SEGMENT_TRAILER"],
    "progress": ["PROGRESS_HEADER", "PROGRESS_ENTRY"],
    "early-progress": ["EARLY_HEADER", "EARLY_SEGMENT", "EARLY_ENTRY"],
    "floor": ["SIDECAR", "FLOOR_SKIPPED"],
    "drops": ["DROP_HEADER", "DROP_ENTRY"],
    "cores": ["SIDECAR"],
    "room": ["SIDECAR"],
    "retry-set": ["RETRY_HEADER", "RETRY_ENTRY"],
    "cold-list": ["COLD_HEADER", "COLD_ENTRY", "COLD_CHANGE"],
    "fleet-positions": ["ACKS_HEADER", "ACK_ENTRY"],
    "fleet-batch": ["OFFSETS_HEADER", "OFFSETS_NODE", "OFFSETS_OBJECT"],
}
LIMITS = {
    "wal": 2,
    "cursor": 0,
    "segment": 5,
    "progress": 2,
    "early-progress": 3,
    "floor": 0,
    "drops": 2,
    "cores": 1,
    "room": 0,
    "retry-set": 4,
    "cold-list": 4,
    "fleet-positions": 2,
    "fleet-batch": 3,
}
EXAMPLES = {
    "wal": 1,
    "cursor": 1,
    "segment": 0,
    "progress": 2,
    "early-progress": 1,
    "floor": 2,
    "drops": 0,
    "cores": 1,
    "room": 1,
    "retry-set": 1,
    "cold-list": 1,
    "fleet-positions": 1,
    "fleet-batch": 1,
}


def rows_under(page: str, heading: str) -> list[list[str]]:
    """The rows of every table whose heading line is *heading*."""
    rows = []
    for table in re.findall(rf"^{re.escape(heading)}\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE):
        rows += [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_field_tables(kind):
    """Each table is that of a Struct in the code: offsets without gaps, and the very same format."""
    found = []
    pattern = r"^Struct `([\w.]+)`\n\n\| offset \| size \| type \| field \| meaning \|\n\|[-|]+\|\n((?:\|.*\|\n)+)"
    for dotted, table in re.findall(pattern, page_of(kind), re.MULTILINE):
        expected = code_of(dotted)
        found.append(dotted.rpartition(".")[2])
        fmt, at = "<", 0
        for line in table.splitlines():
            offset, size, type_name, _, meaning = (cell.strip() for cell in line.strip("|").split(" | "))
            array = re.fullmatch(r"(bytes|zeros)\[(\d+)\]", type_name)
            code = f"{array[2]}{'s' if array[1] == 'bytes' else 'x'}" if array else CODES[type_name]
            assert (int(offset), int(size)) == (at, struct.calcsize(f"<{code}")), line
            assert meaning
            fmt, at = fmt + code, at + int(size)
        assert (fmt, at) == (expected.format, expected.size)
    assert found == STRUCTS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_limits(kind):
    """Each limit is the constant that is named beside it."""
    rows = rows_under(page_of(kind), "| limit | value | constant |")
    for _, value, dotted in rows:
        assert int(value) == code_of(dotted.strip("`"))
    assert len(rows) == LIMITS[kind]


def _is_within(said: Any, told: Any) -> bool:
    if isinstance(said, dict):
        return all(key in told and _is_within(value, told[key]) for key, value in said.items())
    return bool(said == told)


@pytest.mark.parametrize("kind", KINDS)
def test_examples(kind):
    """The hex decodes to the values beside it."""
    examples = re.findall(r"^```hex\n(.*?)```\n\n```json\n(.*?)```", page_of(kind), re.MULTILINE | re.DOTALL)
    for text, reported in examples:
        description = STORE_FILES.describe("unnamed", memoryview(bytes.fromhex(text))).as_dict()
        assert _is_within(json.loads(reported), description), description
    assert len(examples) == EXAMPLES[kind]


def test_segment_example():
    """The footer, after as many zeros as the page gives, decodes to the values next to it."""
    page = page_of("segment")
    text, reported = re.findall(r"^```hex footer\n(.*?)```\n\n```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)[0]
    zeros = int(re.findall(r"all ([\d,]+) bytes before it were zero", page)[0].replace(",", ""))
    data = memoryview(bytes(zeros) + bytes.fromhex(text))
    answer = decode_segment_footer(data)
    assert isinstance(answer, Frame)
    assert dataclasses.asdict(answer.value) == json.loads(reported)
    assert int.from_bytes(data[-4:], "little") == code_of("quiver.primitives.checksum.crc32")(data[:-4])


def test_event_times_example():
    """The two texts are what is written for the values below them, and are read as these values."""
    page = page_of("event-times")
    texts = dict(re.findall(r"^```text (\S+)\n(.*?)\n```", page, re.MULTILINE))
    raw = {key.encode(): text.encode() for key, text in texts.items()}
    decoded = json.loads(re.findall(r"^```json\n(.*?)```", page, re.MULTILINE | re.DOTALL)[0])
    columns = decode_event_columns(raw, 0)
    assert [list(column) for column in columns] == decoded["streams"]
    counts = {int(stream_id): len(chunks) for stream_id, chunks in decoded["chunks"].items()}
    times = decode_event_times(raw[EVENT_TIMES_KEY], columns, counts, 0)
    flat = {
        int(stream_id): [time for chunk in chunks for time in chunk] for stream_id, chunks in decoded["chunks"].items()
    }
    assert {stream_id: list(found) for stream_id, found in times.items()} == flat
    streams = [EventStream(stream_id, column, flat[stream_id]) for stream_id, column, *_ in decoded["streams"]]
    written = encode_event_streams(streams)
    assert list(written) == [EVENT_COLUMNS_KEY, EVENT_TIMES_KEY] == list(raw)
    for key, text in written.items():  # one zlib packs tighter than another
        assert zlib.decompress(base64.b64decode(text)) == zlib.decompress(base64.b64decode(raw[key]))
    for part in ("## Versions", "## Profiles", "## Where the format is silent"):
        assert page.count(part) == 1


def test_directory_and_manifest_columns():
    """Names, types, nullability and order are those that are written."""
    page = page_of("segment")
    rows = rows_under(page, "| column | type | nullable | meaning |")
    written = [[field.name, str(field.type), "yes" if field.nullable else "no"] for field in DIRECTORY_SCHEMA]
    builder = segments.manifest_builder(item_counts=(1, 2, 3))
    builder.events = [EventStream(0, 0, (1, 2, 3, 4))]
    builder.stream_items = {0: 5}
    metadata = dataclasses.replace(segments.METADATA, directory_crc32=1)
    schemas = {profile: pa.ipc.open_file(builder.encode(metadata, profile)).schema for profile in ("spec", "otap")}
    refs = schemas["spec"].field("slot_refs").type.value_type
    written += [[child.name, str(child.type), "yes" if child.nullable else "no"] for child in refs]
    assert [row[:3] for row in rows] == written
    manifest = rows_under(page, "| column | type | nullable | profile | meaning |")
    assert [row[0] for row in manifest] == schemas["otap"].names
    assert [row[0] for row in manifest if row[3] == "both"] == schemas["spec"].names
    for name, kind, nullable, *_ in manifest:
        field = schemas["otap"].field(name)
        assert ("yes" if field.nullable else "no") == nullable
        assert str(field.type).startswith(kind.split(" ", maxsplit=1)[0])
    keys = [row[0].strip("`").encode() for row in rows_under(page, "| key | value |")]
    assert sorted(keys) == sorted(schemas["spec"].metadata)
    assert INGESTED_AT_KEY in keys


@pytest.mark.parametrize(("kind", "dotted"), [
    ("wal", "wal_file.WAL_MAGIC"), ("cursor", "cursor.CURSOR_MAGIC"), ("floor", "floor.FLOOR_MAGIC"),
    ("drops", "drop_ledger.DROP_MAGIC"), ("cold-list", "cold_list.COLD_MAGIC"), ("cores", "cores.CLAIM_MAGIC"),
    ("room", "room.CAP_MAGIC"), ("fleet-positions", "fleet.acks.ACKS_MAGIC"),
    ("fleet-batch", "fleet.offsets.OFFSETS_MAGIC"),
    ("early-progress", "early_progress.EARLY_MAGIC"),
    ("segment", "segment.file.SEGMENT_MAGIC"), ("progress", "progress.PROGRESS_MAGIC"),
])  # fmt: skip
def test_magics(kind, dotted):
    """The magic on the page is the one in the code, and every page has the same parts."""
    page = page_of(kind)
    shown = code_of(f"quiver.store.format.{dotted}").decode().replace("\0", r"\0")
    assert f"| magic | `{shown}` |" in page
    for part in ("## Versions", "## Profiles", "## Where the format is silent"):
        assert page.count(part) == 1


def test_the_index_names_every_page():
    """No page is missing from README.md."""
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    for page in PAGES.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
