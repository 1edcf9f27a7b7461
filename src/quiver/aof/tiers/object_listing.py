"""What the object store has of one log: its objects describe themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quiver.aof.format.names import object_folder, object_key, parse_object_key
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.tiers.copies import Copies
from quiver.errors import CorruptionError

__all__ = ["ListedObjects", "list_objects"]

_SEGMENT_ID_MAX = 0xFFFF_FFFF


@dataclass(slots=True)
class ListedObjects:
    """
    The objects of one log.

    Attributes:
        entries: the segments that have one, by id.
        damaged: what is wrong with others.
        left_out: keys of objects whose segment another object has.
        highest_id: of all of them, damaged ones included; -1 when there is none.
    """

    entries: dict[int, TierEntry] = field(default_factory=dict)
    damaged: list[CorruptionError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    highest_id: int = -1

    def add(self, entry: TierEntry, key: str) -> None:
        """
        Take an object. Of two of one segment the one with more records counts, or else the one that was sealed
        later.
        """
        other = self.entries.get(entry.segment_id)
        if other is not None and _rank(other) >= _rank(entry):
            self.left_out.append(key)
            return
        if other is not None and other.remote is not None:
            self.left_out.append(other.remote.object_key)
        self.entries[entry.segment_id] = entry


def _rank(entry: TierEntry) -> tuple[int, int]:
    return entry.footer.record_count, entry.footer.sealed_at


def list_objects(
    copies: Copies, stream_id: int, *, now_ms: int, wanted: Callable[[int, str], bool] = lambda _id, _key: True
) -> ListedObjects:
    """
    Return what the object store has of the log *stream_id*. Of each object only its ends are read.

    Args:
        copies: a way to the objects.
        stream_id: the log's number.
        now_ms: what the entries say of when they were uploaded.
        wanted: says of a segment's id and an object's key whether it is looked at.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: they cannot be read.
    """
    found = ListedObjects()
    for info in copies.objects_below(f"{object_folder(stream_id)}/"):
        parsed = parse_object_key(info.key)
        if parsed is None or parsed[0] != stream_id or object_key(*parsed) != info.key:
            continue  # somebody else's
        if parsed[1] <= _SEGMENT_ID_MAX:
            found.highest_id = max(found.highest_id, parsed[1])
        if not wanted(parsed[1], info.key):
            continue
        try:
            found.add(copies.entry_of_object(info, now_ms), info.key)
        except CorruptionError as damaged:
            found.damaged.append(damaged)
    return found
