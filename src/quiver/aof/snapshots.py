"""Snapshots of the state of a log, for metrics, human readers and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quiver.aof.append.flush import FlushMetrics
from quiver.aof.append.tail import Tail
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES
from quiver.aof.reading.catalog import Catalog
from quiver.aof.tiers.snapshot import TierSnapshot

__all__ = ["LogSnapshot", "SegmentSnapshot", "end_of", "log_snapshot", "missing_ranges", "segment_snapshots"]


@dataclass(frozen=True, slots=True)
class SegmentSnapshot:
    """One segment. `current_size` and `durable_size` are offsets in its file."""

    segment_id: int
    state: str
    base_offset: int
    base_record_count: int
    record_count: int
    current_size: int
    durable_size: int
    max_size: int
    created_at: int
    path: str


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """
    The state of a log: its segments, oldest first, and its backlog.

    Attributes:
        would_block: kind → how often an append was blocked.
        backlog_bytes: bytes that are written but not yet durable.
        missing: ranges of records that were already lost when the log was opened, as in `Reader.lost`.
        tiers: the sizes of the tiers; None for a log without tiers.
        disk_full: whether the disk had no space for a segment, or to seal one, at the last attempt.
        appended_records, appended_bytes: counts since the log was opened; bytes of payloads and their heads.
    """

    name: str
    stream_id: int
    segments: tuple[SegmentSnapshot, ...]
    spares: int
    record_count: int
    backlog_bytes: int
    coordinator_watermark: int
    ext_id: int
    flush_failed: bool
    would_block: dict[str, int]
    flush: FlushMetrics
    truncated_bytes: int
    quarantined: tuple[str, ...]
    tiers: TierSnapshot | None = None
    appended_records: int = 0
    appended_bytes: int = 0
    disk_full: bool = False
    missing: tuple[tuple[int, int], ...] = ()

    def figures(self) -> dict[str, Any]:
        """Return the values of the log's gauges."""
        figures: dict[str, Any] = {
            "backlog": self.backlog_bytes, "records": self.record_count, "would_block": self.would_block,
            "appended_records": self.appended_records, "appended_bytes": self.appended_bytes,
            "disk_full": int(self.disk_full),
        }  # fmt: skip
        if self.tiers is not None:
            tiers = self.tiers.as_dict()
            figures |= {"residency": tiers["tier1"]["residency"], "queues": tiers["queues"]}
            figures |= {"upload_lag_bytes": self.tiers.upload_lag_bytes}
            figures |= {"upload_lag_seconds": self.tiers.upload_lag_seconds}
            figures |= {"replay_chunks": self.tiers.replay_chunks}
            figures |= {"replay_journal_lag_bytes": self.tiers.replay_journal_lag_bytes}
            figures |= {"replay_chunk_lag_seconds": self.tiers.replay_chunk_lag_seconds}
        return figures


def end_of(segments: Sequence[SegmentSnapshot], tail: Tail) -> tuple[int, int]:
    """Return the totals of appended records and of their bytes with heads. Of the bytes only differences count."""
    if not segments:
        with tail.lock:
            base, count, number = tail.next_base_offset, tail.next_base_record_count, tail.next_segment_id
        return count, base + HEADER_BYTES - number * (HEADER_BYTES + FOOTER_BYTES)
    newest = segments[-1]
    overhead = newest.segment_id * (HEADER_BYTES + FOOTER_BYTES)
    size = max(newest.current_size, HEADER_BYTES)
    return newest.base_record_count + newest.record_count, newest.base_offset + size - overhead


def segment_snapshots(catalog: Catalog, tail: Tail) -> tuple[SegmentSnapshot, ...]:
    """Return all segments of a log, oldest first, each once."""
    sealed = [
        SegmentSnapshot(
            one.segment_id, "sealed", one.header.base_offset, one.header.base_record_count, one.footer.record_count,
            one.end, one.end, one.header.max_size, one.header.created_at, one.path,
        )
        for one in catalog.all()
    ]  # fmt: skip
    with tail.lock:
        rest = [
            SegmentSnapshot(
                one.segment_id, "active" if one is tail.segment else "pending", one.base_offset,
                one.base_record_count, one.record_count, one.size, one.durable, one.max_size, one.created_at, one.path,
            )
            for one in tail.unsealed()
        ]  # fmt: skip
    return (*sealed, *(one for one in rest if one.segment_id not in {each.segment_id for each in sealed}))


def log_snapshot(
    name: str,
    stream_id: int,
    catalog: Catalog,
    tail: Tail,
    *,
    flush: FlushMetrics,
    began_at: tuple[int, int],
    truncated_bytes: int,
    quarantined: Sequence[str],
    missing: tuple[tuple[int, int], ...],
    tiers: TierSnapshot | None,
) -> LogSnapshot:
    """Return the present state of a log; *began_at* is the result of `end_of` when it was opened."""
    segments = segment_snapshots(catalog, tail)
    with tail.lock:
        backlog, spares, ext_id = tail.backlog, len(tail.spares), tail.ext_id
        would_block, disk_full = dict(tail.would_block), bool(tail.disk_full)
    record_count, end = end_of(segments, tail)
    return LogSnapshot(
        name=name,
        stream_id=stream_id,
        segments=segments,
        spares=spares,
        record_count=record_count,
        appended_records=record_count - began_at[0],
        appended_bytes=end - began_at[1],
        backlog_bytes=backlog,
        coordinator_watermark=tail.coordinator_watermark,
        ext_id=ext_id,
        flush_failed=tail.flush_failed,
        would_block=would_block,
        flush=replace(flush, backlog_bytes=backlog),
        truncated_bytes=truncated_bytes,
        quarantined=tuple(quarantined),
        tiers=tiers,
        disk_full=disk_full,
        missing=missing,
    )


def missing_ranges(
    segments: Sequence[SegmentSnapshot], tail: Tail, tiers: TierSnapshot | None
) -> list[tuple[int, int]]:
    """
    Return the ranges of records that a log has lost: the id of the first record, and the place after the last one.

    Records are lost where a segment does not follow the one before it without a gap, and in segments without a copy.
    """
    residency = {} if tiers is None else tiers.residency
    with tail.lock:
        end = (tail.next_segment_id, tail.next_base_offset)
    begins = [(one.segment_id, one.base_offset) for one in segments]
    if tail.segment is None:
        begins.append(end)
    found = []
    for one, (following, base_offset) in zip(segments, begins[1:], strict=False):
        last = one.segment_id << 32 | one.current_size
        if residency.get(one.segment_id) == "needs_recovery":
            found.append((one.segment_id << 32 | HEADER_BYTES, last))
        if base_offset != one.base_offset + one.current_size + FOOTER_BYTES:
            found.append((last, following << 32 | HEADER_BYTES))
    return found
