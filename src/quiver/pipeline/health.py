"""Whether an ingest process is ready for requests, and why not. Served over HTTP and by `grpc.health.v1`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, Protocol

__all__ = ["HANG_S", "Health", "HealthyStore"]

Phase = Literal["starting", "listening", "stopping"]

_PORTS = {
    "starting": "the ports are not open yet",
    "stopping": "the process is stopping and takes no more requests",
}


HANG_S = 60.0
"""The main thread of an ingest process looks at its stores every second, except while it reloads."""


class HealthyStore(Protocol):
    """The part of `quiver.Store` that health checks use."""

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why the store accepts no data, one sentence each."""


class Health:
    """
    The readiness of the process: its ports are bound, and the log of every store is healthy and has space. Thread-safe.

    Attributes:
        phase: the state of the ports.
    """

    def __init__(self) -> None:
        self.phase: Phase = "starting"
        self._alive_at_s = 0.0
        self._stores: dict[str, HealthyStore] = {}
        self._lock = threading.Lock()

    def alive(self, now_s: float) -> None:
        """Record that the main thread of the process made progress at *now_s*, in monotonic seconds."""
        self._alive_at_s = now_s

    def hang(self, now_s: float) -> str | None:
        """
        Return why the process should be restarted; None if it should not.

        A process that opens its stores may take long, and one that stops is about to end: only a process that listens
        can hang. A full buffer is no reason, because a restart would not free space.
        """
        if self.phase == "listening" and now_s - self._alive_at_s > HANG_S:
            return f"the main thread has made no progress for {now_s - self._alive_at_s:.0f} s"
        return None

    def watch(self, name: str, store: HealthyStore) -> None:
        """Include *store*, which is buffer *name* of the pipeline, in the checks."""
        with self._lock:
            self._stores[name] = store

    def checks(self) -> dict[str, tuple[str, ...]]:
        """Return the problems of each check by name; no problems means ready."""
        with self._lock:
            stores = dict(self._stores)
        ports = _PORTS.get(self.phase)
        found: dict[str, tuple[str, ...]] = {"ports": () if ports is None else (ports,)}
        found |= {f"buffer {name}": store.problems() for name, store in stores.items()}
        return found

    def problems(self) -> Sequence[str]:
        """Return all problems, one sentence each; empty when ready."""
        return [f"{name}: {reason}" for name, reasons in self.checks().items() for reason in reasons]

    def store_problems(self) -> Sequence[str]:
        """Return the problems of the stores only: the health service of a port answers, so that port is open."""
        if self.phase == "stopping":
            return [_PORTS["stopping"]]
        with self._lock:
            stores = list(self._stores.values())
        return [reason for store in stores for reason in store.problems()]
