"""Whether an ingest process is ready for requests, and why not. Served over HTTP and by `grpc.health.v1`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, Protocol

__all__ = ["Health", "HealthyStore"]

Phase = Literal["starting", "listening", "stopping"]

_PORTS = {
    "starting": "the ports are not open yet",
    "stopping": "the process is stopping and takes no more requests",
}


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
        self._stores: dict[str, HealthyStore] = {}
        self._lock = threading.Lock()

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
