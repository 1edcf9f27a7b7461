r"""
What a Spark sink committed: which staged segments belong to one batch of one writer. Bytes and names only.

::

    incoming/<writer>/<batch>-<partition>-<attempt>/0000000000000000.qseg    staged: written and synced by a task
    incoming/<writer>/<batch>.commit                                          the batch counts, with the parts it names

A commit is a note of `primitives/batch_notes.py`, one line of JSON, UTF-8, and a checksum::

    {"quiver_commit": 1, "writer": "…", "batch": 12, "parts": ["00000000000000000012-00000-7/0000000000000000.qseg"]}
    \n
    eight hexadecimal digits: CRC-32 (IEEE) of that line, without its end
    \n

The last commit of a writer stays, also when its parts are segments of the store by then: it says which batch is not to
be taken again. Other keys are ignored, so that a later version may add some.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from quiver.primitives.batch_notes import (
    BATCH_MAX,
    decode_note,
    encode_note,
    is_count,
    is_writer,
    parse_note_name,
    parse_part_directory,
)
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = [
    "COMMIT_PREFIX",
    "INCOMING_DIR",
    "SinkCommit",
    "decode_commit",
    "encode_commit",
    "parse_commit_name",
]

INCOMING_DIR = "incoming"
"""Below a store's root: what Spark sinks wrote and the store's owner has not taken over yet."""

_VERSION = 1
COMMIT_PREFIX = b'{"quiver_commit": '
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


def parse_commit_name(name: str) -> int | None:
    """Return the batch of a commit's file name, or None when it is none."""
    note = parse_note_name(name)
    return note[0] if note is not None and note[1] == "commit" else None


def encode_commit(commit: SinkCommit) -> bytes:
    """Return the whole file."""
    value = {
        "quiver_commit": _VERSION,
        "writer": commit.writer,
        "batch": commit.batch,
        "parts": list(commit.parts),
    }
    return encode_note(value)


def decode_commit(view: memoryview) -> Answer[SinkCommit]:
    """Decode a commit. Every part in the answer lies in a staging directory of its batch and nowhere else."""
    data = bytes(view)
    if not COMMIT_PREFIX.startswith(data[: len(COMMIT_PREFIX)]):
        return Damage(0, "not the commit of a sink")
    answer = decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    value = answer.value
    if value["quiver_commit"] != _VERSION:
        return Damage(len(COMMIT_PREFIX), f"unsupported version {value['quiver_commit']!r} of a sink's commit")
    commit = _commit(value)
    if commit is None:
        return Damage(0, "the commit of a sink lacks something, or names what is not below it")
    return Frame(commit, answer.end)


def _commit(value: Any) -> SinkCommit | None:
    writer, batch, parts = value.get("writer"), value.get("batch"), value.get("parts")
    if not isinstance(writer, str) or not is_writer(writer):
        return None
    if not is_count(batch) or batch > BATCH_MAX:
        return None
    if not isinstance(parts, list) or len(set(map(str, parts))) != len(parts):
        return None
    for part in parts:
        directory, _, name = part.partition("/") if isinstance(part, str) else ("", "", "")
        if parse_part_directory(directory) != batch or _SEGMENT.fullmatch(name) is None:
            return None
    return SinkCommit(writer, batch, tuple(parts))
