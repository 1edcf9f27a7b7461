"""
The handling of OTLP requests, independent of the transport: check, deduplicate, store, answer.

A request is stored unchanged, as one row of bytes in its signal's slot, or as OTAP tables. It is confirmed only after
the store has made it as safe as `ack` requires.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from quiver.bundle import OTAP, OTLP_SCHEMA, OTLP_SLOTS, Bundle
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import BundleTooLargeError, CapacityError, InvalidBundleError, QuiverError
from quiver.observe import InMemoryObserver, Observer
from quiver.otap.request import parse_request
from quiver.otap.tables.digest import digest_of_tables
from quiver.otap.tables.from_otlp import tables_of_request
from quiver.primitives.budget import ByteBudget
from quiver.primitives.scan import Damage
from quiver.receivers.dedupe import DedupeWindow, request_digest
from quiver.receivers.header_capture import add_headers
from quiver.receivers.inflate import inflate
from quiver.receivers.otlp.json_requests import request_from_json
from quiver.receivers.request_window import RequestWindow
from quiver.receivers.settings import OtlpSettings
from quiver.receivers.zstd_frames import inflate_zstd

__all__ = ["CONFIRMED", "Encoding", "IntakeOutcome", "IntakeResult", "IntakeStore", "OtlpIntake", "Window"]

Encoding = Literal["identity", "gzip", "zstd"]
"""The compression of a request."""

CONFIRMED = frozenset({"stored", "duplicate", "empty"})
"""The outcomes that clients receive as success."""

IntakeOutcome = Literal["stored", "duplicate", "empty", "invalid", "too_large", "full", "unavailable"]

_RETRY_S_MAX = 30.0
_UNAVAILABLE_RETRY_S = 5.0
_JSON_RETRY_S = 1.0
_OFFSETS = struct.Struct("=ii")

Window = DedupeWindow | RequestWindow
"""A dedupe window."""


class IntakeStore(Protocol):
    """The part of a store that a receiver needs; `quiver.Store` implements it."""

    def ingest(self, bundle: Bundle, *, durable: bool = False, timeout: float | None = None) -> Any:
        """Store *bundle*."""

    def sync(self) -> None:
        """Make everything ingested so far durable."""

    def recent_wal_entries(self) -> Iterator[Any]:
        """Yield the remaining entries of the write-ahead log, oldest first."""


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """
    The answer to a request.

    Attributes:
        outcome: `stored`, `duplicate` (of a stored one) and `empty` are confirmations; `invalid` and `too_large`
            mean that the client must not retry; `full` and `unavailable` mean that it should retry later.
        message: a description for humans; empty if confirmed.
        retry_after_s: when to retry.
        warning: the parts of a confirmed request that could not be stored; empty if all were.
        items: the number of records, spans and data points that were stored now.
        size_bytes: the bytes of the request that was stored now, decompressed.
    """

    outcome: IntakeOutcome
    message: str = ""
    retry_after_s: float | None = None
    warning: str = ""
    items: int = 0
    size_bytes: int = 0

    @property
    def confirmed(self) -> bool:
        """Whether the request is stored safely."""
        return self.outcome in CONFIRMED


class OtlpIntake:
    """
    Handles export requests for one store. Thread-safe; several receivers may share one.

    Args:
        store: the destination of requests.
        settings: sizes, acknowledgement and window.
        clock: measures the window and how long the store has been full.
        observer: counts requests by signal and outcome.

    Raises:
        StoreFailedError: the store could not be synced after the window was rebuilt.
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
        self.observer = InMemoryObserver() if observer is None else observer
        self._budget = ByteBudget("OTLP requests being handled", settings.in_flight_bytes_max, clock=clock)
        # Decompressed bytes and parsed objects may be many times larger than the request: only one request at a time
        # may use that much.
        self._opening = threading.Lock()
        # JSON takes much longer: it has its own limit, and never occupies all of the receiver's threads.
        self._json_turn = threading.Lock()
        self._json_places = threading.Semaphore(max(1, settings.workers - 1))
        self._full_since: float | None = None
        self._window: Window | None = None
        if settings.dedupe_window_s > 0:
            self._window = self._opened_window(settings)

    def _opened_window(self, settings: OtlpSettings) -> Window:
        directory = getattr(self._store, "companion_directory", None)
        window: Window
        if directory is None:
            window = DedupeWindow(settings.dedupe_window_s, entries_max=settings.dedupe_entries_max, clock=self._clock)
            unread = window.rebuild(self._store.recent_wal_entries())
            if settings.ack == "synced":
                # Entries of the last process may only be in the page cache. Confirming a repeated request without
                # a sync would promise more than was done.
                self._store.sync()
        else:
            store: Any = self._store
            window = RequestWindow(
                store,
                directory,
                settings.dedupe_window_s,
                needs_durable=settings.ack == "synced",
                entries_max=settings.dedupe_entries_max,
                clock=self._clock,
                observer=self.observer,
            )
            unread = window.unread
        if unread:
            self.observer.count("quiver.receiver.dedupe_unread_total", unread)
        return window

    @property
    def window(self) -> Window | None:
        """The recently stored requests; None without a dedupe window."""
        return self._window

    def accept(
        self,
        signal: str,
        data: bytes,
        *,
        encoding: Encoding = "identity",
        json: bool = False,
        headers: Iterable[tuple[str, str | bytes]] = (),
    ) -> IntakeResult:
        """
        Check *data* and store it as one bundle. Never raises for invalid data or for the state of the store.

        Args:
            signal: logs, traces or metrics.
            data: an Export…ServiceRequest, as bytes.
            encoding: the compression of *data*.
            json: whether it is JSON instead of protobuf.
            headers: its headers; those in `capture_headers` are stored as attributes of its resources.
        """
        verdict = self._accept(signal, data, encoding, headers, json=json)
        self.observer.count("quiver.receiver.requests_total", signal=signal, outcome=verdict.outcome)
        if verdict.size_bytes:
            self.observer.count("quiver.receiver.items_total", verdict.items, signal=signal)
            self.observer.count("quiver.receiver.bytes_total", verdict.size_bytes, signal=signal)
        return verdict

    def _accept(
        self, signal: str, data: bytes, encoding: Encoding, headers: Iterable[tuple[str, str | bytes]], *, json: bool
    ) -> IntakeResult:
        if len(data) > self._settings.max_request_bytes:
            return self.too_large(len(data))
        if not json:
            return self._accept_protobuf(signal, data, encoding, headers)
        if not self._json_places.acquire(blocking=False):
            return IntakeResult("full", "the maximum number of JSON requests is being processed", _JSON_RETRY_S)
        try:
            with self._json_turn:
                written = self._inflated(data, encoding)
                if isinstance(written, bytes):
                    written = self._checked(request_from_json(written, signal))
        finally:
            self._json_places.release()
        return (
            written
            if isinstance(written, IntakeResult)
            else self._accept_protobuf(signal, written, "identity", headers)
        )

    def _accept_protobuf(
        self, signal: str, data: bytes, encoding: Encoding, headers: Iterable[tuple[str, str | bytes]]
    ) -> IntakeResult:
        names = self._settings.capture_headers
        with self._opening:
            opened = self._inflated(data, encoding)
            if names and isinstance(opened, bytes):
                opened = self._checked(add_headers(opened, signal, headers, names=names))
            if isinstance(opened, IntakeResult):
                return opened
            try:
                self._budget.reserve(len(opened))
            except CapacityError as full:
                return IntakeResult("full", str(full), full.retry_after_s)
        try:
            return self._once(signal, opened)
        finally:
            self._budget.release(len(opened))

    def _inflated(self, data: bytes, encoding: Encoding) -> bytes | IntakeResult:
        if encoding == "identity":
            return data
        size_max = self._settings.max_decompressed_bytes
        inflated = inflate(data, size_max=size_max) if encoding == "gzip" else inflate_zstd(data, size_max=size_max)
        if inflated is None:
            return self._too_large_inside()
        return IntakeResult("invalid", inflated.reason) if isinstance(inflated, Damage) else inflated

    def _checked(self, written: bytes | Damage) -> bytes | IntakeResult:
        """Return the protobuf to store instead of the original request, or why it is refused."""
        if isinstance(written, Damage):
            return IntakeResult("invalid", written.reason)
        return self._too_large_inside() if len(written) > self._settings.max_decompressed_bytes else written

    def _too_large_inside(self) -> IntakeResult:
        size_max = self._settings.max_decompressed_bytes
        return IntakeResult("too_large", f"the request is too large: the limit is {size_max} bytes after decompression")

    def too_large(self, size: int | None) -> IntakeResult:
        """Return the answer to a request of *size* bytes (None: unknown) that exceeds the limit."""
        took = "more" if size is None else f"{size} bytes"
        return IntakeResult(
            "too_large", f"the request has {took}; the maximum is {self._settings.max_request_bytes} bytes"
        )

    def _once(self, signal: str, data: bytes) -> IntakeResult:
        if not data:
            return IntakeResult("empty")
        window = self._window
        if window is None:
            return self._keep(signal, data)[0]
        digest = request_digest(OTLP_SLOTS[signal], data, as_tables=self._settings.otlp_handling != "pass_through")
        try:
            if not window.begin(digest):
                return IntakeResult("duplicate")
        except CapacityError as full:
            return IntakeResult("full", str(full), self._retry_after(full.retry_after_s))
        except QuiverError as error:
            return IntakeResult("unavailable", str(error), _UNAVAILABLE_RETRY_S)
        stored, receipt = False, None
        try:
            verdict, receipt = self._keep(signal, data)
            stored = verdict.confirmed
        finally:
            window.finish(digest, stored=stored, receipt=receipt, durable=stored and self._settings.ack == "synced")
        return verdict

    def _keep(self, signal: str, data: bytes) -> tuple[IntakeResult, Any]:
        """Store a request. Return the answer, and the store's receipt for the last part of it."""
        with self._opening:
            made = self._bundles(signal, data)
        if isinstance(made, Damage):
            return IntakeResult("invalid", made.reason), None
        bundles, warning, items = made
        receipt = None
        try:
            fresh, digests = self._fresh(bundles)
            if bundles and not fresh:
                return IntakeResult("duplicate", warning=warning), None
            for index, bundle in enumerate(fresh, 1):
                # A receipt for the last part covers all earlier parts.
                durable = self._settings.ack == "synced" and index == len(fresh)
                receipt = self._store.ingest(bundle, durable=durable)
                if digests and self._window is not None:
                    self._window.remember(digests[index - 1], receipt=receipt, durable=durable)
        except CapacityError as full:
            return IntakeResult("full", str(full), self._retry_after(full.retry_after_s)), None
        except BundleTooLargeError as large:
            return IntakeResult("too_large", str(large)), None
        except InvalidBundleError as invalid:
            return IntakeResult("invalid", str(invalid)), None
        except (QuiverError, OSError) as error:
            # The store failed or is closed: the request may not be stored, so the client must keep it.
            return IntakeResult("unavailable", str(error), _UNAVAILABLE_RETRY_S), None
        self._full_since = None
        return IntakeResult("stored", warning=warning, items=items, size_bytes=len(data)), receipt

    def _fresh(self, bundles: Sequence[Bundle]) -> tuple[Sequence[Bundle], Sequence[bytes]]:
        """
        Return the bundles that are not stored yet, with digests to record; none if they will never be looked up.

        When tables are stored, the bytes of a request are not in the log: requests of the last process are identified
        by their tables. So are the parts of a request that was stored incompletely.
        """
        window = self._window
        if window is None or self._settings.otlp_handling == "pass_through":
            return bundles, ()
        if len(bundles) == 1 and not window.holds_tables:
            return bundles, ()
        fresh, digests = [], []
        for bundle in bundles:
            digest = digest_of_tables(bundle.batches)
            known = isinstance(digest, bytes) and window.knows(digest)
            if not known:
                fresh.append(bundle)
                digests.append(digest if isinstance(digest, bytes) else b"")
        return fresh, digests

    def _bundles(self, signal: str, data: bytes) -> tuple[Sequence[Bundle], str, int] | Damage:
        """Return the bundles to store, a warning for the client, and the number of items; or why it is invalid."""
        if self._settings.otlp_handling == "pass_through":
            read = parse_request(data, signal)
            return read if isinstance(read, Damage) else ((_bundle(OTLP_SLOTS[signal], data),), "", read.rows)
        converted = tables_of_request(data, signal)
        if isinstance(converted, Damage):
            return converted
        for what, count in converted.left_out.items():
            self.observer.count("quiver.receiver.left_out_total", count, signal=signal, what=what)
        left_out = ", ".join(f"{count} {what}" for what, count in converted.left_out.items())
        warning = f"stored without {left_out}, which the tables cannot represent" if left_out else ""
        rows = [{slot: table.num_rows for slot, table in tables.items()} for tables in converted.tables]
        items = sum(OTAP.item_count(counts) or 0 for counts in rows)
        return [Bundle(tables) for tables in converted.tables], warning, items

    def _retry_after(self, hint_s: float) -> float:
        """
        Return a delay that grows while the store stays full.

        Exporters stop after a few attempts, however short the delays: a constant second would use them up quickly.
        """
        now = self._clock.monotonic()
        since = self._full_since
        if since is None:
            self._full_since = since = now
        return min(max(hint_s, now - since), max(hint_s, _RETRY_S_MAX))


def _bundle(slot: int, data: bytes) -> Bundle:
    """Wrap the request as the slot's one row, without copying it."""
    buffers = [None, pa.py_buffer(_OFFSETS.pack(0, len(data))), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), 1, buffers)
    return Bundle({slot: pa.RecordBatch.from_arrays([column], schema=OTLP_SCHEMA)})
