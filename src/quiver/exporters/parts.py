"""
Sending of a request that may be too large for its receiver, in parts that are split between records.

Settled records are tracked by number, so another attempt sends only the others, even if the size limit has changed. A
part has the same batch id whenever the same records are sent again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quiver.delivery.policy import Permanent
from quiver.exporters.ports import RequestSender
from quiver.exporters.reply import Reply
from quiver.exporters.size_limit import SizeLimit
from quiver.otap.record_split import SplitRequest, split_request
from quiver.primitives.scan import Damage

__all__ = ["Answered", "PartSender", "RequestProgress", "unconfirmed"]

ALL_RECORDS = sys.maxsize
"""The end of a range of records in a request whose records were not counted."""

Answered = Callable[[str, bytes, Reply], None]
"""Called with signal, bytes and reply of each request or part that was sent."""

Range = tuple[int, int]


@dataclass(slots=True)
class RequestProgress:
    """
    The settled records of a request, as ranges of their numbers.

    Attributes:
        confirmed: records that the receiver has.
        refused: records that the receiver refused permanently.
        why: the last reason for a refusal.
    """

    confirmed: list[Range] = field(default_factory=list)
    refused: list[Range] = field(default_factory=list)
    why: Permanent | None = None

    @property
    def is_untouched(self) -> bool:
        """Whether no record of the request is settled."""
        return not (self.confirmed or self.refused)

    @property
    def is_complete(self) -> bool:
        """Whether the request was settled without splitting."""
        return (0, ALL_RECORDS) in (*self.confirmed, *self.refused)

    @property
    def is_confirmed(self) -> bool:
        """Whether the request was confirmed without splitting."""
        return (0, ALL_RECORDS) in self.confirmed

    def open_ranges(self, records: int) -> list[Range]:
        """Return the ranges that are not settled of a request with *records* records, ascending."""
        return _gaps((*self.confirmed, *self.refused), records)

    def settle(self, start: int, stop: int, why: Permanent | None = None) -> None:
        """Record that the receiver confirmed a range, or with *why* that it refused it."""
        if why is None:
            self.confirmed.append((start, stop))
        else:
            self.refused.append((start, stop))
            self.why = why


class PartSender:
    """
    Sends requests in as many parts as the receiver's size limit requires. As thread-safe as the sender.

    Args:
        sender: sends each part.
        limit: the maximum size of a part; lowered when the receiver refuses a part as too large.
        answered: called for each part.
    """

    def __init__(self, sender: RequestSender, limit: SizeLimit, answered: Answered = lambda *_: None) -> None:
        self.limit = limit
        self._sender = sender
        self._answered = answered

    def send(self, signal: str, request: bytes, progress: RequestProgress, batch_id: str = "") -> Reply | None:
        """
        Send the records of *request* that are not settled, and record in *progress* those that are now.

        Returns:
            None if all records are settled, otherwise the reply to the part that must be sent again later.
        """
        if progress.is_complete:
            return None
        reply: Reply | None = None
        if progress.is_untouched and len(request) <= self.limit.bytes_max:
            reply = self._sender.send(signal, request, batch_id)
            if not reply.is_too_large:
                return self._settled(progress, (0, ALL_RECORDS), signal, request, reply)
        split = split_request(request, signal)
        if isinstance(split, Damage) or len(split) < 2:
            reply = reply or self._sender.send(signal, request, batch_id)
            return self._settled(progress, (0, ALL_RECORDS), signal, request, reply)
        if reply is not None:
            if not self.limit.refused(len(request), reply.limit_bytes):
                return self._settled(progress, (0, ALL_RECORDS), signal, request, reply)
            self._answered(signal, request, reply)
        return self._send_parts(signal, split, progress, batch_id)

    def _send_parts(self, signal: str, split: SplitRequest, progress: RequestProgress, batch_id: str) -> Reply | None:
        for start, stop in progress.open_ranges(len(split)):
            at = start
            while at < stop:
                bytes_max = self.limit.bytes_max
                part, end = split.part(at, stop, bytes_max)
                reply = self._sender.send(signal, part, f"{batch_id}/{at}-{end}" if batch_id else "")
                can_split = end - at > 1 and len(part) <= bytes_max
                if reply.is_too_large and can_split and self.limit.refused(len(part), reply.limit_bytes):
                    self._answered(signal, part, reply)
                    continue
                later = self._settled(progress, (at, end), signal, part, reply)
                if later is not None:
                    return later
                at = end
        return None

    def _settled(
        self, progress: RequestProgress, records: Range, signal: str, request: bytes, reply: Reply
    ) -> Reply | None:
        if reply.outcome == "retry":
            return reply
        if reply.outcome == "confirmed":
            self.limit.accepted(len(request))
            progress.settle(*records)
        else:
            if reply.is_too_large:
                self.limit.not_the_reason()
                message = f"{len(request)} bytes that cannot be split: {reply.message}"
                reply = Reply("refused", reply.reason, message)
            progress.settle(*records, Permanent(reply.reason, reply.message, is_data_refused=not reply.is_denied))
        self._answered(signal, request, reply)
        return None


def unconfirmed(signal: str, request: bytes, progress: RequestProgress) -> bytes:
    """Return *request* with only the records that the receiver did not confirm; empty if it confirmed all."""
    if not progress.confirmed:
        return request
    if progress.is_complete:
        return b""
    split = split_request(request, signal)
    if isinstance(split, Damage):
        return request
    return split.select(_gaps(progress.confirmed, len(split)))


def _gaps(ranges: Iterable[Range], stop: int) -> list[Range]:
    found = []
    at = 0
    for first, end in (*sorted(ranges), (stop, stop)):
        if at < first:
            found.append((at, first))
        at = max(at, end)
    return found
