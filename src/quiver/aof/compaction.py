"""
Head trimming: cold segments that are no longer needed leave the log, the oldest first.

The program decides which those are: it calls `trim_before`, or passes a hook that is called for each cold segment. Ids
are places in segments, so records inside a segment never move. The first segment that is still needed keeps all later
ones, so the rest of the log has no holes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quiver.aof.format.record import join_record_id
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.reading.catalog import SealedSegment
from quiver.observe import Observer

__all__ = ["ColdSegment", "CompactionHook", "HeadTrim"]


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """A sealed segment, described by its header and footer; times are nanoseconds since 1970."""

    log: str
    segment_id: int
    first_record_id: int
    last_record_id: int
    record_count: int
    last_timestamp: int
    sealed_at: int
    ext_id: int
    size_bytes: int


CompactionHook = Callable[[ColdSegment], bool]
"""Returns whether the segment is no longer needed. A thread of the manager calls it repeatedly; it must be quick."""


class HeadTrim:
    """
    Finds the segments of one log that are no longer needed.

    Args:
        log: the name of the log, for the hook.
        hook: called for the oldest segment, and for each segment that follows one that leaves; None: no hook.
    """

    def __init__(self, log: str, hook: CompactionHook | None, observer: Observer) -> None:
        self._log = log
        self._hook = hook
        self._observer = observer
        self._before = 0
        self._failed = False

    @property
    def has_hook(self) -> bool:
        """Whether there is a hook, whose answers may change at any time."""
        return self._hook is not None

    def before(self, record_id: int) -> None:
        """Release the records before *record_id*. A lower id than before has no effect."""
        self._before = max(self._before, record_id)

    def leaving(self, segments: Sequence[SealedSegment]) -> list[int]:
        """Return the ids of the *segments*, oldest first, that are no longer needed. The newest always stays."""
        found = []
        for one in segments[:-1]:
            if one.footer.last_record_id >= self._before and not self._unneeded(one):
                break
            found.append(one.segment_id)
        return found

    def _unneeded(self, one: SealedSegment) -> bool:
        if self._hook is None:
            return False
        first = join_record_id(one.header.segment_index, HEADER_BYTES)
        footer = one.footer
        cold = ColdSegment(
            self._log, one.segment_id, first, footer.last_record_id, footer.record_count, footer.last_timestamp,
            footer.sealed_at, footer.ext_id, one.header.max_size,
        )  # fmt: skip
        try:
            return bool(self._hook(cold))
        except Exception as error:  # noqa: BLE001 - a program's code, in a thread that works for every log
            if not self._failed:
                self._failed = True
                self._observer.event(
                    "aof.compaction.hook_failed", level=logging.ERROR, log=self._log, problem=repr(error)
                )
            return False
