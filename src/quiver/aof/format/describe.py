"""Human-readable descriptions of the files of a log: kind, content and problems. Bytes only; never raises."""

from __future__ import annotations

from typing import Any

from quiver.aof.format.durability import decode_durability
from quiver.aof.format.manifest_chunk import CHUNK_HEADER_BYTES, CHUNK_MAGIC, decode_chunk, decode_chunk_header
from quiver.aof.format.manifest_record import Event
from quiver.aof.format.names import (
    STATUS_NAME,
    parse_chunk_name,
    parse_index_name,
    parse_segment_name,
    parse_warm_name,
)
from quiver.aof.format.record import RecordEntry, entries, join_record_id, scan_records
from quiver.aof.format.sealed_pointer import POINTER_MAGIC, decode_pointer
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    FOOTER_MAGIC,
    HEADER_BYTES,
    SEGMENT_MAGIC,
    SegmentHeader,
    agrees_with,
    decode_footer,
    decode_header,
)
from quiver.aof.format.sink_batch import COMMITS, decode_begun
from quiver.aof.format.sparse_index import decode_index
from quiver.aof.format.status import STATUS_VERSION, decode_status
from quiver.aof.format.warm_file import decode_seek_table
from quiver.primitives.batch_notes import parse_note_name
from quiver.primitives.file_kinds import LIST_BYTES_MAX, LOG_BYTES_MAX, UNKNOWN, FileFormat, FileKind
from quiver.primitives.findings import Description, Problem
from quiver.primitives.scan import Frame, as_damage

__all__ = ["AOF_FILES"]

_NOTE_PREFIX = f'{{"{COMMITS.key}": '.encode()


def _kind_of(name: str, view: memoryview) -> str:
    """Return the kind of the file *name*, or `UNKNOWN`. Reads only the first bytes of *view*."""
    head = bytes(view[:8])
    if head == CHUNK_MAGIC.to_bytes(8, "little"):
        return "aof manifest"
    kind = {SEGMENT_MAGIC: "aof segment", POINTER_MAGIC: "aof pointer"}.get(int.from_bytes(head[:4], "little"))
    if kind is not None:
        return kind
    base = name.replace("\\", "/").rpartition("/")[2]
    if parse_segment_name(base) is not None:
        return "aof segment"
    if parse_chunk_name(base) is not None:
        return "aof manifest"
    if parse_warm_name(base) is not None:
        return "aof warm"
    if parse_index_name(base) is not None:
        return "aof index"
    if base == STATUS_NAME:
        return "aof status"
    note = parse_note_name(base)
    if note is not None or bytes(view[: len(_NOTE_PREFIX)]) == _NOTE_PREFIX:
        return "aof sink step" if note is not None and note[1] == "begun" else "aof sink commit"
    if base.removesuffix(".json").isdecimal() and base.endswith(".json"):
        return "aof durability"
    return UNKNOWN


def _describe_segment(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[4:6], "little") if len(view) >= HEADER_BYTES else None
    header = to.accept(decode_header(view))
    if header is None:
        return
    to.fields = {name: getattr(header, name) for name in header.__slots__}
    end = _describe_footer(to, view, header)
    limit = min(len(view), header.max_size - FOOTER_BYTES) if end is None else end
    scan = scan_records(view, HEADER_BYTES, max(limit, HEADER_BYTES))
    to.fields |= {"records": scan.record_count, "end": scan.end, "last_timestamp": scan.last_timestamp}
    if scan.damage is not None:
        sealed = end is not None
        to.problems.append(Problem(scan.damage.offset, scan.damage.reason, "damage" if sealed else "warning"))
    elif end is not None and scan.end != end:
        to.problems.append(Problem(scan.end, f"the records end here, according to the footer at {end}"))
    rows: list[dict[str, Any]] = []
    for entry in entries(view, HEADER_BYTES, scan.end):
        if not isinstance(entry, RecordEntry) or len(rows) == rows_max:
            break
        record_id = join_record_id(header.segment_index, entry.offset)
        rows.append({
            "record_id": record_id, "offset": entry.offset, "timestamp_ns": entry.timestamp, "ext_id": entry.ext_id,
            "bytes": len(entry.payload),
        })  # fmt: skip
    to.tables["records"] = rows


def _describe_footer(to: Description, view: memoryview, header: SegmentHeader) -> int | None:
    """Return the end of the records according to the footer; None when the segment is not sealed."""
    at = header.max_size - FOOTER_BYTES
    if len(view) < header.max_size:
        to.problems.append(
            Problem(len(view), f"the file ends before the {header.max_size} bytes of a segment", "warning")
        )
        return None
    foot = view[at : header.max_size]
    to.fields["sealed"] = int.from_bytes(foot[:4], "little") == FOOTER_MAGIC
    if not to.fields["sealed"]:
        if any(foot):
            to.problems.append(Problem(at, "neither a footer nor zeros where the footer belongs", "warning"))
        return None
    answer = decode_footer(foot)
    if not isinstance(answer, Frame):
        to.problems.append(Problem(at, as_damage(answer, len(foot)).reason))
        return None
    footer = answer.value
    wrong = agrees_with(footer, header)
    if wrong is not None:
        to.problems.append(Problem(at, wrong))
        return None
    to.fields |= {name: getattr(footer, name) for name in footer.__slots__ if name not in to.fields}
    return footer.durable_bytes - header.base_offset


def _describe_pointer(to: Description, view: memoryview, _rows_max: int) -> None:
    to.version = int.from_bytes(view[4:6], "little") if len(view) >= 6 else None
    pointer = to.accept(decode_pointer(view))
    if pointer is not None:
        to.fields = {name: getattr(pointer, name) for name in pointer.__slots__}


def _describe_durability(to: Description, view: memoryview, rows_max: int) -> None:
    rows = to.accept(decode_durability(view))
    if rows is not None:
        to.fields = {"segments": len(rows)}
        to.tables["segments"] = [{name: getattr(row, name) for name in row.__slots__} for row in rows[:rows_max]]


def _describe_status(to: Description, view: memoryview, rows_max: int) -> None:
    status = to.accept(decode_status(view))
    if status is None:
        return
    to.version = STATUS_VERSION
    to.fields = {"state": status.state, "writer": status.writer, "written_at_ns": status.written_at_ns}
    to.fields |= {name: value for name, value in status.figures.items() if not isinstance(value, dict)}
    for name, group in status.figures.items():
        if isinstance(group, dict):
            to.tables[name] = [{"name": key, "value": value} for key, value in group.items()][:rows_max]


def _describe_manifest(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:12], "little") if len(view) >= CHUNK_HEADER_BYTES else None
    header = to.accept(decode_chunk_header(view))
    if header is None:
        return
    to.fields = {name: getattr(header, name) for name in header.__slots__} | {"sealed": header.sealed}
    chunk = to.accept(decode_chunk(view))
    if chunk is None:
        return
    records = chunk[1]
    to.fields["records"] = len(records)
    to.tables["records"] = [
        {
            "kind": Event(one.kind).name if one.kind in Event.__members__.values() else one.kind,
            "segment_id": one.segment_id,
            "timestamp_ms": one.timestamp_ms,
            "fields": [value.hex() if isinstance(value, bytes) else value for value in one.fields],
        }
        for one in records[:rows_max]
    ]


def _describe_warm(to: Description, view: memoryview, rows_max: int) -> None:
    frames = to.accept(decode_seek_table(view, len(view)))
    if frames is not None:
        to.fields = {"frames": len(frames), "original_bytes": frames[-1].offset}
        to.tables["frames"] = [{name: getattr(one, name) for name in one.__slots__} for one in frames[:rows_max]]


def _describe_commit(to: Description, view: memoryview, rows_max: int) -> None:
    commit = to.accept(COMMITS.decode(view))
    if commit is not None:
        to.fields = {"writer": commit.writer, "batch": commit.batch, "parts": len(commit.parts)}
        to.tables["parts"] = [part._asdict() for part in commit.parts[:rows_max]]


def _describe_step(to: Description, view: memoryview, _rows_max: int) -> None:
    step = to.accept(decode_begun(view))
    if step is not None:
        to.fields = {name: getattr(step, name) for name in step.__slots__}


def _describe_index(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[4:6], "little") if len(view) >= 6 else None
    index = to.accept(decode_index(view))
    if index is not None:
        to.fields = {"segment_index": index.segment_index, "base_offset": index.base_offset, "end": index.end}
        to.tables["marks"] = [mark._asdict() for mark in index.marks[:rows_max]]


AOF_FILES = FileFormat(
    "an append-only log",
    _kind_of,
    {
        "aof segment": FileKind(_describe_segment, LOG_BYTES_MAX),
        "aof pointer": FileKind(_describe_pointer),
        "aof durability": FileKind(_describe_durability),
        "aof status": FileKind(_describe_status),
        "aof manifest": FileKind(_describe_manifest, LIST_BYTES_MAX),
        "aof warm": FileKind(_describe_warm, LOG_BYTES_MAX),
        "aof index": FileKind(_describe_index, LIST_BYTES_MAX),
        "aof sink commit": FileKind(_describe_commit, LIST_BYTES_MAX),
        "aof sink step": FileKind(_describe_step),
    },
)
