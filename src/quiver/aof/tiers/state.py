"""
The tier state that the records of the manifest log describe: the copies of each segment, and objects to delete.

::

    SNAPSHOT_MARKER                     forget everything: a complete snapshot follows
    TIER1_SNAPSHOT       of segment n   these rows; no rows: segment n has no copies
    UPLOAD_STARTED, UPLOAD_DONE         an object that may exist and must not be deleted yet, and one that exists
    TIER2_DELETE_QUEUED, TIER2_DELETED  an object to delete, and one that is deleted
    anything else                       history, for human readers
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.aof.format.manifest_record import Event, Fields, ManifestRecord
from quiver.aof.format.tier_entry import TierEntry, decode_entries, encode_entries
from quiver.primitives.scan import Damage, Frame, as_damage

__all__ = ["ALL_SEGMENTS", "TierState", "entry_record", "key_record"]

ALL_SEGMENTS = (1 << 64) - 1
"""Instead of a segment id: the objects in the folder of the log were not listed yet."""

_ROWS_PER_RECORD = 1000


@dataclass(slots=True)
class TierState:
    """
    The state of the tiers.

    Attributes:
        entries: segment id → its copies.
        deletes: key of an object to delete → the id of its segment.
        uploads: segment id → the key of an object whose upload has begun. `ALL_SEGMENTS` means that the manifest was
            lost when the object store was not available, so that the objects were not listed yet.
    """

    entries: dict[int, TierEntry] = field(default_factory=dict)
    deletes: dict[str, int] = field(default_factory=dict)
    uploads: dict[int, str] = field(default_factory=dict)

    def apply(self, record: ManifestRecord) -> Damage | None:
        """Apply *record*; return its damage, if it is invalid."""
        if record.kind == Event.SNAPSHOT_MARKER:
            self.entries.clear()
            self.deletes.clear()
            self.uploads.clear()
        elif record.kind == Event.TIER1_SNAPSHOT:
            answer = decode_entries(str(record.fields[0]))
            if not isinstance(answer, Frame):
                return as_damage(answer, 0)
            if not answer.value:
                self.entries.pop(record.segment_id, None)
            self.entries.update({one.segment_id: one for one in answer.value})
        elif record.kind == Event.UPLOAD_STARTED:
            self.uploads[record.segment_id] = str(record.fields[0])
            self.deletes.pop(str(record.fields[0]), None)  # a crash restored its segment, which is kept
        elif record.kind == Event.UPLOAD_DONE:
            self.uploads.pop(record.segment_id, None)
        elif record.kind == Event.TIER2_DELETE_QUEUED:
            self.uploads.pop(record.segment_id, None)
            self.deletes[str(record.fields[0])] = record.segment_id
        elif record.kind == Event.TIER2_DELETED:
            self.deletes.pop(str(record.fields[0]), None)
        return None

    def snapshot(self, chunk_index: int, now_ms: int) -> list[ManifestRecord]:
        """Return the records of the complete state, for the beginning of chunk *chunk_index*."""
        records = [ManifestRecord(Event.SNAPSHOT_MARKER, 0, 0, now_ms, (chunk_index, 0, chunk_index))]
        rows = [self.entries[segment_id] for segment_id in sorted(self.entries)]
        for start in range(0, len(rows), _ROWS_PER_RECORD):
            piece = rows[start : start + _ROWS_PER_RECORD]
            fields: Fields = (encode_entries(piece),)
            records.append(ManifestRecord(Event.TIER1_SNAPSHOT, piece[0].segment_id, 0, now_ms, fields))
        records += [key_record(Event.UPLOAD_STARTED, of, key, now_ms) for of, key in self.uploads.items()]
        records += [key_record(Event.TIER2_DELETE_QUEUED, of, key, now_ms) for key, of in self.deletes.items()]
        return records


def entry_record(segment_id: int, entry: TierEntry | None, now_ms: int) -> ManifestRecord:
    """Return the record of the present copies of a segment; with None, of no copies."""
    text = encode_entries([] if entry is None else [entry])
    return ManifestRecord(Event.TIER1_SNAPSHOT, segment_id, 0, now_ms, (text,))


def key_record(kind: Event, segment_id: int, key: str, now_ms: int) -> ManifestRecord:
    """Return a record about an object."""
    return ManifestRecord(kind, segment_id, 0, now_ms, (key,))
