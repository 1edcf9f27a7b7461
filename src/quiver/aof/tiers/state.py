"""
What the records of the manifest log add up to: the copies of each segment, and objects that still have to be deleted.

::

    SNAPSHOT_MARKER                     forget everything: what follows says all of it
    TIER1_SNAPSHOT       of segment n   these rows; none at all: segment n has no copies any more
    UPLOAD_STARTED, UPLOAD_DONE         an object that may be there and need not go yet, and one that is there
    TIER2_DELETE_QUEUED, TIER2_DELETED  an object that must go, and one that is gone
    anything else                       history, for people
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.aof.format.manifest_record import Event, Fields, ManifestRecord
from quiver.aof.format.tier_entry import TierEntry, decode_entries, encode_entries
from quiver.primitives.scan import Damage, Frame, as_damage

__all__ = ["ALL_SEGMENTS", "TierState", "entry_record", "key_record"]

ALL_SEGMENTS = (1 << 64) - 1
"""In the place of a segment: nobody has looked yet which objects the folder of the log has."""

_ROWS_PER_RECORD = 1000


@dataclass(slots=True)
class TierState:
    """
    Segments with copies; keys of objects that must go, each with the segment that it was of; and segments whose upload
    began, each with the key of the object that may be there. `ALL_SEGMENTS` among these means that the manifest was
    lost while there was no object store to ask: nobody has looked yet which objects there are.
    """

    entries: dict[int, TierEntry] = field(default_factory=dict)
    deletes: dict[str, int] = field(default_factory=dict)
    uploads: dict[int, str] = field(default_factory=dict)

    def apply(self, record: ManifestRecord) -> Damage | None:
        """Take *record* in; return what is wrong with it, if anything is."""
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
            self.deletes.pop(str(record.fields[0]), None)  # its segment was brought back by a crash, and is kept
        elif record.kind == Event.UPLOAD_DONE:
            self.uploads.pop(record.segment_id, None)
        elif record.kind == Event.TIER2_DELETE_QUEUED:
            self.uploads.pop(record.segment_id, None)
            self.deletes[str(record.fields[0])] = record.segment_id
        elif record.kind == Event.TIER2_DELETED:
            self.deletes.pop(str(record.fields[0]), None)
        return None

    def snapshot(self, chunk_index: int, now_ms: int) -> list[ManifestRecord]:
        """Return the records that say all of it, for the beginning of chunk *chunk_index*."""
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
    """Return the record that says where the copies of a segment are now; None: there are none."""
    text = encode_entries([] if entry is None else [entry])
    return ManifestRecord(Event.TIER1_SNAPSHOT, segment_id, 0, now_ms, (text,))


def key_record(kind: Event, segment_id: int, key: str, now_ms: int) -> ManifestRecord:
    """Return a record about an object."""
    return ManifestRecord(kind, segment_id, 0, now_ms, (key,))
