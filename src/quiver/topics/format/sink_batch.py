r"""
What a Spark sink leaves for the owner of a directory of topics. Bytes and names only.

::

    .incoming/<writer>/<batch>-<partition>-<attempt>/<number>.part   staged: written and synced by a task
    .incoming/<writer>/<batch>.commit                                 the batch counts, with the parts it names
    .incoming/<writer>/<batch>.begun                                  it is being appended, from these offsets on
    .incoming/<writer>/<batch>.done                                   all of them are in their topics

A part is a row of frames as a log has them (`frame.py`), their offsets 0, 1, 2 …, and each of them holds::

    0           8            12
    ┌───────────┬────────────┬────────┬───────────┐
    │ time (ms) │ tail_bytes │ tail … │ payload … │
    │ u64       │ u32        │        │           │
    └───────────┴────────────┴────────┴───────────┘

The tail is what stands behind the publish time in a message (`message.py`), without a producer's name. Notes are those
of `primitives/batch_notes.py`.

A namespace cannot begin with a dot, so no topic is ever called like this directory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from quiver.errors import UsageError
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
from quiver.topics.format.frame import encode_frame
from quiver.topics.format.names import check_topic

__all__ = [
    "INCOMING_DIR",
    "PART_HEADER",
    "BatchNote",
    "SinkPart",
    "StagedMessage",
    "decode_begun",
    "decode_commit",
    "decode_staged",
    "encode_begun",
    "encode_commit",
    "encode_staged",
    "message_name",
    "named_tail",
    "part_name",
]

INCOMING_DIR = ".incoming"
"""Below the root of the topics: what Spark sinks wrote and the owner has not appended yet."""

PART_HEADER = struct.Struct("<QI")

_VERSION = 1
_VERSION_KEY = "quiver_topic_batch"
_U64 = struct.Struct("<Q")
_PART = re.compile(r"[0-9]{5}\.part")


class SinkPart(NamedTuple):
    """One staged file: its path below the writer's directory, the topic of its messages, and how many they are."""

    path: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class BatchNote:
    """
    One committed batch.

    Attributes:
        writer: a query's id, or the name that a program gave: batches are counted per writer.
        batch: its number; a writer's numbers only grow.
        parts: the staged files, in order.
    """

    writer: str
    batch: int
    parts: tuple[SinkPart, ...]


class StagedMessage(NamedTuple):
    """A message that has no offset yet."""

    payload: bytes
    time_ms: int
    tail: bytes


# ── names ────────────────────────────────────────────────────────────────────────────────────────────


def part_name(number: int) -> str:
    """Return the name of a part in its directory."""
    return f"{number:05}.part"


def message_name(note: BatchNote, part: int, index: int) -> str:
    """Return the producer's name under which message *index* of part *part* is appended: no other message has it."""
    return f"{note.writer}:{note.batch}:{part}:{index}"


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────


def encode_staged(index: int, message: StagedMessage) -> bytes:
    """Return the frame of a staged message."""
    return encode_frame(index, PART_HEADER.pack(message.time_ms, len(message.tail)) + message.tail + message.payload)


def decode_staged(body: bytes) -> StagedMessage | Damage:
    """Return the message that a frame's payload is."""
    if len(body) < PART_HEADER.size:
        return Damage(0, "a staged message that is too short")
    time_ms, tail_bytes = PART_HEADER.unpack_from(body, 0)
    behind = PART_HEADER.size + tail_bytes
    if behind > len(body) or tail_bytes < _U64.size:
        return Damage(8, f"a staged message with a tail of {tail_bytes} bytes")
    return StagedMessage(body[behind:], time_ms, body[PART_HEADER.size : behind])


def named_tail(tail: bytes, name: str) -> bytes:
    """Return *tail*, which has no producer's name, with *name* in its place."""
    data = name.encode("ascii")
    return _U64.pack(len(data)) + data + tail[_U64.size :]


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────


def encode_commit(note: BatchNote) -> bytes:
    """Return the whole file."""
    return encode_note({_VERSION_KEY: _VERSION, "writer": note.writer, "batch": note.batch, "parts": note.parts})


def decode_commit(data: Buffer) -> Answer[BatchNote]:
    """Decode a commit. Every part in the answer lies in a staging directory of its batch and nowhere else."""
    answer = _decode(data)
    if not isinstance(answer, Frame):
        return answer
    value = answer.value
    try:
        note = BatchNote(value["writer"], _number(value["batch"]), tuple(_part(one) for one in value["parts"]))
    except (ValueError, TypeError, KeyError, UsageError) as error:
        return Damage(0, f"no commit of a sink: {error}")
    directories = {parse_part_directory(one.path.partition("/")[0]) for one in note.parts}
    if not is_writer(str(note.writer)) or note.batch > BATCH_MAX or directories - {note.batch}:
        return Damage(0, "a commit of no writer, of no batch, or with a part of another one")
    if len({one.path for one in note.parts}) < len(note.parts):
        return Damage(0, "a commit that names a part twice")
    return Frame(note, answer.end)


def encode_begun(offsets: Mapping[str, int]) -> bytes:
    """Return the file that says from which offset on each topic may have messages of a batch."""
    return encode_note({_VERSION_KEY: _VERSION, "from": dict(sorted(offsets.items()))})


def decode_begun(data: Buffer) -> Answer[dict[str, int]]:
    """Take such a file apart."""
    answer = _decode(data)
    if not isinstance(answer, Frame):
        return answer
    try:
        found = {check_topic(topic): _number(offset) for topic, offset in answer.value["from"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
        return Damage(0, f"no beginning of a batch: {error}")
    return Frame(found, answer.end)


def _decode(data: Buffer) -> Answer[dict[str, Any]]:
    answer = decode_note(data)
    if isinstance(answer, Frame) and answer.value.get(_VERSION_KEY) != _VERSION:
        return Damage(0, "no note of a sink, or one of a newer version")
    return answer


def _part(value: object) -> SinkPart:
    if not isinstance(value, list) or len(value) != len(SinkPart._fields):
        raise ValueError(f"{value!r} is no part")
    path, topic, messages = value
    if not isinstance(path, str) or _PART.fullmatch(path.partition("/")[2]) is None:
        raise ValueError(f"{path!r} is no part")
    return SinkPart(path, check_topic(topic), _number(messages))


def _number(value: object) -> int:
    if not is_count(value):
        raise ValueError(f"{value!r} is no number")
    return value
