"""The objects of one log, listed from the object store: they describe themselves."""

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
        entries: the segments that have an object, by id.
        damaged: the errors of damaged objects.
        left_out: keys of objects whose segment another object holds.
        highest_id: the highest segment id, including damaged objects; -1 when there are none.
    """

    entries: dict[int, TierEntry] = field(default_factory=dict)
    damaged: list[CorruptionError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    highest_id: int = -1

    def add(self, entry: TierEntry, key: str) -> None:
        """Add an object. Of two objects of one segment, prefer more records, then the later seal."""
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
    Return the objects of the log *stream_id*. Only the two ends of each object are read.

    Args:
        copies: access to the objects.
        stream_id: the log's number.
        now_ms: the upload time to set in the entries.
        wanted: returns whether to read an object, given its segment's id and its key.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: the objects cannot be read.
    """
    found = ListedObjects()
    for info in copies.objects_below(f"{object_folder(stream_id)}/"):
        parsed = parse_object_key(info.key)
        if parsed is None or parsed[0] != stream_id or object_key(*parsed) != info.key:
            continue  # not an object of this log
        if parsed[1] <= _SEGMENT_ID_MAX:
            found.highest_id = max(found.highest_id, parsed[1])
        if not wanted(parsed[1], info.key):
            continue
        try:
            found.add(copies.entry_of_object(info, now_ms), info.key)
        except CorruptionError as damaged:
            found.damaged.append(damaged)
    return found
