r"""
The positions of a subscriber in the nodes of one shard: everything below them is committed. Bytes only.

::

    0   8   magic          b"QUIVER\0K"
    8   u16 version        1
    10  u16 header_size    32; more in a future that only adds fields: they are skipped
    12  u16 entry_size     40; as above, for each entry
    14  u8  shard          first byte of every identity
    15  1   reserved       zero
    16  u64 epoch          of the owner that wrote it; see `fleet/names.py`, owner
    24  u32 entry_count
    28  4   reserved       zeros
    for every entry, ascending by identity, from header_size on:
        16  identity       the UUID's bytes
        u64 position       number of the first segment that is not committed
        u64 segment        number of the last segment that was read, below position; 0 if none was
        u32 crc32          the checksum of that segment, as in its key; 0 if none was read
        u8  known          1 if a segment was read, 0 if every number below position was gone
        3   reserved       zeros
    after the last entry:
        u32 crc32          IEEE, over all bytes before it

A node that finds itself in the list may delete everything below its position if the checksum is that of the segment
which it uploaded with this number. Otherwise another store with the same identity uploaded it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.store.format.fleet.names import SHARDS, is_identity
from quiver.store.format.names import U64_MAX

__all__ = [
    "ACKS_BYTES_MAX",
    "ACKS_ENTRIES_MAX",
    "ACKS_HEADER",
    "ACKS_MAGIC",
    "ACKS_VERSION",
    "ACK_ENTRY",
    "AckedNode",
    "Acks",
    "decode_acks",
    "encode_acks",
    "pack_node",
    "unpack_node",
]

ACKS_MAGIC = b"QUIVER\0K"
ACKS_VERSION = 1
ACKS_HEADER = struct.Struct("<8sHHHB1xQI4x")
ACK_ENTRY = struct.Struct("<16sQQIB3x")
ACKS_ENTRIES_MAX = 65_536
ACKS_BYTES_MAX = 64 * 1024 * 1024
"""Well above the size of a valid object, even with added fields: a larger one is not read."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
_ENTRY_SIZE_MAX = 512


@dataclass(frozen=True, slots=True)
class AckedNode:
    """
    The position of a subscriber in one node.

    Attributes:
        identity: of the node.
        position: the number of the first segment that is not committed.
        segment: number and checksum of the last segment that was read; None if all numbers so far were gone.
    """

    identity: str
    position: int
    segment: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Acks:
    """
    The positions of a subscriber in the nodes of one shard.

    Attributes:
        shard: first two digits of every identity.
        epoch: of the owner that wrote it; a later owner has a higher one.
        nodes: ascending by identity.
    """

    shard: str
    epoch: int
    nodes: tuple[AckedNode, ...]

    def find(self, identity: str) -> AckedNode | None:
        """Return the position in the node *identity*, or None if it has none."""
        return next((node for node in self.nodes if node.identity == identity), None)


def pack_node(node: AckedNode) -> bytes:
    """
    Return the 40 bytes of one entry.

    Raises:
        UsageError: the identity is not a UUID, or a number is out of range, so it could not be read again.
    """
    segment, checksum = node.segment or (0, 0)
    if not (
        is_identity(node.identity)
        and 0 <= node.position <= U64_MAX
        and (node.segment is None or 0 <= segment < node.position)
        and 0 <= checksum < 1 << 32
    ):
        raise UsageError(f"{node} is not the position in a node")
    raw = bytes.fromhex(node.identity.replace("-", ""))
    return ACK_ENTRY.pack(raw, node.position, segment, checksum, node.segment is not None)


def unpack_node(view: memoryview, at: int) -> AckedNode | Damage:
    """Return the entry at offset *at*; the view has at least 40 bytes there."""
    raw, position, segment, checksum, known = ACK_ENTRY.unpack_from(view, at)
    digits = raw.hex()
    identity = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if known > 1:
        return Damage(at, f"node {identity}: unsupported value {known} of known")
    if known and segment >= position:
        return Damage(at, f"node {identity}: segment {segment} is not below position {position}")
    return AckedNode(identity, position, (segment, checksum) if known else None)


def encode_acks(shard: str, epoch: int, nodes: Iterable[AckedNode]) -> bytes:
    """
    Return the complete object.

    Raises:
        UsageError: there are more than 65,536 nodes, one appears twice or belongs to another shard, or a number is out
            of range. Such an object could not be read again.
    """
    ordered = sorted(nodes, key=lambda node: node.identity)
    if shard not in SHARDS or not 0 <= epoch <= U64_MAX:
        raise UsageError(f"shard {shard[:16]!r}, epoch {epoch}: use two hexadecimal digits, and 64 bits")
    if len(ordered) > ACKS_ENTRIES_MAX or len({node.identity for node in ordered}) < len(ordered):
        raise UsageError(f"{len(ordered)} nodes in shard {shard}: at most {ACKS_ENTRIES_MAX}, each once")
    if any(node.identity[:2] != shard for node in ordered):
        raise UsageError(f"shard {shard} has only nodes whose identity begins with it")
    header = ACKS_HEADER.pack(
        ACKS_MAGIC, ACKS_VERSION, ACKS_HEADER.size, ACK_ENTRY.size, int(shard, 16), epoch, len(ordered)
    )
    body = b"".join((header, *map(pack_node, ordered)))
    return body + _CRC.pack(crc32(body))


def decode_acks(view: memoryview) -> Answer[Acks]:
    """Decode the positions of one shard. Bytes after the last checksum are ignored."""
    if not ACKS_MAGIC.startswith(bytes(view[: len(ACKS_MAGIC)])):
        return Damage(0, "not a list of acknowledged positions: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != ACKS_VERSION:
        return Damage(8, f"unsupported version {version} of acknowledged positions; this reads {ACKS_VERSION}")
    if header_size < ACKS_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {ACKS_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, entry_size, shard, epoch, count = ACKS_HEADER.unpack_from(view)
    if not ACK_ENTRY.size <= entry_size <= _ENTRY_SIZE_MAX:
        return Damage(12, f"entry_size {entry_size} is not {ACK_ENTRY.size} to {_ENTRY_SIZE_MAX}")
    if count > ACKS_ENTRIES_MAX:
        return Damage(24, f"entry_count {count} is above the limit of {ACKS_ENTRIES_MAX}")
    end = header_size + count * entry_size
    if len(view) < end + _CRC.size:
        return NeedMore(end + _CRC.size - len(view))
    if _CRC.unpack_from(view, end)[0] != crc32(view[:end]):
        return Damage(end, "checksum mismatch in the acknowledged positions")
    nodes = _decode_nodes(view, range(header_size, end, entry_size), SHARDS[shard])
    return nodes if isinstance(nodes, Damage) else Frame(Acks(SHARDS[shard], epoch, nodes), end + _CRC.size)


def _decode_nodes(view: memoryview, offsets: range, shard: str) -> tuple[AckedNode, ...] | Damage:
    nodes: list[AckedNode] = []
    for at in offsets:
        node = unpack_node(view, at)
        if isinstance(node, Damage):
            return node
        if node.identity[:2] != shard:
            return Damage(at, f"node {node.identity} does not belong to shard {shard}")
        if nodes and node.identity <= nodes[-1].identity:
            return Damage(at, f"node {node.identity} comes after {nodes[-1].identity}")
        nodes.append(node)
    return tuple(nodes)
