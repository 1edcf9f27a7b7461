"""What an exporter counts and reports. Every loss is counted; one for the same reason is reported once a minute."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from quiver.clock import Clock
from quiver.delivery.exporter_stats import ExporterStats
from quiver.exporters.reply import Reply
from quiver.observe import Observer
from quiver.otap.request import measure_request
from quiver.primitives.scan import Damage

__all__ = ["ExporterCounts"]

REPORTED_AGAIN_S = 60.0
"""A receiver that refuses one request refuses many, and the program may export its own log."""


class ExporterCounts:
    """
    The counts of one exporter. Thread-safe.

    Args:
        stats: takes what every exporter counts, and its last failure.
        clock: spaces the reports.
        observer: takes counts and events.
    """

    def __init__(self, stats: ExporterStats, clock: Clock, observer: Observer) -> None:
        self._stats = stats
        self._exporter = stats.exporter
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._reported_at_s: dict[str, float] = {}
        self._trouble = ""

    def requests(self, outcome: str) -> int:
        """Return how many requests ended with *outcome*."""
        return self._requests[outcome]

    def answered(self, signal: str, request: bytes, reply: Reply) -> None:
        """Count a request by its reply."""
        if reply.outcome == "retry":
            self._count("retried", signal, reply.reason)
            if reply.reason != "CLOSED":  # it was broken off here, which is no attempt
                self._stats.failed("denied" if reply.is_denied else "unavailable", _words(reply.reason, reply.message))
        elif reply.outcome == "confirmed":
            self._confirmed(signal, request, reply)
        elif reply.is_too_large:
            self._count("divided", signal, reply.reason)
            self._report("quiver.exporter.divided", reply.reason, signal=signal, message=reply.message)
        else:
            self._requests["denied"] += reply.is_denied
            self._refused(signal, reply.reason, reply.message)
            self._stats.failed("denied" if reply.is_denied else "refused", _words(reply.reason, reply.message))

    def unsendable(self, reason: str, message: str) -> None:
        """Count a bundle that is damaged, or no request that could be sent."""
        self._refused("", reason, message)
        self._stats.failed("data", _words(reason, message))

    def unread(self, reason: str, message: str) -> None:
        """Count an attempt that failed on this side: the bundle could not be read."""
        self._stats.failed("storage", _words(reason, message))

    def _refused(self, signal: str, reason: str, message: str) -> None:
        self._count("refused", signal, reason)
        self._report("quiver.exporter.refused", reason, signal=signal, message=message)

    def _confirmed(self, signal: str, request: bytes, reply: Reply) -> None:
        self._count("confirmed", signal, reply.reason)
        measured = measure_request(request, signal)
        rows = 0 if isinstance(measured, Damage) else max(measured.rows - reply.rejected_items, 0)
        exporter = self._exporter
        self._stats.delivered(rows, len(request))
        if reply.rejected_items:
            self._observer.count(
                "quiver.exporter.rejected_items_total", reply.rejected_items, exporter=exporter, signal=signal
            )
            self._report("quiver.exporter.partial", reply.reason, signal=signal, message=reply.message)
        for what, amount in reply.left_out.items():
            self._observer.count("quiver.exporter.left_out_total", amount, exporter=exporter, signal=signal, what=what)
            self._report("quiver.exporter.left_out", what, signal=signal, message=f"{amount} of one request")

    def _count(self, outcome: str, signal: str, reason: str) -> None:
        with self._lock:
            self._requests[outcome] += 1
        self._observer.count(
            "quiver.exporter.requests_total", exporter=self._exporter, signal=signal, outcome=outcome, reason=reason
        )

    def trouble(self, problem: str) -> None:
        """Report a problem on this side, unless it is the last one again."""
        if problem != self._trouble:
            self._trouble = problem
            self.event("quiver.exporter.trouble", level=logging.ERROR, problem=problem)

    def _report(self, name: str, reason: str, *, signal: str, message: str) -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            reported_at_s = self._reported_at_s.get(reason)
            if reported_at_s is not None and now_s - reported_at_s < REPORTED_AGAIN_S:
                return
            self._reported_at_s[reason] = now_s
        self.event(name, reason=reason, signal=signal, message=message)

    def event(self, name: str, *, level: int = logging.WARNING, **attributes: str | int) -> None:
        """Report an event of this exporter."""
        self._observer.event(name, level=level, exporter=self._exporter, **attributes)


def _words(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason
