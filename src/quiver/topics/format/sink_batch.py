r"""
The files that a Spark sink leaves for the owner of a directory of topics. Pure: bytes and names only.

::

    .incoming/<writer>/<batch>-<partition>-<attempt>/<number>.part   staged: written and synced by a task
    .incoming/<writer>/<batch>.commit                                 the batch is committed, with these parts
    .incoming/<writer>/<batch>.begun                                  it is being appended, from these offsets on
    .incoming/<writer>/<batch>.done                                   all messages are in their topics

A part is a sequence of frames as in a log (`frame.py`), with offsets 0, 1, 2 …. The payload of each is::

    0           8            12
    ┌───────────┬────────────┬────────┬───────────┐
    │ time (ms) │ tail_bytes │ tail … │ payload … │
    │ u64       │ u32        │        │           │
    └───────────┴────────────┴────────┴───────────┘

The tail is the part of a message after its publish time (`message.py`), without a producer's name.
`primitives/batch_notes.py` defines the notes.

A namespace cannot begin with a dot, so no topic has the name of this directory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from quiver.errors import UsageError
from quiver.primitives.batch_notes import BatchCommit, CommitCodec, is_count
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame
from quiver.topics.format.frame import encode_frame
from quiver.topics.format.names import check_topic

__all__ = [
    "COMMITS",
    "INCOMING_DIR",
    "PART_HEADER",
    "SinkPart",
    "StagedMessage",
    "decode_begun",
    "decode_staged",
    "encode_begun",
    "encode_staged",
    "message_name",
    "named_tail",
    "part_name",
]

INCOMING_DIR = ".incoming"
"""Below the root of the topics: what Spark sinks wrote and the owner has not appended yet."""

PART_HEADER = struct.Struct("<QI")

_U64 = struct.Struct("<Q")
_PART = re.compile(r"[0-9]{5}\.part")


class SinkPart(NamedTuple):
    """One staged file: its path below the writer's directory, the topic of its messages, and their number."""

    path: str
    topic: str
    messages: int


class StagedMessage(NamedTuple):
    """A message that has no offset yet."""

    payload: bytes
    time_ms: int
    tail: bytes


# ── names ────────────────────────────────────────────────────────────────────────────────────────────


def part_name(number: int) -> str:
    """Return the name of a part in its directory."""
    return f"{number:05}.part"


def message_name(commit: BatchCommit[SinkPart], part: int, index: int) -> str:
    """Return the unique producer name under which message *index* of part *part* is appended."""
    return f"{commit.writer}:{commit.batch}:{part}:{index}"


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────


def encode_staged(index: int, message: StagedMessage) -> bytes:
    """Return the frame of a staged message."""
    return encode_frame(index, PART_HEADER.pack(message.time_ms, len(message.tail)) + message.tail + message.payload)


def decode_staged(body: bytes) -> StagedMessage | Damage:
    """Decode the payload of a frame."""
    if len(body) < PART_HEADER.size:
        return Damage(0, "a staged message that is too short")
    time_ms, tail_bytes = PART_HEADER.unpack_from(body, 0)
    body_start = PART_HEADER.size + tail_bytes
    if body_start > len(body) or tail_bytes < _U64.size:
        return Damage(8, f"a staged message with a tail of {tail_bytes} bytes")
    return StagedMessage(body[body_start:], time_ms, body[PART_HEADER.size : body_start])


def named_tail(tail: bytes, name: str) -> bytes:
    """Return *tail*, which has no producer name, with *name* as its producer name."""
    data = name.encode("ascii")
    return _U64.pack(len(data)) + data + tail[_U64.size :]


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────


def encode_begun(offsets: Mapping[str, int]) -> bytes:
    """Return the file that records the offset of each topic from which on it may contain messages of a batch."""
    return COMMITS.encode_note({"from": dict(sorted(offsets.items()))})


def decode_begun(data: Buffer) -> Answer[dict[str, int]]:
    """Decode such a file."""
    answer = COMMITS.decode_note(data)
    if not isinstance(answer, Frame):
        return answer
    offsets = answer.value.get("from")
    if not isinstance(offsets, dict) or not all(is_count(offset) for offset in offsets.values()):
        return Damage(0, "the start of an import without an offset of each topic")
    try:
        return Frame({check_topic(topic): offset for topic, offset in offsets.items()}, answer.end)
    except UsageError as error:
        return Damage(0, f"the start of an import: {error}")


def _decode_part(value: object) -> SinkPart | None:
    if not isinstance(value, list) or len(value) != len(SinkPart._fields):
        return None
    path, topic, messages = value
    if not isinstance(path, str) or _PART.fullmatch(path.partition("/")[2]) is None or not is_count(messages):
        return None
    try:
        return SinkPart(path, check_topic(topic), messages)
    except (UsageError, TypeError):
        return None


COMMITS = CommitCodec("quiver_topic_batch", _decode_part, path_of=lambda part: part.path)
"""Each part is a staged file with the messages of one topic."""
