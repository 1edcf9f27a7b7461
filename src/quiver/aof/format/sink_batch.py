r"""
What a Spark sink leaves for the owner of a log. Bytes and names only.

::

    incoming/<writer>/<batch>-<partition>-<attempt>/00000.part   staged: record entries, written and synced by a task
    incoming/<writer>/<batch>.commit                             the batch counts, with the parts that it names
    incoming/<writer>/<batch>.begun                              some of its records may be in the log
    incoming/<writer>/<batch>.done                               all of them are

A part is a row of record entries as a segment has them (`record.py`), one behind the other and nothing else; their
timestamps are zero, because a record's time is that of its append. Notes are those of `primitives/batch_notes.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from quiver.primitives.batch_notes import (
    BATCH_MAX,
    decode_note,
    encode_note,
    is_count,
    is_writer,
    parse_part_directory,
)
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = [
    "PART_NAME",
    "BatchCommit",
    "BatchStep",
    "StagedPart",
    "decode_begun",
    "decode_commit",
    "encode_begun",
    "encode_commit",
]

PART_NAME = "00000.part"
"""A task stages one part."""

_VERSION = 1
_VERSION_KEY = "quiver_aof_batch"
_STEP_KEYS = ("part", "index", "count", "log_records")
_PART = re.compile(r"[0-9]{5}\.part")


class StagedPart(NamedTuple):
    """One staged file: its path below the writer's directory, how many records are in it, and its length."""

    path: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """
    One committed batch.

    Attributes:
        writer: a query's id, or the name that a program gave: batches are counted per writer.
        batch: its number; a writer's numbers only grow.
        parts: the staged files, in order.
    """

    writer: str
    batch: int
    parts: tuple[StagedPart, ...]


@dataclass(frozen=True, slots=True)
class BatchStep:
    """
    What the owner appends next, noted before it does.

    Attributes:
        part, index: the first record of it: whatever is before that place is in the log.
        count: records of it; 0 where nothing was begun.
        log_records: how many records the log had then. Nobody else appends until the step is durable, so what it has
            more after a crash is of this step.
    """

    part: int
    index: int
    count: int
    log_records: int


def encode_commit(commit: BatchCommit) -> bytes:
    """Return the whole file."""
    return encode_note({
        _VERSION_KEY: _VERSION, "writer": commit.writer, "batch": commit.batch, "parts": commit.parts,
    })  # fmt: skip


def decode_commit(data: Buffer) -> Answer[BatchCommit]:
    """Decode a commit. Every part in the answer lies in a staging directory of its batch and nowhere else."""
    answer = decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    value = answer.value
    if value.get(_VERSION_KEY) != _VERSION:
        return Damage(0, "no commit of a sink, or one of a newer version")
    writer, batch, listed = value.get("writer"), value.get("batch"), value.get("parts")
    if not isinstance(writer, str) or not is_writer(writer) or not is_count(batch) or batch > BATCH_MAX:
        return Damage(0, "a commit of no writer, or of no batch")
    parts = [_part(one, batch) for one in listed] if isinstance(listed, list) else [None]
    known = [one for one in parts if one is not None]
    if len(known) < len(parts) or len({one.path for one in known}) < len(known):
        return Damage(0, "a commit that names what is no part of its batch, or one twice")
    return Frame(BatchCommit(writer, batch, tuple(known)), answer.end)


def _part(value: object, batch: int) -> StagedPart | None:
    if not isinstance(value, list) or len(value) != len(StagedPart._fields):
        return None
    path, records, size_bytes = value
    directory, _, name = path.partition("/") if isinstance(path, str) else ("", "", "")
    if parse_part_directory(directory) != batch or _PART.fullmatch(name) is None:
        return None
    return StagedPart(path, records, size_bytes) if is_count(records) and is_count(size_bytes) else None


def encode_begun(step: BatchStep) -> bytes:
    """Return the file that says which records of a batch may be in the log."""
    return encode_note({
        _VERSION_KEY: _VERSION, "part": step.part, "index": step.index, "count": step.count,
        "log_records": step.log_records,
    })  # fmt: skip


def decode_begun(data: Buffer) -> Answer[BatchStep]:
    """Take such a file apart."""
    answer = decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    value = answer.value
    numbers = [value[key] for key in _STEP_KEYS if is_count(value.get(key))]
    if value.get(_VERSION_KEY) != _VERSION or len(numbers) < len(_STEP_KEYS):
        return Damage(0, "no beginning of a batch, or one of a newer version")
    return Frame(BatchStep(*numbers), answer.end)
