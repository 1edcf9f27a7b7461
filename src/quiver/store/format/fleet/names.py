"""
The keys of a fleet's objects, built and parsed, below the root of the fleet.

::

    inbox/<shard>/<identity>/segments/<number>-<crc32>.qseg    a segment, byte for byte the file; as in every tier
    inbox/<shard>/<identity>/segments/<last>-<first>.gone      segments first to last cannot be read any more
    inbox/<shard>/<identity>/quarantine/…                      copies of damaged objects; not read
    nodes/<shard>/<identity>.json                              what the node reports about itself
    acks/<subscriber>/<shard>                                  positions of a subscriber, for the nodes
    offsets/<subscriber>/<generation>                          one batch of a subscriber
    owner/<subscriber>                                         which process runs the subscriber
    rejected/<subscriber>/<generation>/<identity>-<number>.json   a segment of a batch that could not be read

The identity is that of the store (`quiver.id`), a random UUID. The shard is the first two of its digits, so 256 folders
have about equally many nodes, and can be listed concurrently.

Parsing accepts exactly what the matching function builds. Other objects belong to others, and are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.store.format.cold_list import object_name, parse_object_name
from quiver.store.format.names import U64_MAX, check_subscriber_id

__all__ = [
    "ACKS_FOLDER",
    "INBOX_FOLDER",
    "NODES_FOLDER",
    "NODE_NAME_CHARS_MAX",
    "OFFSETS_FOLDER",
    "REJECTED_FOLDER",
    "SHARDS",
    "InboxObject",
    "acks_key",
    "gone_key",
    "inbox_folder",
    "is_identity",
    "is_node_name",
    "key_of",
    "node_key",
    "offsets_folder",
    "offsets_key",
    "owner_key",
    "parse_inbox_key",
    "parse_node_key",
    "parse_offsets_key",
    "parse_rejected_key",
    "quarantine_key",
    "rejected_folder",
    "rejected_key",
    "segment_key",
    "shard_of",
]

INBOX_FOLDER = "inbox"
NODES_FOLDER = "nodes"
ACKS_FOLDER = "acks"
OFFSETS_FOLDER = "offsets"
REJECTED_FOLDER = "rejected"
_OWNER_FOLDER = "owner"

SHARDS = tuple(f"{number:02x}" for number in range(256))

NODE_NAME_CHARS_MAX = 128

_IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NODE_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,{NODE_NAME_CHARS_MAX - 1}}}")
_NUMBER = r"([0-9]{16}|[1-9][0-9]{16,19})"
_GONE = re.compile(rf"{_NUMBER}-{_NUMBER}\.gone")
_GENERATION = re.compile(_NUMBER)
_REJECTED_KEY = re.compile(rf"{REJECTED_FOLDER}/[^/]+/{_NUMBER}/([0-9a-f-]{{36}})-{_NUMBER}\.json")
_INBOX_KEY = re.compile(rf"{INBOX_FOLDER}/([0-9a-f]{{2}})/([0-9a-f-]{{36}})/segments/([^/]+)")
_NODE_KEY = re.compile(rf"{NODES_FOLDER}/([0-9a-f]{{2}})/([0-9a-f-]{{36}})\.json")


@dataclass(frozen=True, slots=True)
class InboxObject:
    """
    One object of a node, as its key describes it.

    Attributes:
        first: the number of the segment; of several that are gone, the first one.
        last: the number of the segment; of several that are gone, the last one.
        crc32: the checksum in the segment's last four bytes; None if the segments are gone.
        size_bytes: of the object, from the listing.
    """

    first: int
    last: int
    crc32: int | None
    size_bytes: int

    @property
    def is_gone(self) -> bool:
        """Whether this records that the segments cannot be read."""
        return self.crc32 is None


def is_identity(text: str) -> bool:
    """Return whether *text* is the identity of a store."""
    return _IDENTITY.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    """Return whether *text* can be the name of a node: 1 to 128 letters, digits and ``_ - .``, not a dot first."""
    return _NODE_NAME.fullmatch(text) is not None


def _check_identity(identity: str) -> str:
    if not is_identity(identity):
        raise UsageError(f"{identity[:64]!r} is not the identity of a store: use the UUID in its quiver.id")
    return identity


def shard_of(identity: str) -> str:
    """
    Return the shard of a node: two hexadecimal digits.

    Raises:
        UsageError: *identity* is not a UUID.
    """
    return _check_identity(identity)[:2]


def inbox_folder(identity: str) -> str:
    """
    Return the folder of a node's segments and damaged objects.

    Raises:
        UsageError: *identity* is not a UUID.
    """
    return f"{INBOX_FOLDER}/{shard_of(identity)}/{identity}"


def segment_key(identity: str, number: int, crc32: int) -> str:
    """
    Return the key of a node's segment.

    Raises:
        UsageError: *identity* is not a UUID.
    """
    return f"{inbox_folder(identity)}/segments/{object_name(number, crc32)}"


def gone_key(identity: str, first: int, last: int) -> str:
    """
    Return the key of the record that a node's segments *first* to *last* are gone.

    Raises:
        UsageError: *identity* is not a UUID, or *first* is above *last*.
    """
    if not 0 <= first <= last < U64_MAX:
        raise UsageError(f"segments {first} to {last} are not a range of segment numbers")
    return f"{inbox_folder(identity)}/segments/{last:016d}-{first:016d}.gone"


def key_of(identity: str, found: InboxObject) -> str:
    """Return the key of *found*, an object of the node *identity*."""
    if found.crc32 is None:
        return gone_key(identity, found.first, found.last)
    return segment_key(identity, found.last, found.crc32)


def parse_inbox_key(key: str, size_bytes: int) -> tuple[str, InboxObject] | None:
    """Return the node's identity and the object with this *key* and size, or None if it is not one of the two kinds."""
    match = _INBOX_KEY.fullmatch(key)
    if match is None or not is_identity(match[2]) or match[2][:2] != match[1]:
        return None
    segment = parse_object_name(match[3])
    if segment is not None:
        number, crc32 = segment
        return (match[2], InboxObject(number, number, crc32, size_bytes)) if number < U64_MAX else None
    gone = _GONE.fullmatch(match[3])
    if gone is None:
        return None
    last, first = int(gone[1]), int(gone[2])
    return (match[2], InboxObject(first, last, None, size_bytes)) if first <= last < U64_MAX else None


def node_key(identity: str) -> str:
    """
    Return the key of a node's record.

    Raises:
        UsageError: *identity* is not a UUID.
    """
    return f"{NODES_FOLDER}/{shard_of(identity)}/{identity}.json"


def parse_node_key(key: str) -> str | None:
    """Return the identity of the node whose record has this *key*, or None if it is not such a key."""
    match = _NODE_KEY.fullmatch(key)
    if match is None or not is_identity(match[2]) or match[2][:2] != match[1]:
        return None
    return match[2]


def acks_key(subscriber: str, shard: str) -> str:
    """
    Return the key of the positions of *subscriber* in the nodes of one shard.

    Raises:
        UsageError: *subscriber* is not a valid id, or *shard* is not one of `SHARDS`.
    """
    check_subscriber_id(subscriber)
    if shard not in SHARDS:
        raise UsageError(f"{shard[:16]!r} is not a shard: use two hexadecimal digits")
    return f"{ACKS_FOLDER}/{subscriber}/{shard}"


def offsets_folder(subscriber: str) -> str:
    """
    Return the folder of the batches of *subscriber*.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    return f"{OFFSETS_FOLDER}/{subscriber}"


def offsets_key(subscriber: str, generation: int) -> str:
    """
    Return the key of a batch: generations count from 0.

    Raises:
        UsageError: *subscriber* is not a valid id, or *generation* is not a number of 64 bits.
    """
    if not 0 <= generation <= U64_MAX:
        raise UsageError(f"{generation} is not a generation: use a number of 64 bits")
    return f"{offsets_folder(subscriber)}/{generation:016d}"


def parse_offsets_key(key: str) -> int | None:
    """Return the generation of the batch with this *key* of any subscriber; None if it is not such a key."""
    match = _GENERATION.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match is not None and int(match[1]) <= U64_MAX else None


def owner_key(subscriber: str) -> str:
    """
    Return the key of the record that shows which process runs *subscriber*.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    return f"{_OWNER_FOLDER}/{subscriber}"


def quarantine_key(identity: str, number: int, crc32: int) -> str:
    """
    Return the key of the copy of a node's segment that a reader rejected.

    Raises:
        UsageError: *identity* is not a UUID.
    """
    return f"{inbox_folder(identity)}/quarantine/{object_name(number, crc32)}"


def rejected_folder(subscriber: str, generation: int | None = None) -> str:
    """
    Return the folder of the segments that *subscriber* rejected, in one batch or in all of them.

    Raises:
        UsageError: *subscriber* is not a valid id.
    """
    check_subscriber_id(subscriber)
    below = "" if generation is None else f"/{generation:016d}"
    return f"{REJECTED_FOLDER}/{subscriber}{below}"


def rejected_key(subscriber: str, generation: int, identity: str, number: int) -> str:
    """
    Return the key of the record that *subscriber* rejected a segment in a batch.

    Raises:
        UsageError: *subscriber* is not a valid id, or *identity* is not a UUID.
    """
    return f"{rejected_folder(subscriber, generation)}/{_check_identity(identity)}-{number:016d}.json"


def parse_rejected_key(key: str) -> tuple[int, str, int] | None:
    """Return generation, identity and segment number of a record of any subscriber; None if it is not such a key."""
    match = _REJECTED_KEY.fullmatch(key)
    if match is None or not is_identity(match[2]) or max(int(match[1]), int(match[3])) > U64_MAX:
        return None
    return int(match[1]), match[2], int(match[3])
