"""
Segments that a reader rejected: its tasks write a record for each, and continue with the next segment.

The record is durable before the batch is committed. The subscriber reads the records of a batch when it acknowledges
it.
"""

from __future__ import annotations

import contextlib

from quiver.counted import counted
from quiver.errors import CorruptionError, ObjectNotFoundError, QuiverError
from quiver.objects.port import ObjectTier
from quiver.primitives.scan import Frame
from quiver.store.format.fleet.names import (
    InboxObject,
    key_of,
    parse_rejected_key,
    quarantine_key,
    rejected_folder,
    rejected_key,
)
from quiver.store.format.fleet.rejected import (
    REJECTED_BYTES_MAX,
    RejectedCause,
    RejectedSegment,
    decode_rejected,
    encode_rejected,
)
from quiver.store.reading.fleet.inbox import list_node
from quiver.store.reading.fleet.segments import read_gone

__all__ = ["list_rejected", "reject"]


def reject(
    tier: ObjectTier,
    subscriber: str,
    generation: int,
    identity: str,
    found: InboxObject,
    cause: RejectedCause,
    reason: str,
) -> RejectedSegment:
    """
    Record that *subscriber* could not read a segment, durably on return. A damaged object is copied to quarantine.

    A missing object is looked for among the segments that its node recorded as gone: the record has the reason then.

    Raises:
        ObjectsUnavailableError: the object store does not answer; nothing was recorded.
        AccessDeniedError: the credentials do not allow it.
    """
    checksum = found.crc32 or 0
    if cause == "missing":
        reason = f"{reason}; {_why_gone(tier, identity, found.last)}"
    elif cause in {"damaged", "schema"}:
        # The evidence stays when the node removes its object. A copy that fails must not hide the problem itself.
        with contextlib.suppress(ObjectNotFoundError):
            tier.copy(key_of(identity, found), quarantine_key(identity, found.last, checksum))
    rejected = RejectedSegment(identity, found.last, checksum, found.size_bytes, cause, reason)
    tier.put(rejected_key(subscriber, generation, identity, found.last), encode_rejected(rejected))
    return rejected


def _why_gone(tier: ObjectTier, identity: str, number: int) -> str:
    for one in list_node(tier, identity):
        if one.is_gone and one.first <= number <= one.last:
            try:
                gone = read_gone(tier, identity, one)
            except CorruptionError:
                continue
            bundles = sum(count for segment, count in gone.segments if segment == number)
            return f"its node recorded that it is gone ({gone.reason}, {counted(bundles, 'bundle')})"
    return "its node has not recorded that it is gone"


def list_rejected(
    tier: ObjectTier, subscriber: str, generation: int | None = None
) -> list[tuple[int, RejectedSegment]]:
    """
    Return the segments that *subscriber* rejected, in one batch or in all, each with its generation.

    A damaged record is returned, too, with what its key shows.

    Raises:
        UsageError: *subscriber* is not a valid id.
        ObjectsUnavailableError: the object store does not answer.
    """
    found: list[tuple[int, RejectedSegment]] = []
    for info in tier.list_below(rejected_folder(subscriber, generation)):
        parsed = parse_rejected_key(info.key)
        if parsed is None:
            continue
        number, identity, segment = parsed
        problem = "its record cannot be read"
        with contextlib.suppress(QuiverError):
            answer = decode_rejected(memoryview(tier.get(info.key, size_max=REJECTED_BYTES_MAX)))
            if isinstance(answer, Frame) and (answer.value.identity, answer.value.segment) == (identity, segment):
                found.append((number, answer.value))
                continue
        found.append((number, RejectedSegment(identity, segment, 0, 0, "damaged", problem)))
    return found
