"""
Trimming the head of a log: cold segments that nobody needs any more leave, from the oldest on.

Somebody has to know that: a program that says up to where (`trim_before`), or a hook that is asked about each cold
segment. Ids are places in segments, so nothing inside a segment is ever moved; and the first segment that is still
needed keeps all behind it, so what is left has no holes.
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
    """A sealed segment, as its header and footer tell of it; times are nanoseconds since 1970."""

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
"""Says whether nobody needs the segment any more. Called from a thread of the manager, again and again; soon done."""


class HeadTrim:
    """
    Which segments of one log nobody needs any more.

    Args:
        log: its name, for the hook.
        hook: asked about the oldest segment, and about each behind one that leaves; None: nobody is asked.
    """

    def __init__(self, log: str, hook: CompactionHook | None, observer: Observer) -> None:
        self._log = log
        self._hook = hook
        self._observer = observer
        self._before = 0
        self._failed = False

    @property
    def asks(self) -> bool:
        """Whether there is a hook, whose answers change by themselves."""
        return self._hook is not None

    def before(self, record_id: int) -> None:
        """Take note that no record before that one is needed. It never goes back."""
        self._before = max(self._before, record_id)

    def leaving(self, segments: Sequence[SealedSegment]) -> list[int]:
        """Return the ids of those of *segments*, oldest first, that nobody needs. The newest stays in any case."""
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
        except Exception as error:  # noqa: BLE001 - somebody else's code, in a thread that works for every log
            if not self._failed:
                self._failed = True
                self._observer.event(
                    "aof.compaction.hook_failed", level=logging.ERROR, log=self._log, problem=repr(error)
                )
            return False
