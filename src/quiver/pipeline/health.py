"""Whether an ingest process is ready for requests, and what is missing. Answered over HTTP and by `grpc.health.v1`."""

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
    """What a store is asked; `quiver.Store` has it."""

    def problems(self) -> tuple[str, ...]:
        """Return why the store accepts nothing now, one sentence each."""


class Health:
    """
    Ready when the ports are bound, and every store's log is healthy and has space. Thread-safe.

    Attributes:
        phase: what the process does with its ports.
    """

    def __init__(self) -> None:
        self.phase: Phase = "starting"
        self._stores: dict[str, HealthyStore] = {}
        self._lock = threading.Lock()

    def watch(self, name: str, store: HealthyStore) -> None:
        """Ask *store*, which is buffer *name* of the pipeline, from now on."""
        with self._lock:
            self._stores[name] = store

    def checks(self) -> dict[str, tuple[str, ...]]:
        """Return each check by name, with what is not ready; nothing when it is."""
        with self._lock:
            stores = dict(self._stores)
        ports = _PORTS.get(self.phase)
        found: dict[str, tuple[str, ...]] = {"ports": () if ports is None else (ports,)}
        found |= {f"buffer {name}": store.problems() for name, store in stores.items()}
        return found

    def problems(self) -> Sequence[str]:
        """Return what is not ready, one sentence each; empty when all is."""
        return [f"{name}: {reason}" for name, reasons in self.checks().items() for reason in reasons]

    def store_problems(self) -> Sequence[str]:
        """Return what is wrong with the stores. A port that answers is open: its own health service asks for this."""
        if self.phase == "stopping":
            return [_PORTS["stopping"]]
        with self._lock:
            stores = list(self._stores.values())
        return [reason for store in stores for reason in store.problems()]
