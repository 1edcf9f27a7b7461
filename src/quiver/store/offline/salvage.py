"""
Recovers the bundles of a segment whose checksum is wrong: from the log, or as far as Arrow can still read them.

One checksum covers the complete file, so the damaged bytes cannot be located. Bundles that are still in the log have
their own checksums and are written to a segment again, with the same number. Data that exists only in the damaged file
is never delivered as valid: it is exported to Arrow files in quarantine, for manual inspection.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.errors import CorruptionError, InvalidBundleError
from quiver.primitives.disk.copying import keep_as
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Profile
from quiver.store.encode import SlotEncoder, write_slots
from quiver.store.format.names import QUARANTINE_DIR, SEGMENTS_DIR, WAL_DIR, segment_name
from quiver.store.format.segment.file import STREAM_ALIGNMENT
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE
from quiver.store.segment.accumulator import OpenSegment
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.writer import write_segment
from quiver.store.wal.replay import decode_slots, find_wal_files, scan_file
from quiver.store.wal.scan import ScannedEntry

__all__ = ["DamagedSegment", "entries_of", "examine", "export_streams", "is_complete", "rewrite"]

_ARROW_FILE = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_ERRORS = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, EOFError)
_SEQUENCE_MAX = 2**64


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """
    A segment that is damaged.

    Attributes:
        seq: its number.
        path: the file.
        reason: the damage, at `offset`.
        offset: see `reason`.
        info: the metadata in its tables, which may be wrong; None when they cannot be read.
    """

    seq: int
    path: str
    offset: int
    reason: str
    info: SegmentInfo | None


def examine(fs: FileSystem, root: str, seq: int) -> DamagedSegment | SegmentInfo:
    """
    Read segment *seq* to its last byte; return its metadata if it is valid, or its damage.

    Raises:
        UnsupportedFormatError: a valid segment of a newer version.
        OSError: the segment cannot be read.
    """
    path = f"{root}/{SEGMENTS_DIR}/{segment_name(seq)}"
    reader: SegmentReader | None = None
    try:
        reader = SegmentReader.open(fs, path)
        reader.verify()
    except CorruptionError as damage:
        if reader is None and damage.reason.startswith("unsupported version"):
            raise
        return DamagedSegment(seq, path, damage.offset, damage.reason, None if reader is None else reader.info)
    finally:
        if reader is not None:
            reader.close()
    return reader.info


def entries_of(fs: FileSystem, root: str, damaged: DamagedSegment, valid: Sequence[SegmentInfo]) -> list[ScannedEntry]:
    """
    Return the log entries that belong to *damaged*: those between its *valid* neighbours, in order.

    Its own tables narrow the range if they agree with the neighbours.
    """
    low, high = _gap(damaged.seq, valid)
    info = damaged.info
    if info is not None and info.sequence_first is not None and info.sequence_last is not None:
        if low <= info.sequence_first <= info.sequence_last < high:
            low, high = info.sequence_first, info.sequence_last + 1
    elif high == _SEQUENCE_MAX:
        # Without tables and without a later segment its end is unknown; the log is replayed from there anyway.
        return []
    directory = f"{root}/{WAL_DIR}"
    found: dict[int, ScannedEntry] = {}
    for file in find_wal_files(fs, directory) if fs.exists(directory) else []:
        for scanned in scan_file(fs, file.path).entries:
            if scanned.entry_type == ENTRY_TYPE_BUNDLE and low <= scanned.sequence < high:
                found.setdefault(scanned.sequence, scanned)
    return [found[sequence] for sequence in sorted(found)]


def is_complete(damaged: DamagedSegment, entries: Sequence[ScannedEntry], valid: Sequence[SegmentInfo]) -> bool:
    """Return whether *entries* are all bundles that *damaged* had, at the same indexes."""
    if not entries:
        return False
    first, last = entries[0].entry.sequence, entries[-1].entry.sequence
    if last - first + 1 != len(entries):
        return False
    info = damaged.info
    if info is not None:
        return (info.sequence_first, info.sequence_last, info.bundle_count) == (first, last, len(entries))
    return (first, last + 1) == _gap(damaged.seq, valid)


def _gap(seq: int, valid: Sequence[SegmentInfo]) -> tuple[int, int]:
    before = [info.sequence_last for info in valid if info.seq < seq and info.sequence_last is not None]
    after = [info.sequence_first for info in valid if info.seq > seq and info.sequence_first is not None]
    return max(before, default=-1) + 1, min(after, default=_SEQUENCE_MAX)


def rewrite(
    fs: FileSystem, root: str, seq: int, entries: Sequence[ScannedEntry], *, profile: Profile
) -> tuple[SegmentInfo, int]:
    """
    Replace segment *seq* by a new one from log entries; durable on return.

    Returns:
        The segment, and the number of entries that could not be decoded.

    Raises:
        OSError: the old file is unchanged.
    """
    encoder = SlotEncoder()
    segment = OpenSegment(streams_max=1 << 30)
    skipped = 0
    for scanned in entries:
        entry = scanned.entry
        try:
            batches = decode_slots(entry, path=segment_name(seq), position=scanned.start)
            encoded = encoder.encode(batches, {slot.slot: slot.fingerprint for slot in entry.slots})
        except (CorruptionError, InvalidBundleError):
            skipped += 1
            continue
        write_slots(encoded.slots, memoryview(bytearray(encoded.nbytes)).cast("b"), 0)
        segment.append(encoded.slots, entry.ingested_at_ns, entry.sequence, scanned.start, scanned.end, encoded.nbytes)
    return write_segment(fs, f"{root}/{SEGMENTS_DIR}", seq, segment.seal(), profile=profile), skipped


def export_streams(fs: FileSystem, root: str, damaged: DamagedSegment, *, write: bool) -> list[tuple[str, int]]:
    """
    Write the data of *damaged* that Arrow can still read to Arrow files in quarantine: (path, rows) of each stream.

    Every batch is validated fully; a stream ends at the first invalid one. Another call writes the same files again.

    Args:
        fs: the file system.
        root: the store's directory.
        damaged: the segment.
        write: False only counts.

    Raises:
        OSError: a file could not be read or written.
    """
    mapping = fs.map_read(damaged.path)
    view = mapping.view()
    mapping.close()
    name = posixpath.basename(damaged.path)
    found: list[tuple[str, int]] = []
    for offset in range(0, len(view), STREAM_ALIGNMENT):
        if view[offset : offset + len(_ARROW_FILE)] != _ARROW_FILE:
            continue
        # Writers pad the header differently: the first message is at 8 or at 64.
        start = next((at for at in (8, 64) if view[offset + at : offset + at + 4] == _CONTINUATION), None)
        batches = [] if start is None else _readable(view[offset + start :])
        if not batches or _is_own_table(batches[0].schema):
            continue
        path = f"{root}/{QUARANTINE_DIR}/{name}.stream-at-{offset}.arrows"
        if write:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            keep_as(fs, path, memoryview(sink.getvalue()))
        found.append((path, sum(batch.num_rows for batch in batches)))
    return found


def _readable(view: memoryview) -> list[pa.RecordBatch]:
    # An Arrow file is a stream between a magic and a footer: read as a stream, it needs no footer.
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(pa.py_buffer(view)) as reader:
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
    except _ARROW_ERRORS:
        return batches
    return batches


def _is_own_table(schema: pa.Schema) -> bool:
    return schema.names[:2] == ["stream_id", "slot_id"] or schema.names[:1] == ["bundle_index"]
