"""Stored requests that are not recorded as durable yet: after a crash only their bundles show that they were stored."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["UnrecordedRequests"]


class UnrecordedRequests:
    """The requests of one window, with the receipts of their bundles. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: deque[tuple[bytes, Any]] = deque()
        self._unwritten: list[int] = []

    def add(self, digest: bytes | None, receipt: Any) -> None:
        """Add a request; None as *digest* if the file has no row for it, so that it can never be recorded."""
        if receipt is None:
            return  # nothing was stored
        with self._lock:
            if digest is None:
                self._unwritten.append(receipt.sequence)
            else:
                self._stored.append((digest, receipt))

    def take(self, is_due: Callable[[Any], bool]) -> list[tuple[bytes, Any]]:
        """Remove and return the requests whose receipt *is_due*. The caller records them, or puts them back."""
        with self._lock:
            due: list[tuple[bytes, Any]] = []
            left: list[tuple[bytes, Any]] = []
            for request in self._stored:
                (due if is_due(request[1]) else left).append(request)
            self._stored.clear()
            self._stored.extend(left)
            return due

    def put_back(self, requests: list[tuple[bytes, Any]]) -> None:
        """Add *requests* that could not be recorded."""
        with self._lock:
            self._stored.extendleft(reversed(requests))

    def guard(self, record: Callable[[int], bool]) -> Callable[[int, int], bool]:
        """
        Return a guard for `StoreInternals.guard_removal`.

        It calls *record*, a bound method whose object is not kept alive. Later, bundles of requests that were not
        recorded by then are kept.
        """
        window = weakref.WeakMethod(record)

        def may_remove(first: int, last: int) -> bool:
            found = window()
            if found is not None and not found(last):
                return False
            with self._lock:
                self._unwritten = [sequence for sequence in self._unwritten if sequence >= first]
                kept = [*self._unwritten, *(receipt.sequence for _, receipt in self._stored)]
            return not any(first <= sequence <= last for sequence in kept)

        return may_remove
