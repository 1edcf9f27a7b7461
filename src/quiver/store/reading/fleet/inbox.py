"""
The objects of all nodes that a reader has not read yet, from listings alone.

A node sends its segments oldest first, so a listing is all that a reader needs. It is not a snapshot: list the folder
of a node again (`list_node`) before you report that one of its objects is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.store.format.fleet.names import INBOX_FOLDER, SHARDS, InboxObject, inbox_folder, parse_inbox_key
from quiver.store.reading.fleet.listing import in_parallel

__all__ = ["NODE_OBJECTS_MAX", "Inbox", "list_inbox", "list_node"]

NODE_OBJECTS_MAX = 100_000
"""Of one node, the first objects; a node with more is read up to there, and then listed again."""

Inbox = dict[str, list[InboxObject]]
"""The objects of each node, by identity."""


def list_inbox(
    tier: ObjectTier,
    *,
    positions: Mapping[str, int] | None = None,
    objects_max: int = NODE_OBJECTS_MAX,
    is_small: bool = False,
) -> Inbox:
    """
    Return the objects of all nodes. Other objects are ignored.

    Args:
        tier: the objects of the fleet.
        positions: the position of the reader in each node, by identity. Objects below it are left out.
        objects_max: how many objects of each node are returned, in the order of their keys.
        is_small: list everything at once, not the 256 shards concurrently. Cheaper up to a few thousand objects.

    Raises:
        ObjectsUnavailableError: the object store does not answer.
        AccessDeniedError: the credentials do not allow it.
    """
    known = positions or {}
    if is_small:
        return _by_node(tier.list_below(INBOX_FOLDER), known, objects_max)
    found: Inbox = {}
    folders = [f"{INBOX_FOLDER}/{shard}" for shard in SHARDS]
    for part in in_parallel(lambda folder: _by_node(tier.list_below(folder), known, objects_max), folders):
        found.update(part)
    return found


def list_node(tier: ObjectTier, identity: str, *, position: int = 0) -> list[InboxObject]:
    """
    Return the objects of one node, without those below *position*.

    Raises:
        UsageError: *identity* is not a UUID.
        ObjectsUnavailableError: the object store does not answer.
    """
    infos = tier.list_below(f"{inbox_folder(identity)}/segments")
    return _by_node(infos, {identity: position}, NODE_OBJECTS_MAX).get(identity, [])


def _by_node(infos: Iterable[ObjectInfo], positions: Mapping[str, int], objects_max: int) -> Inbox:
    found: Inbox = {}
    for info in infos:
        parsed = parse_inbox_key(info.key, info.size_bytes)
        if parsed is None:
            continue
        identity, one = parsed
        if one.last < positions.get(identity, 0):
            continue
        objects = found.setdefault(identity, [])
        if len(objects) < objects_max:
            objects.append(one)
    return found
