r"""
The files that a Spark sink leaves for the owner of a log. Pure: bytes and names only.

::

    incoming/<writer>/<batch>-<partition>-<attempt>/00000.part   staged: record entries, written and synced by a task
    incoming/<writer>/<batch>.commit                             the batch is committed, with these parts
    incoming/<writer>/<batch>.begun                              some of its records may be in the log
    incoming/<writer>/<batch>.done                               all of them are

A part is a sequence of record entries as in a segment (`record.py`), and nothing else. Their timestamps are zero,
because a record's time is that of its append. `primitives/batch_notes.py` defines the notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from quiver.primitives.batch_notes import CommitCodec, is_count
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["COMMITS", "PART_NAME", "BatchStep", "StagedPart", "decode_begun", "encode_begun"]

PART_NAME = "00000.part"
"""A task stages one part."""

_STEP_KEYS = ("part", "index", "count", "log_records")
_PART = re.compile(r"[0-9]{5}\.part")


class StagedPart(NamedTuple):
    """One staged file: its path below the writer's directory, how many records are in it, and its length."""

    path: str
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BatchStep:
    """
    The records that the owner appends next, noted before it does.

    Attributes:
        part, index: the first record of the step. All earlier ones are in the log.
        count: the number of records; 0 if no step had begun.
        log_records: how many records the log had before. No one else appends until the step is durable, so any more
            records after a crash belong to this step.
    """

    part: int
    index: int
    count: int
    log_records: int


def encode_begun(step: BatchStep) -> bytes:
    """Return the file that records which records of a batch may be in the log."""
    return COMMITS.encode_note({key: getattr(step, key) for key in _STEP_KEYS})


def decode_begun(data: Buffer) -> Answer[BatchStep]:
    """Decode such a file."""
    answer = COMMITS.decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    numbers = [answer.value[key] for key in _STEP_KEYS if is_count(answer.value.get(key))]
    if len(numbers) < len(_STEP_KEYS):
        return Damage(0, f"a step of an import without all of {', '.join(_STEP_KEYS)}")
    return Frame(BatchStep(*numbers), answer.end)


def _decode_part(value: object) -> StagedPart | None:
    if not isinstance(value, list) or len(value) != len(StagedPart._fields):
        return None
    path, records, size_bytes = value
    if not isinstance(path, str) or _PART.fullmatch(path.partition("/")[2]) is None:
        return None
    return StagedPart(path, records, size_bytes) if is_count(records) and is_count(size_bytes) else None


COMMITS = CommitCodec("quiver_aof_batch", _decode_part, path_of=lambda part: part.path)
"""Each part is a staged file of records."""
