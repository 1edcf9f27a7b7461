"""
Requests stored a short while ago, so that one sent again is confirmed and not stored twice.

A client that did not hear the confirmation (the receiver died, the connection broke) sends the same bytes again.
The window knows requests by a digest of slot and bytes; it is rebuilt from the write-ahead log at start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from blake3 import blake3

from quiver.bundle import OTLP_FINGERPRINT, OTLP_SLOTS
from quiver.clock import SYSTEM_CLOCK, Clock

__all__ = ["DedupeWindow", "request_digest"]

_DIGEST_BYTES = 16
_RAW_SLOTS = frozenset(OTLP_SLOTS.values())


def request_digest(slot: int, data: bytes | memoryview) -> bytes:
    """
    Return what a request is known by: 128 bits of BLAKE3 over its slot and its bytes.
    """
    digest = blake3(bytes([slot]))
    digest.update(data)
    return digest.digest(length=_DIGEST_BYTES)


class DedupeWindow:
    """
    The digests of requests stored within the last *window_s* seconds. Thread-safe.

    Args:
        window_s: how long a stored request is remembered.
        entries_max: beyond this many the oldest are forgotten early.
        clock: measures the window.
    """

    def __init__(self, window_s: float, *, entries_max: int = 200_000, clock: Clock = SYSTEM_CLOCK) -> None:
        self.window_s = window_s
        self.entries_max = entries_max
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._stored: dict[bytes, float] = {}  # digest → when it was stored; oldest first
        self._in_flight: set[bytes] = set()

    def __len__(self) -> int:
        with self._changed:
            return len(self._stored)

    def begin(self, digest: bytes) -> bool:
        """
        Say whether the caller is to store this request; if so it must call `finish`, whatever happens.

        False: it is stored already. While another caller is storing the same request this one waits: it shares a
        success, and after a failure it tries itself.
        """
        with self._changed:
            while digest in self._in_flight:
                self._clock.wait(self._changed, None)
            stored_at = self._stored.get(digest)
            if stored_at is not None and self._clock.monotonic() - stored_at <= self.window_s:
                return False
            self._in_flight.add(digest)
            return True

    def finish(self, digest: bytes, *, stored: bool) -> None:
        """
        End what `begin` began; *stored* says whether the request may be confirmed from now on.
        """
        with self._changed:
            self._in_flight.discard(digest)
            if stored:
                self._remember(digest, self._clock.monotonic())
            self._changed.notify_all()

    def rebuild(self, entries: Iterable[Any]) -> int:
        """
        Remember the requests in the log's *entries*, oldest first, that are younger than the window.

        Returns how many requests could not be read; such a request is stored again when it is sent again.
        """
        now_ns = self._clock.now_ns()
        unread = 0
        for entry in entries:
            # The wall clock may have stepped back since: what lies in the future counts as just stored.
            age_s = max(0, now_ns - entry.ingested_at_ns) / 1e9
            if age_s > self.window_s:
                continue
            for slot in entry.slots:
                if slot.slot not in _RAW_SLOTS or slot.fingerprint != OTLP_FINGERPRINT:
                    continue
                digests = _digests(slot)
                if digests is None:
                    unread += 1
                    continue
                with self._changed:
                    for digest in digests:
                        self._remember(digest, self._clock.monotonic() - age_s)
        return unread

    def _remember(self, digest: bytes, stored_at: float) -> None:
        stored = self._stored
        stored.pop(digest, None)  # back to the end: the order is that of time
        stored[digest] = stored_at
        oldest_kept = self._clock.monotonic() - self.window_s
        while stored:
            oldest = next(iter(stored))
            if len(stored) <= self.entries_max and stored[oldest] >= oldest_kept:
                break
            del stored[oldest]


def _digests(slot: Any) -> list[bytes] | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(slot.payload)) as stream:
            column = stream.read_all().column("data")
    except (pa.ArrowException, KeyError):
        return None
    return [request_digest(slot.slot, value.as_buffer()) for value in column if value.is_valid]
