"""Taking over an upstream operation log: each of its entries once, also after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quiver.aof.log import Aof
from quiver.errors import UsageError
from quiver.lazy_names import renamed_keyword
from quiver.primitives.disk.file_system import Buffer

__all__ = ["replay_upstream"]


@renamed_keyword("timeout_s", "timeout")
def replay_upstream(
    log: Aof, entries: Callable[[int], Iterable[tuple[int, Buffer]]], *, timeout: float | None = None
) -> int:
    """
    Append what the upstream log has behind what *log* has of it; return the number of the last entry that is here.

    *entries* is called with the number to begin at and yields numbers and payloads in order; numbers begin at 1, and
    those before it are passed over. An entry's number becomes the `ext_id` of its record and the watermark of the log,
    so where to begin is found again: behind `coordinator_watermark`, and behind the last record, of which a crash may
    have kept more. All records of the log come from upstream. They are written, not yet durable.

    Raises:
        UsageError: a number that does not grow, or is none of 64 bits.
        WouldBlockError: nothing was taken for *timeout* (None: wait as long as it takes); call it again.
        InvalidRecordError, StoreClosedError, StoreFailedError: as `Aof.append_record`; what came before is in the log.
    """
    taken = begin = max(log.coordinator_watermark, log.last_ext_id())
    log.set_coordinator_watermark(taken)
    before = 0
    for number, payload in entries(begin + 1):
        if not isinstance(number, int) or not before < number < 1 << 64:
            raise UsageError(
                f"entry {number!r} of the upstream log came behind {before}: their numbers grow, from 1 on"
            )
        before = number
        if number <= begin:
            continue
        log.append_record_with_timeout(payload, timeout, ext_id=number)
        log.set_coordinator_watermark(number)
        taken = number
    return taken
