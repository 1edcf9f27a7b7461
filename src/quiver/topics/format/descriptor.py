"""
Object descriptors: the catalog's record of each object, and its key.

::

    <root>/storage/topics/<namespace>/<topic>/objects/<first offset, 20 digits>   a descriptor, as JSON
    <root>/storage/topics/<namespace>/<topic>/objects/cur                         {"start": "<20 digits>"}: the newest
    <root>/storage/topics/<namespace>/<topic>/state                               how the last owner left the topic
    <root>/storage/topics/<namespace>/<topic>/owner                               the current owner and its epoch

The keys of the JSON are the document's. A compressed object has one more, ``compression``, which its name shows, too:
``data-0-99.dnb1.zst``. Each entry of its index starts a separate compressed frame; the ordinary decompressor restores
the plain object.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, Literal

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame
from quiver.topics.format.names import object_name, objects_prefix, parse_object_name

__all__ = [
    "DESCRIPTOR_BYTES_MAX",
    "INDEX_EVERY_MESSAGES",
    "ObjectCompression",
    "ObjectDescriptor",
    "SealedState",
    "current_key",
    "decode_descriptor",
    "decode_sealed_state",
    "descriptor_key",
    "descriptors_prefix",
    "encode_current",
    "encode_descriptor",
    "encode_sealed_state",
    "object_id",
    "object_key",
    "owner_key",
    "parse_object_id",
    "state_key",
    "topics_prefix",
]

INDEX_EVERY_MESSAGES = 1000
DESCRIPTOR_BYTES_MAX = 1 << 20
OFFSET_MAX = (1 << 64) - 1

ObjectCompression = Literal["none", "zstd", "lz4"]

_SUFFIXES: dict[ObjectCompression, str] = {"none": "", "zstd": ".zst", "lz4": ".lz4"}
_PAIR = 2


@dataclass(frozen=True, slots=True)
class ObjectDescriptor:
    """
    One cold object.

    Attributes:
        object_id: its name in the topic's folder.
        start_offset: of its first message.
        end_offset: of its last message.
        size: its bytes.
        etag: from the object store, or None.
        created_at: seconds since the Unix epoch.
        completed: it was finished and verified; always true for objects that Quiver writes.
        offset_index: offset and byte of every thousandth frame, including the first one.
        compression: of its bytes; each entry of the index starts a compressed block.
    """

    object_id: str
    start_offset: int
    end_offset: int
    size: int
    etag: str | None
    created_at: int
    completed: bool = True
    offset_index: tuple[tuple[int, int], ...] = ()
    compression: ObjectCompression = "none"

    def place_of(self, offset: int) -> tuple[int, int]:
        """Return the last entry of the index at or before *offset*: an offset, and the byte where its frame begins."""
        best = (self.start_offset, 0)
        for entry in self.offset_index:
            if entry[0] > offset:
                break
            best = entry
        return best


@dataclass(frozen=True, slots=True)
class SealedState:
    """
    The state in which an owner left a topic on purpose: everything up to `last_committed_offset` (−1: nothing) is in
    objects.

    Messages below `start_offset` were deleted on purpose: a machine that still has them does not bring them back.
    """

    sealed: bool
    last_committed_offset: int
    broker_id: str
    timestamp: int
    start_offset: int = 0


def encode_descriptor(value: ObjectDescriptor) -> bytes:
    """Encode a descriptor as JSON, without the index if it is empty."""
    fields: dict[str, object] = {
        "object_id": value.object_id,
        "start_offset": value.start_offset,
        "end_offset": value.end_offset,
        "size": value.size,
        "etag": value.etag,
        "created_at": value.created_at,
        "completed": value.completed,
    }
    if value.offset_index:
        fields["offset_index"] = [list(entry) for entry in value.offset_index]
    if value.compression != "none":
        fields["compression"] = value.compression
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_descriptor(data: Buffer) -> Answer[ObjectDescriptor]:
    """Decode a descriptor; unknown keys of later versions are ignored, an unknown compression is damage."""
    if len(data) > DESCRIPTOR_BYTES_MAX:
        return Damage(0, f"a descriptor of {len(data)} bytes")
    try:
        value = _descriptor(_mapping(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Damage(0, f"not a descriptor: {type(error).__name__}: {error}")
    return Frame(value, len(data))


def _mapping(data: Buffer) -> dict[str, Any]:
    fields = json.loads(bytes(data))
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    return fields


def _descriptor(fields: dict[str, Any]) -> ObjectDescriptor:
    index = tuple(
        (_number(entry[0]), _number(entry[1])) for entry in fields.get("offset_index") or () if _is_pair(entry)
    )
    compression = fields.get("compression", "none")
    if compression not in _SUFFIXES:
        raise ValueError(f"unknown compression {compression!r}")
    value = ObjectDescriptor(
        object_id=str(fields["object_id"]),
        start_offset=_number(fields["start_offset"]),
        end_offset=_number(fields["end_offset"]),
        size=_number(fields["size"]),
        etag=None if fields.get("etag") is None else str(fields["etag"]),
        created_at=_number(fields["created_at"]),
        completed=fields.get("completed") is True,
        offset_index=index,
        compression=compression,
    )
    if value.end_offset < value.start_offset:
        raise ValueError("it ends before it begins")
    # The name becomes part of a key of the object store: accept nothing else.
    if parse_object_id(value.object_id) is None:
        raise ValueError(f"{value.object_id!r} is not an object name")
    steps = list(itertools.pairwise(index))
    if any(a[0] >= b[0] or a[1] >= b[1] for a, b in steps) or any(
        not value.start_offset <= offset <= value.end_offset or byte >= value.size for offset, byte in index
    ):
        raise ValueError("its index is not in order, or points outside the object")
    return value


def _is_pair(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != _PAIR:
        raise ValueError("an entry of the index must be two numbers")
    return True


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r} is not a 64-bit number")
    return value


def encode_current(start_offset: int) -> bytes:
    """Return the JSON of the pointer to the newest object."""
    return json.dumps({"start": f"{start_offset:020d}"}, separators=(",", ":")).encode()


def encode_sealed_state(value: SealedState) -> bytes:
    """Encode a topic's state as JSON."""
    fields: dict[str, object] = {
        "sealed": value.sealed,
        "last_committed_offset": value.last_committed_offset,
        "broker_id": value.broker_id,
        "timestamp": value.timestamp,
    }
    if value.start_offset:
        fields["start_offset"] = value.start_offset
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_sealed_state(data: Buffer) -> Answer[SealedState]:
    """Decode a topic's state."""
    try:
        fields = _mapping(data)
        last = fields["last_committed_offset"]
        committed = -1 if last == -1 else _number(last)
        value = SealedState(
            fields["sealed"] is True, committed, str(fields["broker_id"]), _number(fields["timestamp"]),
            _number(fields.get("start_offset", 0)),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Damage(0, f"not a state of a topic: {type(error).__name__}: {error}")
    return Frame(value, len(data))


def object_id(start_offset: int, end_offset: int, compression: ObjectCompression = "none") -> str:
    """Return the name of a finished object."""
    return object_name(start_offset, end_offset) + _SUFFIXES[compression]


def parse_object_id(name: str) -> tuple[int, int, ObjectCompression] | None:
    """Return first and last offset and the compression of the finished object *name*; None if it is not one."""
    for compression, suffix in _SUFFIXES.items():
        found = parse_object_name(name.removesuffix(suffix)) if name.endswith(f".dnb1{suffix}") else None
        if found is not None and found[1] is not None:
            return found[0], found[1], compression
    return None


def object_key(topic: str, name: str) -> str:
    """Return the key of the object *name* of *topic* in the object store."""
    return f"{objects_prefix(topic)}{name}"


def topics_prefix(root: str) -> str:
    """Return the prefix of the keys of all topics."""
    return f"{root}/storage/topics/"


def descriptors_prefix(root: str, topic: str) -> str:
    """Return the prefix of the keys of all descriptors of *topic*."""
    return f"{root}/storage/topics/{topic}/objects/"


def descriptor_key(root: str, topic: str, start_offset: int) -> str:
    """Return the key of the descriptor of the object that begins at *start_offset*: keys sort as offsets do."""
    return f"{descriptors_prefix(root, topic)}{start_offset:020d}"


def current_key(root: str, topic: str) -> str:
    """Return the key of the pointer to the newest object."""
    return f"{descriptors_prefix(root, topic)}cur"


def state_key(root: str, topic: str) -> str:
    """Return the key of the topic's state."""
    return f"{root}/storage/topics/{topic}/state"


def owner_key(root: str, topic: str) -> str:
    """Return the key of the topic's owner."""
    return f"{root}/storage/topics/{topic}/owner"
