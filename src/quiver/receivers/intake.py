"""
What every OTLP receiver does with a request, whatever brought it: check, recognise, store, answer.

The request is stored as it came, one row of bytes in its signal's slot. It is confirmed when the store has made
it as safe as `ack` says, and only then.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS, Bundle
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import AtCapacity, BundleInvalid, QuiverError
from quiver.observe import InMemoryObserver, Observer
from quiver.otap.request import parse_request
from quiver.primitives.budget import ByteBudget
from quiver.primitives.scan import Damage
from quiver.receivers.dedupe import DedupeWindow, request_digest
from quiver.receivers.inflate import inflate
from quiver.receivers.settings import OtlpSettings

__all__ = ["IntakeStore", "OtlpIntake", "Outcome", "Verdict"]

Outcome = Literal["stored", "duplicate", "empty", "invalid", "too_large", "full", "unavailable"]

_RETRY_S_MAX = 30.0
_UNAVAILABLE_RETRY_S = 5.0
_OFFSETS = struct.Struct("=ii")


class IntakeStore(Protocol):
    """
    What a receiver needs of a store; `quiver.Store` has it.
    """

    def ingest(self, bundle: Bundle, *, durable: bool = False, timeout: float | None = None) -> Any:
        """
        Keep *bundle*.
        """

    def sync(self) -> None:
        """
        Make everything ingested so far durable.
        """

    def recent_wal_entries(self) -> Iterator[Any]:
        """
        Yield what the write-ahead log still holds, oldest first.
        """


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The answer to a request.

    Attributes:
        outcome: `stored`, `duplicate` (of a stored one) and `empty` are confirmations; `invalid` and `too_large`
            say never to send it again; `full` and `unavailable` say to send it again later.
        message: for people; empty when confirmed.
        retry_after_s: when to send it again.
    """

    outcome: Outcome
    message: str = ""
    retry_after_s: float | None = None

    @property
    def confirmed(self) -> bool:
        """
        Whether the request is safe here.
        """
        return self.outcome in {"stored", "duplicate", "empty"}


class OtlpIntake:
    """
    Takes export requests for one store. Thread-safe; several receivers may share one.

    Args:
        store: where requests go.
        settings: sizes, ack and window.
        clock: measures the window and how long the store has been full.
        observer: counts requests by signal and outcome.

    Raises:
        StoreFailed: the store could not be synced after the window was rebuilt.
    """

    def __init__(
        self,
        store: IntakeStore,
        settings: OtlpSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._observer = InMemoryObserver() if observer is None else observer
        self._budget = ByteBudget("OTLP requests being handled", settings.in_flight_bytes_max, clock=clock)
        # Inflated bytes and parsed objects may be many times what came in: one request at a time may grow so.
        self._opening = threading.Lock()
        self._full_since: float | None = None
        self._window: DedupeWindow | None = None
        if settings.dedupe_window_s > 0:
            self._window = DedupeWindow(settings.dedupe_window_s, entries_max=settings.dedupe_entries_max, clock=clock)
            unread = self._window.rebuild(store.recent_wal_entries())
            if unread:
                self._observer.count("quiver.receiver.dedupe_unread_total", unread)
            if settings.ack == "synced":
                # What the last process logged may still be in the page cache only. Confirming it again
                # without a sync would promise more than was kept.
                store.sync()

    def accept(self, signal: str, data: bytes, *, gzipped: bool = False) -> Verdict:
        """
        Check *data* and store it as one bundle; never raises for what the data or the store is like.

        Args:
            signal: logs, traces or metrics.
            data: an Export…ServiceRequest, as bytes.
            gzipped: *data* is compressed.
        """
        verdict = self._accept(signal, data, gzipped=gzipped)
        self._observer.count("quiver.receiver.requests_total", signal=signal, outcome=verdict.outcome)
        return verdict

    def _accept(self, signal: str, data: bytes, *, gzipped: bool) -> Verdict:
        if len(data) > self._settings.max_request_bytes:
            return self.too_large(len(data))
        opened = self._opened(data, gzipped=gzipped)
        if isinstance(opened, Verdict):
            return opened
        try:
            return self._once(signal, opened)
        finally:
            self._budget.release(len(opened))

    def _opened(self, data: bytes, *, gzipped: bool) -> bytes | Verdict:
        """
        Return the request's own bytes, reserved in the budget, or why there are none.
        """
        with self._opening:
            if gzipped:
                size_max = self._settings.max_decompressed_bytes
                inflated = inflate(data, size_max=size_max)
                if inflated is None:
                    return Verdict("too_large", f"the request is over {size_max} bytes once decompressed")
                if isinstance(inflated, Damage):
                    return Verdict("invalid", inflated.reason)
                data = inflated
            try:
                self._budget.reserve(len(data))
            except AtCapacity as full:
                return Verdict("full", str(full), full.retry_after_s)
        return data

    def too_large(self, size: int | None) -> Verdict:
        """
        Return the answer to a request of *size* bytes (None: nobody counted) that is over the limit.
        """
        took = "more" if size is None else f"{size} bytes"
        return Verdict("too_large", f"the request takes {took}; the most is {self._settings.max_request_bytes}")

    def _once(self, signal: str, data: bytes) -> Verdict:
        if not data:
            return Verdict("empty")
        window = self._window
        if window is None:
            return self._keep(signal, data)
        digest = request_digest(OTLP_SLOTS[signal], data)
        if not window.begin(digest):
            return Verdict("duplicate")
        stored = False
        try:
            verdict = self._keep(signal, data)
            stored = verdict.confirmed
        finally:
            window.finish(digest, stored=stored)
        return verdict

    def _keep(self, signal: str, data: bytes) -> Verdict:
        with self._opening:
            read = parse_request(data, signal)
            damage = read if isinstance(read, Damage) else None
            del read
        if damage is not None:
            return Verdict("invalid", damage.reason)
        try:
            self._store.ingest(_bundle(OTLP_SLOTS[signal], data), durable=self._settings.ack == "synced")
        except AtCapacity as full:
            return Verdict("full", str(full), self._retry_after(full.retry_after_s))
        except BundleInvalid as invalid:
            return Verdict("invalid", str(invalid))
        except (QuiverError, OSError) as error:
            # Failed or closed: nothing of it is known to be kept, so the client must keep it.
            return Verdict("unavailable", str(error), _UNAVAILABLE_RETRY_S)
        self._full_since = None
        return Verdict("stored")

    def _retry_after(self, hint_s: float) -> float:
        """
        Return a delay that grows while the store stays full.

        Exporters give up after a handful of attempts, however soon: a constant second would spend them in no time.
        """
        now = self._clock.monotonic()
        since = self._full_since
        if since is None:
            self._full_since = since = now
        return min(max(hint_s, now - since), max(hint_s, _RETRY_S_MAX))


def _bundle(slot: int, data: bytes) -> Bundle:
    """
    Wrap the request as the slot's one row, without copying it.
    """
    buffers = [None, pa.py_buffer(_OFFSETS.pack(0, len(data))), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), 1, buffers)
    return Bundle({slot: pa.RecordBatch.from_arrays([column], schema=OTLP_SCHEMA)})
