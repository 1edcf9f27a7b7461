"""
Names of the files of a log, made and parsed in one place. A name that this code would not make belongs to others.

::

    <root>/
      aof.id                                                  the stream's number, as text
      aof.status                                              the status of its writer, advisory
      segments/<segment_id>_<base_offset>_<created_at>.seg    a segment; each number has 20 digits
      segments/<number>.spare                                 a preallocated segment, or one not yet named
      segments/current.sealed                                 the newest sealed segment
      archive/<segment_id>_<sealed_at>.seg                    a sealed segment that retention moved away
      quarantine/…                                            damaged files, unchanged
      index/<segment_id>_<base_offset>.idx                    the sparse index of a sealed segment
      incoming/<writer>/…                                     batches that Spark sinks staged (`sink_batch.py`)
      manifest/<stream_id>/<chunk_index>.mlog                 the MAN1 manifest log
      warm/<segment_id>_<base_offset>_<sealed_at>.zst         a sealed segment, packed
      warm/durability/<stream_id>.json                        how far each segment was synced

    <prefix>/<stream_id>/segment-<segment_id>-<sealed_at>.zst the same as an object; 16 hex digits, then 20
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "ARCHIVE",
    "DURABILITY",
    "IDENTITY_NAME",
    "INCOMING",
    "INDEX",
    "LOCK_NAME",
    "MANIFEST",
    "POINTER_NAME",
    "QUARANTINE",
    "SEGMENTS",
    "STATUS_NAME",
    "WARM",
    "SegmentName",
    "archive_name",
    "chunk_name",
    "durability_name",
    "index_name",
    "is_stream_name",
    "object_folder",
    "object_key",
    "parse_archive_name",
    "parse_chunk_name",
    "parse_index_name",
    "parse_object_key",
    "parse_segment_name",
    "parse_spare_name",
    "parse_warm_name",
    "spare_name",
    "stream_folder",
    "warm_name",
]

SEGMENTS = "segments"
ARCHIVE = "archive"
MANIFEST = "manifest"
QUARANTINE = "quarantine"
INCOMING = "incoming"
INDEX = "index"
WARM = "warm"
DURABILITY = "warm/durability"
POINTER_NAME = "current.sealed"
IDENTITY_NAME = "aof.id"
LOCK_NAME = "aof.lock"
STATUS_NAME = "aof.status"

_U64_MAX = (1 << 64) - 1
_I64_MAX = (1 << 63) - 1
_SEGMENT = re.compile(r"([0-9]{20})_([0-9]{20})_(-?[0-9]{19,20})\.seg")
_ARCHIVED = re.compile(r"([0-9]{20})_([0-9]{20})\.seg")
_INDEX = re.compile(r"([0-9]{20})_([0-9]{20})\.idx")
_SPARE = re.compile(r"([0-9]{20})\.spare")
_CHUNK = re.compile(r"([0-9]{20})\.mlog")
_WARM = re.compile(r"([0-9]{20})_([0-9]{20})_([0-9]{20})\.zst")
_OBJECT = re.compile(r"(?:.*/)?([0-9a-f]{16})/segment-([0-9]{20})-([0-9]+)\.zst")
_STREAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The parsed name of a segment. `str` returns the name."""

    segment_id: int
    base_offset: int
    created_at: int

    def __str__(self) -> str:
        return f"{self.segment_id:020}_{self.base_offset:020}_{self.created_at:020}.seg"


def parse_segment_name(name: str) -> SegmentName | None:
    """Parse the name of a segment file; return None when it is not one."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    parsed = SegmentName(*map(int, match.groups()))
    fits = parsed.segment_id <= _U64_MAX and parsed.base_offset <= _U64_MAX and abs(parsed.created_at) <= _I64_MAX
    return parsed if fits and str(parsed) == name else None


def archive_name(segment_id: int, sealed_at: int) -> str:
    """Return the name of a sealed segment in the archive."""
    return f"{segment_id:020}_{sealed_at:020}.seg"


def parse_archive_name(name: str) -> tuple[int, int] | None:
    """Return segment id and time of sealing, or None when it is not the name of an archived segment."""
    match = _ARCHIVED.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def index_name(segment_id: int, base_offset: int) -> str:
    """Return the name of the sparse index of a sealed segment."""
    return f"{segment_id:020}_{base_offset:020}.idx"


def parse_index_name(name: str) -> tuple[int, int] | None:
    """Return segment id and base offset, or None when it is not the name of a sparse index."""
    match = _INDEX.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def spare_name(number: int) -> str:
    """Return the name of a spare; the number only distinguishes spares."""
    return f"{number:020}.spare"


def parse_spare_name(name: str) -> int | None:
    """Return the number of a spare file, or None when it is not one."""
    match = _SPARE.fullmatch(name)
    return int(match[1]) if match else None


def stream_folder(stream_id: int) -> str:
    """Return the folder of a stream's manifest chunks."""
    return f"{MANIFEST}/{stream_id:020}"


def chunk_name(chunk_index: int) -> str:
    """Return the name of a manifest chunk."""
    return f"{chunk_index:020}.mlog"


def parse_chunk_name(name: str) -> int | None:
    """Return the index of a manifest chunk, or None when it is not one."""
    match = _CHUNK.fullmatch(name)
    return int(match[1]) if match else None


def warm_name(segment_id: int, base_offset: int, sealed_at: int) -> str:
    """Return the name of the packed file of a sealed segment."""
    return f"{segment_id:020}_{base_offset:020}_{sealed_at:020}.zst"


def parse_warm_name(name: str) -> tuple[int, int, int] | None:
    """Return segment id, base offset and time of sealing, or None when it is not the name of a packed segment."""
    match = _WARM.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def object_folder(stream_id: int) -> str:
    """Return the folder of a stream's objects."""
    return f"{stream_id:016x}"


def object_key(stream_id: int, segment_id: int, sealed_at: int) -> str:
    """Return the key of the object of a sealed segment."""
    return f"{object_folder(stream_id)}/segment-{segment_id:020}-{sealed_at}.zst"


def parse_object_key(key: str) -> tuple[int, int, int] | None:
    """Return stream, segment id and time of sealing, or None when it is not the key of a segment."""
    match = _OBJECT.fullmatch(key)
    return (int(match[1], 16), int(match[2]), int(match[3])) if match else None


def durability_name(stream_id: int) -> str:
    """Return the name of the durability snapshot of a stream."""
    return f"{stream_id:020}.json"


def is_stream_name(name: str) -> bool:
    """Return whether a stream may be called *name*: it becomes a directory next to the lock of all logs."""
    return _STREAM.fullmatch(name) is not None and name != LOCK_NAME
