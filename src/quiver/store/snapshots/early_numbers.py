"""New numbers for unsealed segments in the early progress of a copy. Pure."""

from __future__ import annotations

from collections.abc import Container

from quiver.store.format.early_progress import EarlyProgress, UnsealedSegment

__all__ = ["renumbered"]


def renumbered(early: EarlyProgress, floor: int, sealed: Container[int]) -> EarlyProgress:
    """
    Return *early* with numbers from *floor* on for all segments that are not in *sealed*.

    Only log position and sequence number identify their bundles, so the replay gives the segments these numbers.
    """
    segments: list[UnsealedSegment] = []
    numbers: dict[int, int] = {}
    for segment in early.segments:
        seq = segment.seq
        if seq not in sealed:
            seq = max(seq, floor)
            floor = seq + 1
        if not segments or segments[-1].seq < seq:  # otherwise its bundles are delivered again
            segments.append(UnsealedSegment(seq, segment.wal_position, segment.sequence))
            numbers[segment.seq] = seq
    resolved = {
        (subscriber, numbers[seq]): bits for (subscriber, seq), bits in early.resolved.items() if seq in numbers
    }
    return EarlyProgress(tuple(segments), resolved)
