"""
The copies of a segment in the manifest log: the rows of a `TIER1_SNAPSHOT`. JSON text, values in and out.

A row has all values of header and footer, and the places of the copies: a segment is fully described without its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from quiver.aof.format.segment_file import SegmentFooter, SegmentHeader, agrees_with
from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["RemoteCopy", "Residency", "TierEntry", "decode_entries", "encode_entries"]

Residency = Literal["resident_in_tier0", "staged_for_tier0", "uploaded_to_tier2", "needs_recovery"]
"""Where a reader finds the segment: its file, the warm copy, the object; or nowhere until a copy is fetched."""

_RESIDENCIES: dict[str, Residency] = {name: name for name in get_args(Residency)}
_HEADER_KEYS = ("base_record_count", "base_offset", "max_size", "created_at", "base_timestamp")
_FOOTER_KEYS = (
    "record_count", "durable_bytes", "last_record_id", "last_timestamp", "sealed_at", "checksum",
    "coordinator_watermark",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """The object with the same bytes as the warm file."""

    object_key: str
    etag: str | None
    size_bytes: int
    uploaded_epoch_ms: int


@dataclass(frozen=True, slots=True)
class TierEntry:
    """
    A sealed segment with a compressed copy.

    Attributes:
        warm_name: the name of the warm file, even if it does not exist.
        warm_bytes, warm_crc64: size and checksum of the compressed bytes, wherever they are; 0 for an unknown checksum.
        has_warm: whether the warm file exists.
        remote: the object with the same bytes; None before it is uploaded.
    """

    header: SegmentHeader
    footer: SegmentFooter
    warm_name: str
    warm_bytes: int
    warm_crc64: int
    has_warm: bool
    residency: Residency
    remote: RemoteCopy | None = None

    @property
    def segment_id(self) -> int:
        """The segment's id."""
        return self.header.segment_index

    @property
    def original_bytes(self) -> int:
        """Bytes of header and records."""
        return self.footer.durable_bytes - self.header.base_offset


def encode_entries(entries: Iterable[TierEntry]) -> str:
    """Return the JSON text of *entries*."""
    return json.dumps([_row(one) for one in entries], separators=(",", ":"))


def _row(one: TierEntry) -> dict[str, Any]:
    remote = one.remote
    return {
        "segment_id": one.segment_id,
        **{key: getattr(one.header, key) for key in _HEADER_KEYS},
        **{key: getattr(one.footer, key) for key in _FOOTER_KEYS},
        "ext_id": one.header.ext_id,
        "flush_failure": one.footer.flush_failure,
        "original_bytes": one.original_bytes,
        "compressed_bytes": one.warm_bytes,
        "compressed_crc64": one.warm_crc64,
        "compressed_path": one.warm_name,
        "compressed_here": one.has_warm,
        "residency": one.residency,
        "tier2": None
        if remote is None
        else {
            "object_key": remote.object_key,
            "etag": remote.etag,
            "size_bytes": remote.size_bytes,
            "uploaded_epoch_ms": remote.uploaded_epoch_ms,
        },
    }


def decode_entries(text: str) -> Answer[tuple[TierEntry, ...]]:
    """Decode the rows of a snapshot."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return Damage(0, "the rows of a manifest snapshot are not JSON text")
    if not isinstance(rows, list):
        return Damage(0, "the rows of a manifest snapshot are not an array")
    found = []
    for row in rows:
        entry = _entry(row) if isinstance(row, dict) else None
        if entry is None:
            return Damage(0, "a row of a manifest snapshot lacks a field, or two contradict each other")
        found.append(entry)
    return Frame(tuple(found), len(text))


def _entry(row: Mapping[str, Any]) -> TierEntry | None:
    numbers = {
        key: row.get(key)
        for key in (*_HEADER_KEYS, *_FOOTER_KEYS, "segment_id", "ext_id", "compressed_bytes", "compressed_crc64")
    }
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in numbers.values()):
        return None
    segment_id, ext_id = row["segment_id"], row["ext_id"]
    header = SegmentHeader(segment_index=segment_id, ext_id=ext_id, **{key: row[key] for key in _HEADER_KEYS})
    footer = SegmentFooter(
        segment_index=segment_id,
        ext_id=ext_id,
        base_record_count=header.base_record_count,
        flush_failure=row.get("flush_failure") is True,
        **{key: row[key] for key in _FOOTER_KEYS},
    )
    name, remote = row.get("compressed_path"), row.get("tier2")
    residency = _RESIDENCIES.get(str(row.get("residency")))
    if agrees_with(footer, header) is not None or not isinstance(name, str) or residency is None:
        return None
    copy = None if remote is None else _remote(remote)
    if "/" in name or (remote is not None and copy is None):
        return None
    here = row.get("compressed_here") is True
    return TierEntry(header, footer, name, row["compressed_bytes"], row["compressed_crc64"], here, residency, copy)


def _remote(row: object) -> RemoteCopy | None:
    if not isinstance(row, dict):
        return None
    key, etag = row.get("object_key"), row.get("etag")
    size, uploaded = row.get("size_bytes"), row.get("uploaded_epoch_ms")
    if not isinstance(key, str) or not isinstance(etag, str | None):
        return None
    if not isinstance(size, int) or not isinstance(uploaded, int) or size < 0:
        return None
    return RemoteCopy(key, etag, size, uploaded)
