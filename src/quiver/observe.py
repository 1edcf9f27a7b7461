"""
Counters, latencies and events. The default counts in memory and logs through the standard library.

Names are those of the specification (`quiver.wal.rotate`, `quiver.ingest.throttle_total`, …); `quiver.metrics` lists
the metrics.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

__all__ = ["AttributedObserver", "InMemoryObserver", "Observer", "Value", "log_event"]

_log = logging.getLogger("quiver")

Value = str | int | float | bool | None
"""The type of an attribute."""


class Observer(Protocol):
    """Receives counts, latencies and events. Passed to each log when it is opened; must not raise."""

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        """Add *amount* to the counter *name*."""

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Add *value*, in seconds, to the distribution *name*. The default discards it."""

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Report one structured event."""


class InMemoryObserver:
    """Counts in memory (`counts`), events to the `quiver` logger."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, Value], ...]]] = Counter()
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        """Add *amount* to the counter *name*."""
        with self._lock:
            self.counts[name, tuple(sorted(attributes.items()))] += amount

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Discard the value: distributions need a meter (`quiver.metrics`)."""

    def total(self, name: str) -> int:
        """Return the sum of the counter *name* over all attributes."""
        with self._lock:
            return sum(amount for (counted, _), amount in self.counts.items() if counted == name)

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Log *name* with its attributes as ``key=value``."""
        log_event(name, level, attributes)


class AttributedObserver:
    """Passes everything to *observer*, with more *attributes*."""

    def __init__(self, observer: Observer, **attributes: Value) -> None:
        self._observer = observer
        self._attributes = attributes

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        """Add *amount* to the counter *name*."""
        self._observer.count(name, amount, **{**self._attributes, **attributes})

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Add *value*, in seconds, to the distribution *name*."""
        self._observer.record(name, value, **{**self._attributes, **attributes})

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Report one structured event."""
        self._observer.event(name, level=level, **{**self._attributes, **attributes})


def log_event(name: str, level: int, attributes: Mapping[str, Value]) -> None:
    """Log *name* to the `quiver` logger, with its attributes as ``key=value``."""
    if _log.isEnabledFor(level):
        _log.log(level, "%s %s", name, " ".join(f"{key}={value}" for key, value in attributes.items()))
