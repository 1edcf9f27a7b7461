r"""
What a Spark sink committed: which staged segments belong to one batch of one writer. Bytes and names only.

::

    incoming/<writer>/<batch>-<partition>-<attempt>/0000000000000000.qseg    staged: written and synced by a task
    incoming/<writer>/<batch>.commit                                          the batch counts, with the parts it names

A commit is one line of JSON, UTF-8, and a checksum::

    {"quiver_commit": 1, "writer": "…", "batch": 12, "parts": ["00000000000000000012-00000-7/0000000000000000.qseg"]}
    \n
    eight hexadecimal digits: CRC-32 (IEEE) of that line, without its end
    \n

The last commit of a writer stays, also when its parts are segments of the store by then: it says which batch is not to
be taken again. Other keys are ignored, so that a later version may add some.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "BATCH_MAX",
    "COMMIT_BYTES_MAX",
    "COMMIT_PREFIX",
    "INCOMING_DIR",
    "ONCE_PREFIX",
    "SinkCommit",
    "commit_name",
    "decode_commit",
    "encode_commit",
    "is_writer",
    "parse_commit_name",
    "parse_part_directory",
    "part_directory",
]

INCOMING_DIR = "incoming"
"""Below a store's root: what Spark sinks wrote and the store's owner has not taken over yet."""

ONCE_PREFIX = "job-"
"""How a writer is called that writes one batch and never again: its commit need not stay."""

COMMIT_BYTES_MAX = 16 * 1024 * 1024
"""A quarter of a million parts; a larger commit is not read."""

BATCH_MAX = 2**63 - 1

_VERSION = 1
COMMIT_PREFIX = b'{"quiver_commit": '
_CRC_DIGITS = 8
_WRITER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_COMMIT = re.compile(r"([0-9]{20})\.commit")
_DIRECTORY = re.compile(r"([0-9]{20})-([0-9]{5,10})-([A-Za-z0-9]{1,40})")
_SEGMENT = re.compile(r"[0-9]{16}\.qseg")


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """
    One committed batch.

    Attributes:
        writer: a query's id, or the name that a program gave: batches are counted per writer.
        batch: its number; a writer's numbers only grow.
        parts: the staged segments, relative to the writer's directory, in order.
    """

    writer: str
    batch: int
    parts: tuple[str, ...]


def is_writer(name: str) -> bool:
    """
    Say whether *name* can be a writer's: 1 to 64 of ``A-Za-z0-9_-``.
    """
    return _WRITER.fullmatch(name) is not None


def commit_name(batch: int) -> str:
    """
    Return the file name of the commit of *batch*.
    """
    return f"{batch:020}.commit"


def parse_commit_name(name: str) -> int | None:
    """
    Return the batch of a commit's file name, or None when it is none.
    """
    match = _COMMIT.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) <= BATCH_MAX else None


def part_directory(batch: int, partition: int, attempt: str) -> str:
    """
    Return the name of the directory in which one attempt of one task stages its segments.
    """
    return f"{batch:020}-{partition:05}-{attempt}"


def parse_part_directory(name: str) -> int | None:
    """
    Return the batch that a staging directory belongs to, or None when *name* is none.
    """
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else int(match[1])


def encode_commit(commit: SinkCommit) -> bytes:
    """
    Return the whole file.
    """
    value = {
        "quiver_commit": _VERSION,
        "writer": commit.writer,
        "batch": commit.batch,
        "parts": list(commit.parts),
    }
    line = json.dumps(value).encode()
    return line + f"\n{crc32(line):08x}\n".encode()


def decode_commit(view: memoryview) -> Answer[SinkCommit]:
    """
    Decode a commit. Every part in the answer lies in a staging directory of its batch and nowhere else.
    """
    data = bytes(view)
    if not COMMIT_PREFIX.startswith(data[: len(COMMIT_PREFIX)]):
        return Damage(0, "not the commit of a sink")
    end = data.find(b"\n")
    if end < 0:
        return NeedMore(1)
    rest = data[end + 1 :]
    if len(rest) < _CRC_DIGITS + 1:
        return NeedMore(_CRC_DIGITS + 1 - len(rest))
    if rest != f"{crc32(data[:end]):08x}\n".encode():
        return Damage(end + 1, "checksum mismatch in the commit of a sink")
    try:
        value = json.loads(data[:end])
    except (ValueError, RecursionError):
        return Damage(0, "the commit of a sink is no JSON")
    if value["quiver_commit"] != _VERSION:
        return Damage(len(COMMIT_PREFIX), f"unsupported version {value['quiver_commit']!r} of a sink's commit")
    commit = _commit(value)
    if commit is None:
        return Damage(0, "the commit of a sink lacks something, or names what is not below it")
    return Frame(commit, len(data))


def _commit(value: Any) -> SinkCommit | None:
    writer, batch, parts = value.get("writer"), value.get("batch"), value.get("parts")
    if not isinstance(writer, str) or not is_writer(writer):
        return None
    if not isinstance(batch, int) or isinstance(batch, bool) or not 0 <= batch <= BATCH_MAX:
        return None
    if not isinstance(parts, list) or len(set(map(str, parts))) != len(parts):
        return None
    for part in parts:
        directory, _, name = part.partition("/") if isinstance(part, str) else ("", "", "")
        if parse_part_directory(directory) != batch or _SEGMENT.fullmatch(name) is None:
            return None
    return SinkCommit(writer, batch, tuple(parts))
