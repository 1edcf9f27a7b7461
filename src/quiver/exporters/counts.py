"""Metrics and events of an exporter. Every loss is counted; what has the same reason is logged once a minute."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from quiver.clock import Clock
from quiver.delivery.exporter_stats import ExporterStats
from quiver.delivery.signal_filter import count_skipped
from quiver.exporters.reply import Reply
from quiver.observe import Observer
from quiver.otap.request import measure_request
from quiver.primitives.scan import Damage

__all__ = ["ExporterCounts"]

LOG_INTERVAL_S = 60.0
"""Minimum time between two events: a receiver that refuses one request refuses many."""


class ExporterCounts:
    """
    The counts of one exporter. Thread-safe.

    Args:
        stats: receives the counts that all exporters have, and the last failure.
        clock: limits how often events are logged.
        observer: receives counts and events.
    """

    def __init__(self, stats: ExporterStats, clock: Clock, observer: Observer) -> None:
        self._stats = stats
        self._exporter = stats.exporter
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._logged_at_s: dict[tuple[str, str], float] = {}
        self._last_problem = ""

    def requests(self, outcome: str) -> int:
        """Return how many requests ended with *outcome*."""
        return self._requests[outcome]

    def answered(self, signal: str, request: bytes, reply: Reply, *, parts: Sequence[bytes] = ()) -> None:
        """
        Count a request by its reply.

        *parts* are the requests that it combines. Their rows are counted faster than those of the complete request.
        """
        if reply.outcome == "retry":
            self._count("retried", signal, reply.reason)
            if reply.reason != "CLOSED":  # the sender was closed, which does not count as an attempt
                self._stats.failed("denied" if reply.is_denied else "unavailable", _joined(reply.reason, reply.message))
                # With little traffic, it takes long until so many bundles fail that the destination counts as down.
                self._log("quiver.exporter.retry", reply.reason, signal=signal, message=reply.message)
        elif reply.outcome == "confirmed":
            self._confirmed(signal, request, reply, parts or (request,))
        elif reply.is_too_large:
            self._count("divided", signal, reply.reason)
            self._log("quiver.exporter.divided", reply.reason, signal=signal, message=reply.message)
        else:
            self._requests["denied"] += reply.is_denied
            self._refused(signal, reply.reason, reply.message)
            self._stats.failed("denied" if reply.is_denied else "refused", _joined(reply.reason, reply.message))

    def unsendable(self, reason: str, message: str) -> None:
        """Count a bundle that is damaged or cannot be converted to a request."""
        self._refused("", reason, message)
        self._stats.failed("data", _joined(reason, message))

    def skipped(self, signals: Sequence[str]) -> None:
        """Count the signals of a bundle that this exporter does not send."""
        count_skipped(self._observer, self._exporter, signals)

    def unread(self, reason: str, message: str) -> None:
        """Count an attempt that failed locally because the bundle could not be read."""
        self._stats.failed("storage", _joined(reason, message))

    def _refused(self, signal: str, reason: str, message: str) -> None:
        self._count("refused", signal, reason)
        self._log("quiver.exporter.refused", reason, signal=signal, message=message)

    def _confirmed(self, signal: str, request: bytes, reply: Reply, parts: Sequence[bytes]) -> None:
        self._count("confirmed", signal, reply.reason)
        measured = (measure_request(part, signal) for part in parts)
        rows = sum(size.rows for size in measured if not isinstance(size, Damage))
        rows = max(rows - reply.rejected_items, 0)
        exporter = self._exporter
        self._stats.delivered(rows, len(request))
        if reply.rejected_items:
            self._observer.count(
                "quiver.exporter.rejected_items_total", reply.rejected_items, exporter=exporter, signal=signal
            )
            self._log("quiver.exporter.partial", reply.reason, signal=signal, message=reply.message)
        for what, amount in reply.left_out.items():
            self._observer.count("quiver.exporter.left_out_total", amount, exporter=exporter, signal=signal, what=what)
            self._log("quiver.exporter.left_out", what, signal=signal, message=f"{amount} of one request")

    def _count(self, outcome: str, signal: str, reason: str) -> None:
        with self._lock:
            self._requests[outcome] += 1
        self._observer.count(
            "quiver.exporter.requests_total", exporter=self._exporter, signal=signal, outcome=outcome, reason=reason
        )

    def local_problem(self, problem: str) -> None:
        """Log a local problem, unless it is the same as the last one."""
        if problem != self._last_problem:
            self._last_problem = problem
            self.event("quiver.exporter.trouble", level=logging.ERROR, problem=problem)

    def _log(self, name: str, reason: str, *, signal: str, message: str) -> None:
        with self._lock:
            now_s = self._clock.monotonic()
            logged_at_s = self._logged_at_s.get((name, reason))
            if logged_at_s is not None and now_s - logged_at_s < LOG_INTERVAL_S:
                return
            self._logged_at_s[name, reason] = now_s
        self.event(name, reason=reason, signal=signal, message=message)

    def event(self, name: str, *, level: int = logging.WARNING, **attributes: str | int) -> None:
        """Log an event of this exporter."""
        self._observer.event(name, level=level, exporter=self._exporter, **attributes)


def _joined(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason
