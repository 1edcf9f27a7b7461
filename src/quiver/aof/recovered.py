"""What opening a log found, and made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quiver.aof.append.segment import Segment
from quiver.aof.format.sealed_pointer import SealedPointer
from quiver.aof.reading.catalog import SealedSegment

__all__ = ["Recovered"]


@dataclass(slots=True)
class Recovered:
    """
    What a log is after recovery: all of it is durable.

    Attributes:
        tail: the segment that goes on; None when the log ends with a sealed one.
        pointer: what `current.sealed` said.
        coordinator_watermark: the highest of pointer and footers.
        truncated_bytes: how much was cut off behind the last whole records.
        quarantined: files that were moved or copied aside.
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
    def below(self) -> int:
        """The id of the first segment that is not sealed."""
        return self.next_segment_id if self.tail is None else self.tail.segment_id

    def behind(self, segments: Sequence[SealedSegment]) -> tuple[int, int]:
        """
        Return base offset and base record count of the next segment, behind the last of *segments*, too: recovery had
        no file of one that has a copy alone.
        """
        ends = [(one.next_base_offset, one.next_base_record_count) for one in segments[-1:]]
        return max([(self.next_base_offset, self.next_base_record_count), *ends])
