r"""
Names and notes of batches that many processes stage and one owner imports. Pure: bytes and names only.

::

    <writer>/<batch>-<partition>-<attempt>/…   staged: written and synced by one attempt of one task
    <writer>/<batch>.commit                    the batch is committed
    <writer>/<batch>.begun                     the owner is importing it
    <writer>/<batch>.done                      the owner has imported it: the commit under another name

A note is two lines of text: JSON in UTF-8, and eight hexadecimal digits, the CRC-32 (IEEE) of the first line without
its line end. The JSON of a commit names the format and its version, the writer, the batch and its parts::

    {"quiver_commit": 1, "writer": "…", "batch": 12, "parts": […]}

Decoders ignore other keys, so a later version may add some.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "BATCH_MAX",
    "NOTE_BYTES_MAX",
    "ONCE_PREFIX",
    "BatchCommit",
    "CommitCodec",
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
"""Prefix of the name of a writer that writes a single batch. Nothing of such a writer has to be kept."""

NOTE_BYTES_MAX = 16 * 1024 * 1024
"""Longer notes are not read."""

BATCH_MAX = 2**63 - 1

_VERSION = 1
_CRC_LINE_BYTES = 9
_WRITER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOTE = re.compile(r"([0-9]{20})\.(commit|begun|done)")
_DIRECTORY = re.compile(r"([0-9]{20})-([0-9]{5,10})-([A-Za-z0-9]{1,40})")

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class BatchCommit(Generic[Part]):
    """
    One committed batch.

    Attributes:
        writer: a query's id, or a name that a program chose. Batches are numbered per writer.
        batch: its number. The numbers of a writer only grow.
        parts: the staged files, in order.
    """

    writer: str
    batch: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CommitCodec(Generic[Part]):
    """
    The commits of one log format.

    Attributes:
        key: the JSON key that names the format; its value is the version.
        decode_part: returns the part that a JSON value describes, or None if it does not describe one.
        path_of: returns the path of a part, relative to the writer's directory.
    """

    key: str
    decode_part: Callable[[object], Part | None]
    path_of: Callable[[Part], str]

    def encode_note(self, value: Mapping[str, Any]) -> bytes:
        """Return a note of this format with the keys of *value*."""
        return encode_note({self.key: _VERSION, **value})

    def decode_note(self, data: Buffer) -> Answer[dict[str, Any]]:
        """Decode a note of this format."""
        answer = decode_note(data)
        if isinstance(answer, Frame) and answer.value.get(self.key) != _VERSION:
            return Damage(0, f"not a note with {self.key}, or one of an unsupported version")
        return answer

    def encode(self, commit: BatchCommit[Part]) -> bytes:
        """Return the complete file of a commit."""
        return self.encode_note({"writer": commit.writer, "batch": commit.batch, "parts": commit.parts})

    def decode(self, data: Buffer) -> Answer[BatchCommit[Part]]:
        """Decode a commit. Every part in the answer is in a staging directory of its batch and nowhere else."""
        answer = self.decode_note(data)
        if not isinstance(answer, Frame):
            return answer
        writer, batch, listed = (answer.value.get(key) for key in ("writer", "batch", "parts"))
        if not isinstance(writer, str) or not is_writer(writer) or not is_count(batch) or batch > BATCH_MAX:
            return Damage(0, "a commit without a valid writer or batch number")
        decoded = [self.decode_part(one) for one in listed] if isinstance(listed, list) else [None]
        parts = tuple(part for part in decoded if part is not None)
        paths = [self.path_of(part) for part in parts]
        is_below = all(parse_part_directory(path.partition("/")[0]) == batch for path in paths)
        if len(parts) < len(decoded) or len(set(paths)) < len(paths) or not is_below:
            return Damage(0, "a commit that names a file that is not a part of its batch, or names one twice")
        return Frame(BatchCommit(writer, batch, parts), answer.end)


def is_writer(name: str) -> bool:
    """Return whether *name* is a valid name of a writer: 1 to 64 of ``A-Za-z0-9_-``."""
    return _WRITER.fullmatch(name) is not None


def is_count(value: object) -> TypeGuard[int]:
    """Return whether *value*, from a note, is an integer of at least 0. JSON's true does not count."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def commit_name(batch: int) -> str:
    """Return the file name of the commit of *batch*."""
    return f"{batch:020}.commit"


def begun_name(batch: int) -> str:
    """Return the name of the file that records how much of *batch* may have been imported."""
    return f"{batch:020}.begun"


def done_name(batch: int) -> str:
    """Return the name of the file that records that *batch* was imported."""
    return f"{batch:020}.done"


def parse_note_name(name: str) -> tuple[int, str] | None:
    """Return the batch and the kind of the note called *name*; None if it is not the name of a note."""
    match = _NOTE.fullmatch(name)
    return (int(match[1]), match[2]) if match is not None and int(match[1]) <= BATCH_MAX else None


def part_directory(batch: int, partition: int, attempt: str) -> str:
    """Return the name of the directory in which one attempt of one task stages its parts."""
    return f"{batch:020}-{partition:05}-{attempt}"


def parse_part_directory(name: str) -> int | None:
    """Return the batch of the staging directory called *name*; None if it is not the name of one."""
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else int(match[1])


def encode_note(value: Mapping[str, Any]) -> bytes:
    """Return the complete file of a note."""
    line = json.dumps(value).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_note(data: Buffer) -> Answer[dict[str, Any]]:
    """Decode a note, which is a JSON object. The caller checks its keys."""
    content = bytes(data)
    if len(content) > NOTE_BYTES_MAX:
        return Damage(0, f"a note of {len(content)} bytes")
    line, newline, rest = content.partition(b"\n")
    if not newline:
        return NeedMore(1 + _CRC_LINE_BYTES)
    if len(rest) < _CRC_LINE_BYTES:
        return NeedMore(_CRC_LINE_BYTES - len(rest))
    if rest != b"%08x\n" % crc32(line):
        return Damage(len(line) + 1, "the checksum of the note differs")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Damage(0, "the note is not JSON")
    if not isinstance(value, dict):
        return Damage(0, "the note is not a JSON object")
    return Frame(value, len(content))
