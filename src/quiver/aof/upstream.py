"""Import of an upstream operation log: each entry exactly once, even after a crash."""

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
    Append the upstream entries that *log* does not have yet; return the number of the last imported entry.

    *entries* is called with the number to begin at and yields numbers and payloads in order. Numbers begin at 1, and
    entries before the requested one are skipped. The number of an entry becomes the `ext_id` of its record and the
    watermark of the log. So the import resumes after `coordinator_watermark` and after the last record: a crash may
    have preserved more records than the watermark covers. All records of the log must come from upstream. They are
    written but not yet durable.

    Raises:
        UsageError: a number does not grow, or is not an integer of 64 bits.
        WouldBlockError: an append blocked for *timeout* seconds (None: no limit); call this again.
        InvalidRecordError, StoreClosedError, StoreFailedError: as `Aof.append_record`; earlier entries are in the log.
    """
    taken = begin = max(log.coordinator_watermark, log.last_ext_id())
    log.set_coordinator_watermark(taken)
    before = 0
    for number, payload in entries(begin + 1):
        if not isinstance(number, int) or not before < number < 1 << 64:
            raise UsageError(f"entry {number!r} of the upstream log follows {before}: numbers must grow, from 1 on")
        before = number
        if number <= begin:
            continue
        log.append_record_with_timeout(payload, timeout, ext_id=number)
        log.set_coordinator_watermark(number)
        taken = number
    return taken
