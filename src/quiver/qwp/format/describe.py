"""Descriptions of the files of a slot. No I/O."""

from __future__ import annotations

from typing import Any

from quiver.primitives.file_kinds import LOG_BYTES_MAX, UNKNOWN, FileFormat, FileKind
from quiver.primitives.findings import Description, Problem
from quiver.primitives.scan import Frame
from quiver.qwp.format.dead_letters import decode_dead_letter, decode_dead_letters_header
from quiver.qwp.format.names import WATERMARK_NAME, is_segment_name, number_of_dead_letters
from quiver.qwp.format.newer import decode_dual_record
from quiver.qwp.format.segment import SEGMENT_VERSION, scan_segment
from quiver.qwp.format.watermark import WATERMARK, WATERMARK_MAGIC, decode_watermark

__all__ = ["SLOT_FILES"]


def _kind_of(name: str, _view: memoryview) -> str:
    """Return the kind of the file *name* of a slot, or `UNKNOWN`. The name alone decides."""
    file = name.replace("\\", "/").rpartition("/")[2]
    if number_of_dead_letters(file) is not None:
        return "qwp dead letters"
    if file == WATERMARK_NAME:
        return "qwp watermark"
    return "qwp segment" if is_segment_name(file) else UNKNOWN


def _describe_segment(to: Description, data: memoryview, rows_max: int) -> None:
    scan = to.accept(scan_segment(data))
    if scan is None:
        return
    to.version = SEGMENT_VERSION
    base = scan.header.base
    to.fields = {
        "flags": scan.header.flags,
        "first_frame": base,
        "next_frame": base + len(scan.payloads),
        "created_us": scan.header.created_us,
        "frames": len(scan.payloads),
        "written_bytes": scan.tail,
    }
    to.tables["frames"] = [
        {"frame": base + index, "offset": start, "bytes": end - start}
        for index, (start, end) in enumerate(scan.payloads[:rows_max])
    ]
    if scan.later is not None:
        to.problems.append(Problem(scan.tail, f"invalid bytes, followed by an intact frame at {scan.later}"))
    elif scan.torn:
        to.problems.append(Problem(scan.tail, "a torn tail", "warning"))


def _describe_watermark(to: Description, data: memoryview, _rows_max: int) -> None:
    if len(data) > WATERMARK.size:
        record = to.accept(decode_dual_record(data, WATERMARK_MAGIC))
        if record is not None:
            to.version, to.fields = 2, {"confirmed": record.first}
        return
    to.version = 1
    if not any(data):
        to.fields = {"confirmed": None}  # created, but nothing was confirmed yet
        return
    confirmed = to.accept(decode_watermark(data))
    if confirmed is not None:
        to.fields = {"confirmed": confirmed}


def _describe_dead_letters(to: Description, data: memoryview, rows_max: int) -> None:
    header = decode_dead_letters_header(data)
    if not isinstance(header, Frame):
        to.accept(header)
        return
    to.version = 1
    end, rows = header.end, list[dict[str, Any]]()
    while isinstance(answer := decode_dead_letter(data, end), Frame):
        letter = answer.value
        rows.append({
            "frame": letter.fsn, "at_ns": letter.at_ns, "status": letter.status, "reason": letter.reason,
            "bytes": len(letter.message),
        })  # fmt: skip
        end = answer.end
    to.fields = {"letters": len(rows)}
    to.tables["letters"] = rows[:rows_max]
    if end < len(data):
        to.problems.append(Problem(end, "a torn tail", "warning"))


SLOT_FILES = FileFormat(
    "a slot",
    _kind_of,
    {
        "qwp segment": FileKind(_describe_segment, LOG_BYTES_MAX),
        "qwp watermark": FileKind(_describe_watermark),
        "qwp dead letters": FileKind(_describe_dead_letters, LOG_BYTES_MAX),
    },
)
