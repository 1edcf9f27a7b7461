r"""
Names and notes of batches that many processes stage and one owner takes over. Bytes and names only.

::

    <writer>/<batch>-<partition>-<attempt>/…   staged: written and synced by one attempt of one task
    <writer>/<batch>.commit                    the batch counts
    <writer>/<batch>.begun                     the owner is taking it over
    <writer>/<batch>.done                      the owner has it: the commit under another name

A note is two lines of text: JSON, UTF-8, and eight hexadecimal digits: the CRC-32 (IEEE) of that line, without its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "BATCH_MAX",
    "NOTE_BYTES_MAX",
    "ONCE_PREFIX",
    "begun_name",
    "commit_name",
    "decode_note",
    "done_name",
    "encode_note",
    "is_count",
    "is_writer",
    "parse_note_name",
    "parse_part_directory",
    "part_directory",
]

ONCE_PREFIX = "job-"
"""How a writer is called that writes one batch and never again: nothing of it need stay."""

NOTE_BYTES_MAX = 16 * 1024 * 1024
"""A longer note is not read."""

BATCH_MAX = 2**63 - 1

_CRC_LINE_BYTES = 9
_WRITER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOTE = re.compile(r"([0-9]{20})\.(commit|begun|done)")
_DIRECTORY = re.compile(r"([0-9]{20})-([0-9]{5,10})-([A-Za-z0-9]{1,40})")


def is_writer(name: str) -> bool:
    """Say whether *name* can be a writer's: 1 to 64 of ``A-Za-z0-9_-``."""
    return _WRITER.fullmatch(name) is not None


def is_count(value: object) -> TypeGuard[int]:
    """Say whether *value*, out of a note, is a whole number from 0 on. JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def commit_name(batch: int) -> str:
    """Return the file name of the commit of *batch*."""
    return f"{batch:020}.commit"


def begun_name(batch: int) -> str:
    """Return the name of the file that says how far *batch* may have been taken over."""
    return f"{batch:020}.begun"


def done_name(batch: int) -> str:
    """Return the name of the file that says that *batch* was taken over."""
    return f"{batch:020}.done"


def parse_note_name(name: str) -> tuple[int, str] | None:
    """Return the batch of a note, and which of the three it is; None when *name* is none."""
    match = _NOTE.fullmatch(name)
    return (int(match[1]), match[2]) if match is not None and int(match[1]) <= BATCH_MAX else None


def part_directory(batch: int, partition: int, attempt: str) -> str:
    """Return the name of the directory in which one attempt of one task stages its parts."""
    return f"{batch:020}-{partition:05}-{attempt}"


def parse_part_directory(name: str) -> int | None:
    """Return the batch that a staging directory belongs to, or None when *name* is none."""
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else int(match[1])


def encode_note(value: Mapping[str, Any]) -> bytes:
    """Return the whole file."""
    line = json.dumps(value).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_note(data: Buffer) -> Answer[dict[str, Any]]:
    """Return what a note says: a JSON object. What its keys should be is the caller's business."""
    whole = bytes(data)
    if len(whole) > NOTE_BYTES_MAX:
        return Damage(0, f"a note of {len(whole)} bytes")
    line, newline, rest = whole.partition(b"\n")
    if not newline:
        return NeedMore(1 + _CRC_LINE_BYTES)
    if len(rest) < _CRC_LINE_BYTES:
        return NeedMore(_CRC_LINE_BYTES - len(rest))
    if rest != b"%08x\n" % crc32(line):
        return Damage(len(line) + 1, "the checksum of the note differs")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Damage(0, "the note is no JSON")
    if not isinstance(value, dict):
        return Damage(0, "the note is no JSON object")
    return Frame(value, len(whole))
