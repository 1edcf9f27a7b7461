r"""
One batch of a fleet subscriber: the objects in it, and its positions in all nodes afterwards. Bytes only.

::

    0   8   magic          b"QUIVER\0G"
    8   u16 version        1
    10  u16 header_size    40; more in a future that only adds fields: they are skipped
    12  u16 node_size      48; as above, for each node
    14  u16 object_size    32; as above, for each object
    16  u64 epoch          of the owner that wrote it
    24  u64 generation     0 has no objects; each batch has the next one
    32  u32 node_count
    36  u32 object_count   of all nodes
    for every node, ascending by identity, from header_size on:
        40  position       an entry of the acknowledged positions, after this batch (`fleet/acks.py`)
        u32 object_count   of this node, in this batch
        4   reserved       zeros
    then the objects of the first node, of the second one, and so on, each consecutive:
        u64 first          number of the segment; of several that are gone, the first one
        u64 last           number of the segment; of several that are gone, the last one
        u64 size_bytes     of the object
        u32 crc32          as in the key; 0 if gone
        u8  is_gone        0 a segment, 1 a record of segments that are gone
        3   reserved       zeros
    after the last object:
        u32 crc32          IEEE, over all bytes before it

A generation is created once and never replaced, so a batch that is replayed has the same objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.store.format.fleet.acks import ACK_ENTRY, AckedNode, pack_node, unpack_node
from quiver.store.format.fleet.names import InboxObject
from quiver.store.format.names import U64_MAX

__all__ = [
    "OFFSETS_BYTES_MAX",
    "OFFSETS_HEADER",
    "OFFSETS_MAGIC",
    "OFFSETS_NODE",
    "OFFSETS_NODES_MAX",
    "OFFSETS_OBJECT",
    "OFFSETS_OBJECTS_MAX",
    "OFFSETS_VERSION",
    "BatchNode",
    "FleetOffsets",
    "advanced",
    "decode_offsets",
    "encode_offsets",
]

OFFSETS_MAGIC = b"QUIVER\0G"
OFFSETS_VERSION = 1
OFFSETS_HEADER = struct.Struct("<8sHHHHQQII")
OFFSETS_NODE = struct.Struct("<40sI4x")
OFFSETS_OBJECT = struct.Struct("<QQQIB3x")
OFFSETS_NODES_MAX = 262_144
OFFSETS_OBJECTS_MAX = 1_048_576
OFFSETS_BYTES_MAX = 256 * 1024 * 1024
"""Above the size of a valid object; a larger one is not read."""

_PREFIX = struct.Struct("<8sHH")
_COUNT_AT = ACK_ENTRY.size
_CRC = struct.Struct("<I")
_SIZE_MAX = 512


@dataclass(frozen=True, slots=True)
class BatchNode:
    """
    One node in a batch.

    Attributes:
        after: the position in the node after the batch.
        objects: those of the batch, consecutive; empty if it has none of this node.
    """

    after: AckedNode
    objects: tuple[InboxObject, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetOffsets:
    """
    One batch.

    Attributes:
        epoch: of the owner that wrote it.
        generation: 0, 1, 2, …
        nodes: all known nodes except retired ones, ascending by identity.
    """

    epoch: int
    generation: int
    nodes: tuple[BatchNode, ...]


def encode_offsets(epoch: int, generation: int, nodes: Iterable[BatchNode]) -> bytes:
    """
    Return the complete object.

    Raises:
        UsageError: there are too many nodes or objects, a node appears twice, its objects are not consecutive or do not
            end at its position, or a number is out of range. Such an object could not be read again.
    """
    ordered = sorted(nodes, key=lambda node: node.after.identity)
    objects = [one for node in ordered for one in node.objects]
    if not (0 <= epoch <= U64_MAX and 0 <= generation <= U64_MAX):
        raise UsageError(f"epoch {epoch}, generation {generation}: use numbers of 64 bits")
    if len(ordered) > OFFSETS_NODES_MAX or len(objects) > OFFSETS_OBJECTS_MAX:
        limits = f"{OFFSETS_NODES_MAX} and {OFFSETS_OBJECTS_MAX}"
        raise UsageError(f"a batch with {len(ordered)} nodes and {len(objects)} objects: at most {limits}")
    if len({node.after.identity for node in ordered}) < len(ordered):
        raise UsageError("a batch has each node once")
    for node in ordered:
        problem = _order_problem(node)
        if problem is not None:
            raise UsageError(f"node {node.after.identity}: {problem}")
    parts = [
        OFFSETS_HEADER.pack(
            OFFSETS_MAGIC, OFFSETS_VERSION, OFFSETS_HEADER.size, OFFSETS_NODE.size, OFFSETS_OBJECT.size, epoch,
            generation, len(ordered), len(objects),
        )
    ]  # fmt: skip
    parts += [OFFSETS_NODE.pack(pack_node(node.after), len(node.objects)) for node in ordered]
    parts += [OFFSETS_OBJECT.pack(one.first, one.last, one.size_bytes, one.crc32 or 0, one.is_gone) for one in objects]
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def advanced(before: AckedNode, objects: Sequence[InboxObject]) -> BatchNode:
    """Return the node of a batch with *objects*, which begin at the position *before*."""
    if not objects:
        return BatchNode(before)
    read = [(one.last, one.crc32) for one in objects if one.crc32 is not None]
    segment = read[-1] if read else before.segment
    return BatchNode(AckedNode(before.identity, objects[-1].last + 1, segment), tuple(objects))


def _order_problem(node: BatchNode) -> str | None:
    """Return why the objects cannot be those of a batch that ends at the node's position; None if they can."""
    end: int | None = None
    for one in node.objects:
        if not one.first <= one.last < U64_MAX or (one.crc32 is not None and one.first != one.last):
            return f"one object cannot have segments {one.first} to {one.last}"
        # A record of gone segments may begin before the position where it is used.
        follows = end is None or (one.first <= end <= one.last if one.is_gone else one.first == end)
        if not follows:
            return f"segments {one.first} to {one.last} do not follow {end}"
        end = one.last + 1
    return None if end in {None, node.after.position} else f"its objects end at {end}, not at {node.after.position}"


@dataclass(frozen=True, slots=True)
class _Header:
    epoch: int
    generation: int
    nodes: range
    """The offsets of the nodes."""
    objects: range
    """The offsets of the objects."""
    end: int


def decode_offsets(view: memoryview) -> Answer[FleetOffsets]:
    """Decode a batch. Bytes after the last checksum are ignored."""
    header = _decode_header(view)
    if not isinstance(header, _Header):
        return header
    if len(view) < header.end + _CRC.size:
        return NeedMore(header.end + _CRC.size - len(view))
    if _CRC.unpack_from(view, header.end)[0] != crc32(view[: header.end]):
        return Damage(header.end, "checksum mismatch in the batch")
    nodes: list[BatchNode] = []
    next_object = 0
    for at in header.nodes:
        after = unpack_node(view, at)
        if isinstance(after, Damage):
            return after
        if nodes and after.identity <= nodes[-1].after.identity:
            return Damage(at, f"node {after.identity} comes after {nodes[-1].after.identity}")
        count = OFFSETS_NODE.unpack_from(view, at)[1]
        if count > len(header.objects) - next_object:
            return Damage(at + _COUNT_AT, f"node {after.identity} has {count} objects, more than are left")
        objects = _decode_objects(view, header.objects[next_object : next_object + count])
        if isinstance(objects, Damage):
            return objects
        next_object += count
        node = BatchNode(after, objects)
        problem = _order_problem(node)
        if problem is not None:
            return Damage(at, f"node {after.identity}: {problem}")
        nodes.append(node)
    if next_object != len(header.objects):
        return Damage(header.end, f"{len(header.objects) - next_object} objects belong to no node")
    return Frame(FleetOffsets(header.epoch, header.generation, tuple(nodes)), header.end + _CRC.size)


def _decode_header(view: memoryview) -> _Header | NeedMore | Damage:
    if not OFFSETS_MAGIC.startswith(bytes(view[: len(OFFSETS_MAGIC)])):
        return Damage(0, "not a batch of a fleet: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != OFFSETS_VERSION:
        return Damage(8, f"unsupported version {version} of a batch; this reads {OFFSETS_VERSION}")
    if header_size < OFFSETS_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {OFFSETS_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, node_size, object_size, epoch, generation, nodes, objects = OFFSETS_HEADER.unpack_from(view)
    if not OFFSETS_NODE.size <= node_size <= _SIZE_MAX:
        return Damage(12, f"node_size {node_size} is not {OFFSETS_NODE.size} to {_SIZE_MAX}")
    if not OFFSETS_OBJECT.size <= object_size <= _SIZE_MAX:
        return Damage(14, f"object_size {object_size} is not {OFFSETS_OBJECT.size} to {_SIZE_MAX}")
    if nodes > OFFSETS_NODES_MAX:
        return Damage(32, f"node_count {nodes} is above the limit of {OFFSETS_NODES_MAX}")
    if objects > OFFSETS_OBJECTS_MAX:
        return Damage(36, f"object_count {objects} is above the limit of {OFFSETS_OBJECTS_MAX}")
    start = header_size + nodes * node_size
    end = start + objects * object_size
    return _Header(epoch, generation, range(header_size, start, node_size), range(start, end, object_size), end)


def _decode_objects(view: memoryview, offsets: Iterable[int]) -> tuple[InboxObject, ...] | Damage:
    objects: list[InboxObject] = []
    for at in offsets:
        first, last, size_bytes, checksum, is_gone = OFFSETS_OBJECT.unpack_from(view, at)
        if is_gone > 1:
            return Damage(at, f"segment {first}: unsupported value {is_gone} of is_gone")
        objects.append(InboxObject(first, last, None if is_gone else checksum, size_bytes))
    return tuple(objects)
