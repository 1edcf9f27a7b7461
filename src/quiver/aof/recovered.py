"""The state of a log after recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quiver.aof.append.segment import Segment
from quiver.aof.format.sealed_pointer import SealedPointer
from quiver.aof.reading.catalog import SealedSegment

__all__ = ["RecoveredLog"]


@dataclass(slots=True)
class RecoveredLog:
    """
    The state of a log after recovery. All of it is durable.

    Attributes:
        tail: the unsealed segment in which the log continues; None when it ends with a sealed one.
        pointer: the content of `current.sealed`.
        coordinator_watermark: the highest watermark of the pointer and the footers.
        truncated_bytes: how many bytes were cut off after the last complete records.
        quarantined: files that were moved or copied to the quarantine.
    """

    sealed: list[SealedSegment] = field(default_factory=list)
    tail: Segment | None = None
    pointer: SealedPointer | None = None
    next_segment_id: int = 0
    next_base_offset: int = 0
    next_base_record_count: int = 0
    coordinator_watermark: int = 0
    ext_id: int = 0
    last_timestamp: int = 0
    truncated_bytes: int = 0
    quarantined: list[str] = field(default_factory=list)

    @property
    def first_unsealed_id(self) -> int:
        """The id of the first unsealed segment."""
        return self.next_segment_id if self.tail is None else self.tail.segment_id

    def next_place(self, segments: Sequence[SealedSegment]) -> tuple[int, int]:
        """
        Return base offset and base record count of the next segment, which also follows the last of *segments*:
        recovery does not see segments without a local file.
        """
        ends = [(one.next_base_offset, one.next_base_record_count) for one in segments[-1:]]
        return max([(self.next_base_offset, self.next_base_record_count), *ends])
