"""
Describe the bytes of any file of a store in human-readable form, as `quiver inspect` prints it. Bytes only.

The magic gives the file kind, or the name if the magic is damaged. Damage is part of the description, with its offset,
and everything that can still be read is included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quiver.primitives.file_kinds import LIST_BYTES_MAX, LOG_BYTES_MAX, UNKNOWN, FileFormat, FileKind
from quiver.primitives.findings import Description, Problem
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore, is_zero
from quiver.store.format.cursor import CURSOR_MAGIC, decode_cursor
from quiver.store.format.describe.side_files import SIDE_KINDS, side_kind_by_head, side_kind_by_name
from quiver.store.format.floor import FLOOR_MAGIC, decode_floor_file
from quiver.store.format.names import (
    CURSOR_NAME,
    SEGMENT_FLOOR,
    WAL_ACTIVE,
    parse_progress_name,
    parse_segment_name,
    parse_wal_rotated_name,
)
from quiver.store.format.progress import PROGRESS_MAGIC, decode_progress, progress_checksum
from quiver.store.format.segment.file import (
    SEGMENT_MAGIC,
    SEGMENT_TRAILER,
    STREAM_ALIGNMENT,
    SegmentFooter,
    StreamEntry,
    check_directory,
    check_segment_checksum,
    decode_directory,
    decode_segment_footer,
)
from quiver.store.format.segment.manifest import Manifest, check_manifest, decode_manifest
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE, WalEntry, decode_entry, find_entry
from quiver.store.format.wal_file import WAL_MAGIC, WalHeader, decode_wal_header

__all__ = ["STORE_FILES"]

Row = dict[str, Any]

_ARROW_MAGIC = b"ARROW1"
_BACKUP_SUFFIX = ".bak"
_HEAD_BYTES = 64
_FRAME_BYTES = 8
"""The length before an entry and the checksum after it."""


def _kind_of(name: str, view: memoryview) -> str:
    """Return the kind of the file *name*, or `UNKNOWN`. Reads only the first and the last bytes of *view*."""
    head = bytes(view[: len(WAL_MAGIC)])
    if head == WAL_MAGIC:
        return "wal"
    by_magic = {CURSOR_MAGIC: "cursor", FLOOR_MAGIC: "floor", PROGRESS_MAGIC: "progress"}
    kind = by_magic.get(head[: len(CURSOR_MAGIC)]) or side_kind_by_head(bytes(view[:_HEAD_BYTES]))
    if kind is not None:
        return kind
    trailer = bytes(view[-SEGMENT_TRAILER.size :])
    return "segment" if trailer[4:12] == SEGMENT_MAGIC else _kind_by_name(name)


def _kind_by_name(name: str) -> str:
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    exact = {WAL_ACTIVE: "wal", CURSOR_NAME: "cursor", SEGMENT_FLOOR: "floor"}
    if base in exact:
        return exact[base]
    if parse_wal_rotated_name(base) is not None:
        return "wal"
    if parse_segment_name(base) is not None:
        return "segment"
    if parse_progress_name(base.removesuffix(_BACKUP_SUFFIX)) is not None:
        return "progress"
    return side_kind_by_name(base) or UNKNOWN


def _u16_at(view: memoryview, offset: int) -> int | None:
    return int.from_bytes(view[offset : offset + 2], "little") if len(view) >= offset + 2 else None


def _describe_wal(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = _u16_at(view, len(WAL_MAGIC))
    header = to.accept(decode_wal_header(view))
    if header is None:
        return
    to.fields = {
        "header_size": header.header_size,
        "config_hash": header.config_hash.hex(),
        "wal_position_start": header.position_start,
    }
    rows: list[Row] = []
    counts = {"entries": 0, "bundles": 0, "rows": 0}
    offset, sequence = header.header_size, -1
    while True:
        answer = decode_entry(view, offset)
        if isinstance(answer, Frame):
            entry = answer.value
            _count_entry(counts, entry)
            if len(rows) < rows_max:
                rows.append(_entry_row(header, offset, answer.end, entry))
            if entry.entry_type == ENTRY_TYPE_BUNDLE:
                sequence = entry.sequence
            offset = answer.end
            continue
        if is_zero(view, offset):
            break
        found = _next_entry(view, offset, sequence + 1)
        to.problems.append(_entry_problem(answer, offset, found))
        if found is None:
            break
        offset = found
    to.fields |= counts
    to.fields["wal_position_end"] = header.position(offset)
    to.fields["bytes_behind_last_entry"] = len(view) - offset
    to.tables["entries"] = rows


def _next_entry(view: memoryview, damaged: int, sequence_min: int) -> int | None:
    # Try the damaged entry's own length first: if only its payload is damaged, nothing inside that payload may be
    # mistaken for an entry.
    claimed = damaged + _FRAME_BYTES + int.from_bytes(view[damaged : damaged + 4], "little")
    if claimed < len(view) and isinstance(decode_entry(view, claimed), Frame):
        return claimed
    return find_entry(view, damaged + 1, sequence_min)


def _entry_problem(answer: NeedMore | Damage, offset: int, found: int | None) -> Problem:
    if isinstance(answer, Damage):
        at, reason = answer.offset, answer.reason
    else:
        at, reason = offset, f"the entry is cut short: {answer.missing} bytes are missing"
    if found is None:
        # Nothing readable follows: a crash interrupted the write, and recovery truncates it.
        return Problem(at, f"torn tail: {reason}", "warning")
    return Problem(at, f"{reason}; {found - offset} bytes are lost, the next entry is at {found}")


def _count_entry(counts: dict[str, int], entry: WalEntry) -> None:
    counts["entries"] += 1
    counts["bundles"] += entry.entry_type == ENTRY_TYPE_BUNDLE
    counts["rows"] += sum(slot.row_count for slot in entry.slots)


def _entry_row(header: WalHeader, offset: int, end: int, entry: WalEntry) -> Row:
    return {
        "offset": offset,
        "bytes": end - offset,
        "wal_position": header.position(offset),
        "entry_type": entry.entry_type,
        "sequence": entry.sequence,
        "ingested_at_ns": entry.ingested_at_ns,
        "slots": [slot.slot for slot in entry.slots],
        "rows": [slot.row_count for slot in entry.slots],
        "payload_bytes": [len(slot.payload) for slot in entry.slots],
    }


def _describe_cursor(to: Description, view: memoryview, _rows_max: int) -> None:
    _describe_sidecar(to, view, "wal_position", decode_cursor(view))


def _describe_floor(to: Description, view: memoryview, _rows_max: int) -> None:
    answer = decode_floor_file(view)
    _describe_sidecar(
        to, view, "segment_floor", Frame(answer.value.value, answer.end) if isinstance(answer, Frame) else answer
    )
    if isinstance(answer, Frame) and answer.value.skipped is not None:
        to.fields["skipped_first"] = answer.value.skipped.start
        to.fields["skipped_end"] = answer.value.skipped.stop


def _describe_sidecar(to: Description, view: memoryview, name: str, answer: Answer[int]) -> None:
    to.version = _u16_at(view, 8)
    value = to.accept(answer)
    if isinstance(answer, Frame):
        to.fields = {"size": answer.end, name: value}
        if answer.end < len(view):
            to.problems.append(Problem(answer.end, "bytes after the end are ignored", "warning"))


def _describe_progress(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = _u16_at(view, 8)
    progress = to.accept(decode_progress(view))
    if progress is None:
        return
    if progress.flags:
        to.problems.append(Problem(12, f"flags {progress.flags:#06x} are not known to version 1", "warning"))
    to.fields = {
        "header_size": _u16_at(view, 10),
        "flags": progress.flags,
        "oldest_incomplete_seg": progress.oldest_incomplete,
        "entry_count": len(progress.entries),
        "checksum": progress_checksum(view),
    }
    to.tables["segments"] = [
        {
            "segment": seq,
            "bundles": entry.bundle_count,
            "finished": entry.bitmap.bit_count(),
            "waiting": entry.bundle_count - entry.bitmap.bit_count(),
        }
        for seq, entry in list(progress.entries.items())[:rows_max]
    ]


def _describe_segment(to: Description, view: memoryview, rows_max: int) -> None:
    footer = to.accept(decode_segment_footer(view))
    to.version = _footer_version(view)
    if footer is None:
        return
    problem = check_segment_checksum(view)
    to.note(problem)
    to.fields = {
        "stream_count": footer.stream_count,
        "bundle_count": footer.bundle_count,
        "directory_offset": footer.directory_offset,
        "directory_length": footer.directory_length,
        "manifest_offset": footer.manifest_offset,
        "manifest_length": footer.manifest_length,
        "checksum": "does not match" if problem else "matches",
    }
    directory = _describe_directory(to, view, footer, rows_max)
    _describe_manifest(to, view, footer, directory, rows_max)


def _footer_version(view: memoryview) -> int | None:
    trailer_at = len(view) - SEGMENT_TRAILER.size
    if trailer_at < 0 or view[trailer_at + 4 : trailer_at + 12] != SEGMENT_MAGIC:
        return None
    footer_at = trailer_at - SEGMENT_TRAILER.unpack_from(view, trailer_at)[0]
    return _u16_at(view[:trailer_at], footer_at) if footer_at >= 0 else None


def _describe_directory(
    to: Description, view: memoryview, footer: SegmentFooter, rows_max: int
) -> Sequence[StreamEntry] | None:
    at = footer.directory_offset
    directory = decode_directory(view[at : at + footer.directory_length], at=at)
    if isinstance(directory, Damage):
        to.note(directory)
        return None
    problem = check_directory(directory, footer)
    to.note(problem)
    to.tables["streams"] = [
        {
            "stream_id": stream.stream_id,
            "slot": stream.slot,
            "fingerprint": stream.fingerprint.hex(),
            "byte_offset": stream.byte_offset,
            "byte_length": stream.byte_length,
            "row_count": stream.row_count,
            "chunk_count": stream.chunk_count,
        }
        for stream in directory[:rows_max]
    ]
    if problem is not None:
        return None
    for stream in directory:
        at = stream.byte_offset
        if view[at : at + len(_ARROW_MAGIC)] != _ARROW_MAGIC:
            to.problems.append(Problem(at, f"stream {stream.stream_id} does not start as an Arrow IPC file"))
        elif at % STREAM_ALIGNMENT:
            reason = f"stream {stream.stream_id} does not start at a multiple of {STREAM_ALIGNMENT}"
            to.problems.append(Problem(at, reason, "warning"))
    return directory


def _describe_manifest(
    to: Description, view: memoryview, footer: SegmentFooter, directory: Sequence[StreamEntry] | None, rows_max: int
) -> None:
    at = footer.manifest_offset
    manifest = decode_manifest(view[at : at + footer.manifest_length], footer.bundle_count, at=at)
    if isinstance(manifest, Damage):
        to.note(manifest)
        return
    if directory is not None:
        to.note(check_manifest(manifest, directory, at=at))
    events = [one for one in manifest.event_columns if one.min_ns <= one.max_ns]
    to.fields |= {
        "wal_position_start": manifest.wal_position_start,
        "wal_position_end": manifest.wal_position_end,
        "sequence_first": manifest.sequence_first,
        "sequence_last": manifest.sequence_last,
        "item_count": None if manifest.item_counts is None else sum(manifest.item_counts),
        "ingested_min_ns": None if not manifest.ingested_times_ns else min(manifest.ingested_times_ns),
        "ingested_max_ns": None if not manifest.ingested_times_ns else max(manifest.ingested_times_ns),
        "event_min_ns": min((one.min_ns for one in events), default=None),
        "event_max_ns": max((one.max_ns for one in events), default=None),
    }
    if manifest.event_columns:
        to.tables["event times"] = [
            {
                "stream_id": one.stream_id,
                "column": one.column,
                "event_min_ns": one.min_ns if one.min_ns <= one.max_ns else None,
                "event_max_ns": one.max_ns if one.min_ns <= one.max_ns else None,
                "items": manifest.stream_items.get(one.stream_id),
            }
            for one in manifest.event_columns[:rows_max]
        ]
    to.tables["bundles"] = [_bundle_row(manifest, index) for index in range(min(rows_max, manifest.bundle_count))]


def _bundle_row(manifest: Manifest, index: int) -> Row:
    refs = manifest.refs(index)
    return {
        "bundle": index,
        "ingested_at_ns": manifest.ingested_at_ns(index),
        "slots": [ref.slot for ref in refs],
        "streams": [ref.stream_id for ref in refs],
        "chunks": [ref.chunk_index for ref in refs],
    }


STORE_FILES = FileFormat(
    "a store",
    _kind_of,
    {
        "wal": FileKind(_describe_wal, LOG_BYTES_MAX),
        "cursor": FileKind(_describe_cursor),
        "segment": FileKind(_describe_segment, LOG_BYTES_MAX),
        "floor": FileKind(_describe_floor),
        "progress": FileKind(_describe_progress, LIST_BYTES_MAX),
        **SIDE_KINDS,
    },
)
