"""
Sending a request that may be too large for its receiver: in parts, divided between records.

What of a request is settled is remembered by records, so that another attempt sends only the others, whatever the limit
is by then. A part carries the same batch id whenever the same records are sent again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quiver.delivery.policy import Permanent
from quiver.exporters.ports import Sender
from quiver.exporters.reply import Reply
from quiver.exporters.size_limit import SizeLimit
from quiver.otap.record_split import SplitRequest, split_request
from quiver.primitives.scan import Damage

__all__ = ["Answered", "PartSender", "RequestProgress", "unconfirmed"]

ALL_RECORDS = sys.maxsize
"""The number after the last record of a request whose records nobody had to count."""

Answered = Callable[[str, bytes, Reply], None]
"""Called with the signal, the bytes and the reply of everything that was sent."""

Range = tuple[int, int]


@dataclass(slots=True)
class RequestProgress:
    """
    Which records of a request are settled, as ranges of their numbers.

    Attributes:
        confirmed: the receiver has these.
        refused: the receiver never takes these.
        why: why not; the last reason.
    """

    confirmed: list[Range] = field(default_factory=list)
    refused: list[Range] = field(default_factory=list)
    why: Permanent | None = None

    @property
    def is_untouched(self) -> bool:
        """Whether nothing of the request is settled."""
        return not (self.confirmed or self.refused)

    @property
    def is_whole(self) -> bool:
        """Whether the request was settled as a whole."""
        return (0, ALL_RECORDS) in (*self.confirmed, *self.refused)

    def open_ranges(self, records: int) -> list[Range]:
        """Return what is not settled of a request with so many *records*, ascending."""
        return _gaps((*self.confirmed, *self.refused), records)

    def settle(self, start: int, stop: int, why: Permanent | None = None) -> None:
        """Record that the receiver has a range, or with *why* that it never takes it."""
        if why is None:
            self.confirmed.append((start, stop))
        else:
            self.refused.append((start, stop))
            self.why = why


class PartSender:
    """
    Sends requests, each in as many parts as the receiver's limit asks for. Thread-safe, as the sender is.

    Args:
        sender: where to.
        limit: how large a part may be; lowered when the receiver refuses one for its size.
        answered: called for each part.
    """

    def __init__(self, sender: Sender, limit: SizeLimit, answered: Answered = lambda *_: None) -> None:
        self.limit = limit
        self._sender = sender
        self._answered = answered

    def send(self, signal: str, request: bytes, progress: RequestProgress, batch_id: str = "") -> Reply | None:
        """
        Send what is not settled of *request*, and record in *progress* what is settled by it.

        Returns:
            None when all of it is settled; the reply to the part that has to be sent again later.
        """
        if progress.is_whole:
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
                can_divide = end - at > 1 and len(part) <= bytes_max
                if reply.is_too_large and can_divide and self.limit.refused(len(part), reply.limit_bytes):
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
                message = f"{len(request)} bytes that cannot be divided: {reply.message}"
                reply = Reply("refused", reply.reason, message)
            progress.settle(*records, Permanent(reply.reason, reply.message, is_data_refused=not reply.is_denied))
        self._answered(signal, request, reply)
        return None


def unconfirmed(signal: str, request: bytes, progress: RequestProgress) -> bytes:
    """Return *request* with only the records that the receiver did not confirm; empty when it has them all."""
    if not progress.confirmed:
        return request
    if progress.is_whole:
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
