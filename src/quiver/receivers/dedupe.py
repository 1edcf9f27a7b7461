"""
Recently stored requests and tables, so that a repeated request is confirmed but not stored twice.

A client that did not receive the confirmation (the receiver died, the connection broke) sends the request again. The
window identifies requests by a digest of slot and bytes, and tables by a digest of their content. The window in this
module is in memory, for stores that are not directories of this machine. It is rebuilt from the write-ahead log at
start. All other stores use `request_window.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from blake3 import blake3

from quiver.bundle import OTLP_FINGERPRINT, OTLP_SCHEMA, OTLP_SLOTS
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.otap.tables.digest import digest_of_tables
from quiver.otap.tables.payload_schema import SIGNALS, TABLES

__all__ = ["DedupeWindow", "digests_of_batches", "digests_of_entry", "request_digest"]

_DIGEST_BYTES = 16
_AS_TABLES = 0x80
_RAW_SLOTS = frozenset(OTLP_SLOTS.values())


def request_digest(slot: int, data: bytes | memoryview, *, as_tables: bool = False) -> bytes:
    """
    Return the identity of a request: 128 bits of BLAKE3 over its slot and its bytes.

    With *as_tables* the digest differs, because the request is stored as tables: another handling could not recognize
    it in the data.
    """
    digest = blake3(bytes([slot | _AS_TABLES if as_tables else slot]))
    digest.update(data)
    return digest.digest(length=_DIGEST_BYTES)


class DedupeWindow:
    """
    The digests of requests stored within the last *window_s* seconds. Thread-safe.

    Args:
        window_s: how long a stored request is remembered.
        entries_max: the maximum number of entries; the oldest are forgotten early.
        clock: measures the window.
    """

    def __init__(self, window_s: float, *, entries_max: int = 200_000, clock: Clock = SYSTEM_CLOCK) -> None:
        self.window_s = window_s
        self.entries_max = entries_max
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._stored: dict[bytes, float] = {}  # digest → when it was stored; oldest first
        self._in_flight: set[bytes] = set()
        self._tables_until: float | None = None

    def __len__(self) -> int:
        with self._changed:
            return len(self._stored)

    @property
    def holds_tables(self) -> bool:
        """Whether it may have tables that the last process stored."""
        return self._tables_until is not None and self._clock.monotonic() <= self._tables_until

    def knows(self, digest: bytes) -> bool:
        """Return whether the request is stored. Unlike `begin`, this claims nothing."""
        with self._changed:
            return self._is_stored(digest)

    def remember(self, digest: bytes, *, receipt: object = None, durable: bool = False) -> None:  # noqa: ARG002
        """Record that a request was stored now."""
        with self._changed:
            self._remember(digest, self._clock.monotonic())

    def begin(self, digest: bytes) -> bool:
        """
        Return whether the caller must store this request. If so, it must call `finish` in every case.

        False means that the request is already stored. While another caller stores the same request, this one waits: it
        shares a success, and after a failure it tries itself.
        """
        with self._changed:
            while digest in self._in_flight:
                self._clock.wait(self._changed, None)
            if self._is_stored(digest):
                return False
            self._in_flight.add(digest)
            return True

    def _is_stored(self, digest: bytes) -> bool:
        stored_at = self._stored.get(digest)
        return stored_at is not None and self._clock.monotonic() - stored_at <= self.window_s

    def finish(self, digest: bytes, *, stored: bool, receipt: object = None, durable: bool = False) -> None:  # noqa: ARG002
        """End what `begin` started; *stored* is whether the request may be confirmed from now on."""
        with self._changed:
            self._in_flight.discard(digest)
            if stored:
                self._remember(digest, self._clock.monotonic())
            self._changed.notify_all()

    def rebuild(self, entries: Iterable[Any]) -> int:
        """
        Add the content of the log's *entries*, oldest first, if it is younger than the window.

        Returns the number of unreadable slots; a repeated request from one of them is stored again.
        """
        now_ns = self._clock.now_ns()
        unread = 0
        for entry in entries:
            # The wall clock may have been set back since: a time in the future counts as now.
            age_s = max(0, now_ns - entry.ingested_at_ns) / 1e9
            if age_s > self.window_s:
                continue
            found, tables = digests_of_entry(entry)
            stored_at = self._clock.monotonic() - age_s
            with self._changed:
                for digest in (*found, *tables):
                    if digest is None:
                        unread += 1
                    else:
                        self._remember(digest, stored_at)
                if any(tables):
                    self._tables_until = stored_at + self.window_s
        return unread

    def _remember(self, digest: bytes, stored_at: float) -> None:
        stored = self._stored
        stored.pop(digest, None)  # move to the end, to keep the order of time
        stored[digest] = stored_at
        oldest_kept = self._clock.monotonic() - self.window_s
        while stored:
            oldest = next(iter(stored))
            if len(stored) <= self.entries_max and stored[oldest] >= oldest_kept:
                break
            del stored[oldest]


def digests_of_entry(entry: Any) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return digests of the requests in a log entry, and of the tables of each signal; None for unreadable ones."""
    raw = [slot for slot in entry.slots if slot.slot in _RAW_SLOTS and slot.fingerprint == OTLP_FINGERPRINT]
    tables = {slot.slot: _read(slot) for slot in entry.slots if slot.slot in TABLES}
    return _digests_of_requests({slot.slot: _read(slot) for slot in raw}), _digests_of_tables(tables)


def digests_of_batches(batches: Mapping[int, pa.RecordBatch]) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return the same for a bundle of a sealed segment, by its batches."""
    raw = {slot: batch for slot, batch in batches.items() if slot in _RAW_SLOTS and batch.schema.equals(OTLP_SCHEMA)}
    tables = {slot: batch for slot, batch in batches.items() if slot in TABLES}
    return (
        _digests_of_requests({slot: pa.Table.from_batches([batch]) for slot, batch in raw.items()}),
        _digests_of_tables({slot: pa.Table.from_batches([batch]) for slot, batch in tables.items()}),
    )


def _digests_of_requests(slots: Mapping[int, pa.Table | None]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for slot, table in slots.items():
        if table is None or "data" not in table.column_names:
            found.append(None)
        else:
            found += [request_digest(slot, value.as_buffer()) for value in table.column("data") if value.is_valid]
    return found


def _digests_of_tables(payloads: Mapping[int, pa.Table | None]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for signal in SIGNALS.values():
        if signal.root not in payloads:
            continue
        read = {payload: payloads[payload] for payload in signal.payloads if payload in payloads}
        root = read[signal.root]
        if root is not None and "resource" not in root.column_names:
            continue  # the slot of a root, used for something else
        batches: dict[int, pa.RecordBatch] = {}
        for payload, table in read.items():
            combined = table.combine_chunks().to_batches() if table is not None else []
            if combined:
                batches[payload] = combined[0]
        digest = digest_of_tables(batches) if len(batches) == len(read) else None
        found.append(digest if isinstance(digest, bytes) else None)
    return found


def _read(slot: Any) -> pa.Table | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(slot.payload)) as stream:
            return stream.read_all()
    except pa.ArrowException:
        return None
