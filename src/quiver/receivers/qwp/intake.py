"""
The handling of QWP messages: decode, deduplicate, store one bundle per table, and compute what the client may forget.

A message that cannot be stored now is kept in decoded form, with its progress, and retried: the client gets no answer
and keeps its copy. Confirmed messages have been synced if `ack` requires it.
"""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from quiver.bundle import QWP_SLOT, Bundle
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, InvalidBundleError, QuiverError, SettingsError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.scan import Frame
from quiver.qwp.wire.column_types import DECIMAL_BYTES, FIXED_BYTES, ColumnType
from quiver.qwp.wire.decoded import Table
from quiver.qwp.wire.decoder import DecodedMessage, SymbolDictionary, decode_message, decode_symbol_delta
from quiver.qwp.wire.message import Flags
from quiver.qwp.wire.responses import Status
from quiver.receivers.intake import IntakeStore
from quiver.receivers.qwp.ledger import LEDGER_NAME, Stored
from quiver.receivers.qwp.replay import ReplayIndex, SupersededError, UnprovenError, is_stamped, table_digest
from quiver.receivers.qwp.settings import QwpSettings

__all__ = ["IntakeProgress", "QwpClient", "QwpIntake", "QwpStore"]

_UNAVAILABLE_RETRY_S = 5.0
_SYMBOL_OVERHEAD_BYTES = 64
_ARRAY_BYTES = 48
"""The approximate size of an empty array."""
_PING = struct.Struct("<Q")
_PINGS_MAX = 1024
_PROOF_WAIT_S = 0.02
_ENDED = "the connection has ended"


class QwpStore(IntakeStore, Protocol):
    """The part of a store that the receiver needs; `quiver.Store` implements it."""

    path: str

    @property
    def internals(self) -> Any:
        """`Store.internals`: it has the sealed segments."""

    @property
    def settings(self) -> Any:
        """The settings of the store."""

    def stats(self) -> dict[str, Any]:
        """Return current statistics; `cold` is about the object tier."""

    def seal(self) -> None:
        """Seal everything ingested so far."""


@dataclass(slots=True)
class IntakeProgress:
    """
    The progress of a connection's messages.

    Attributes:
        taken: how many of the given messages are settled; the next one must be given again.
        done: how many messages of the connection are settled, which is the number of the next one.
        confirmed: how many messages of the connection may be confirmed as stored; a group counts as one.
        tables: table → its highest sequence number among the settled messages.
        outcome: `going`: continue immediately. `full`: retry after *retry_after_s*. `refused` with *status*: nothing
            more is read. `unavailable`, `crowded` and `replaced` (the client has reconnected): close the connection.
            `unproven`: retry after *retry_after_s*, once the connections *asked* have been pinged.
        message: a description for humans.
    """

    taken: int = 0
    done: int = 0
    confirmed: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    outcome: Literal["going", "full", "refused", "unavailable", "crowded", "replaced", "unproven"] = "going"
    status: Status = Status.INTERNAL_ERROR
    message: str = ""
    retry_after_s: float = 0.0
    asked: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Opened:
    """
    A decoded message of *nbytes*, and how many of its tables are stored; *digest* is that of the next table, once
    computed.
    """

    flags: int
    nbytes: int
    batches: list[tuple[str, pa.RecordBatch]]
    stored: int = 0
    digest: bytes | None = None


class _EndedError(Exception):
    """The connection was closed while its tables were being stored."""


class QwpIntake:
    """
    Handles the messages of all connections for one store. Thread-safe.

    Args:
        store: the destination of tables.
        settings: sizes, acknowledgement and window.
        clock: measures the window, and since when the store has been unavailable.
        observer: counts messages by outcome, and rows.

    Raises:
        SettingsError: durable acknowledgements should wait for an object tier, but the store has none.
        StoreFailedError: the store could not be synced after the window was rebuilt.
    """

    def __init__(
        self,
        store: QwpStore,
        settings: QwpSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.observer = InMemoryObserver() if observer is None else observer
        self.clock = clock
        self._lock = threading.Lock()
        # Decoded tables may be many times larger than the message: only one message at a time may use that much.
        self.opening = threading.Lock()
        self._dictionary_bytes = 0
        self._failed_at: float | None = None
        self._sealed = -1
        self._sealed_at_s = -math.inf  # the last seal for a waiting client
        self._durable = -1
        self._newest = -1
        if settings.durable == "tier" and store.settings.cold_objects is None:
            raise SettingsError("durable: tier needs a store with an object tier: set cold.objects")
        self.replay: ReplayIndex | None = None
        if settings.dedupe_window_s != 0:
            self.replay = ReplayIndex(
                f"{store.path}/{LEDGER_NAME}" if Path(store.path).is_dir() else None,
                bytes_max=settings.dedupe_bytes_max,
                entries_max=settings.dedupe_entries_max,
                window_s=settings.dedupe_window_s,
                clock=clock,
                observer=self.observer,
            )
            unread = self.replay.recover(
                store.recent_wal_entries(), QWP_SLOT, next_sequence=store.stats()["next_sequence"]
            )
            if unread:
                self.observer.count("quiver.receiver.dedupe_unread_total", unread)
            if settings.ack == "synced":
                # Entries of the last process may only be in the page cache, and will be confirmed again.
                store.sync()

    def close(self) -> None:
        """Save what clients may send again. Idempotent. Call it after the last connection has ended."""
        replay, self.replay = self.replay, None
        if replay is not None:
            next_sequence = 0
            with contextlib.suppress(QuiverError, OSError):
                next_sequence = self.store.stats()["next_sequence"]
            replay.shut(next_sequence=next_sequence)

    @property
    def is_available(self) -> bool:
        """Whether to accept new connections: the store has not failed recently."""
        failed_at = self._failed_at
        return failed_at is None or self.clock.monotonic() - failed_at >= _UNAVAILABLE_RETRY_S

    def open(self, sender: bytes = b"") -> QwpClient:
        """Return the state of a new connection of *sender* (`sender_key`). The caller must call its `close`."""
        return QwpClient(self, sender)

    @property
    def durable_before(self) -> int:
        """The last result of `durable_through`."""
        return self._durable

    def durable_through(self, *, seal: bool) -> int:
        """
        Return the number up to which every stored table is as durable as `durable` requires. With *seal* the open
        segment is sealed, at most once in `durable_wait_s`, because the object tier may take long.

        Raises:
            QuiverError: the store could not seal.
            OSError: a disk error.
        """
        now = self.clock.monotonic()
        with self._lock:
            newest = self._newest
        if seal and newest > self._sealed and now - self._sealed_at_s >= self.settings.durable_wait_s:
            self._sealed_at_s = now
            self.store.seal()
            self._sealed = max(self._sealed, newest)
        found = [one.sequence_last for one in self.store.internals.catalog.segments() if one.sequence_last is not None]
        self._sealed = through = max([self._sealed, *found])
        if self.settings.durable == "tier":
            # Read after the segments: a segment that was sealed in between has higher numbers.
            waiting = self.store.stats()["cold"]["waiting_sequence"]
            through = through if waiting is None else min(through, waiting - 1)
        self._durable = max(self._durable, through)
        return self._durable

    def stored(self, sequence: int) -> None:
        """Record the number of a table that was stored now."""
        self.awaited(sequence)
        self._failed_at = None

    def awaited(self, sequence: int) -> None:
        """Record a number that a client may wait for, whenever its table was stored."""
        with self._lock:
            self._newest = max(self._newest, sequence)

    def failed(self) -> None:
        """Record that the store failed to ingest."""
        self._failed_at = self.clock.monotonic()

    def grow(self, size: int) -> bool:
        """Count *size* more bytes of symbols. Return False if all connections together exceed the limit."""
        with self._lock:
            self._dictionary_bytes += size
            return self._dictionary_bytes <= self.settings.dictionaries_bytes_max


class QwpClient:
    """One connection: its symbols, its progress, and its earlier tables. Used by one thread at a time."""

    def __init__(self, intake: QwpIntake, sender: bytes) -> None:
        self._intake = intake
        self._dictionary = SymbolDictionary()
        self._dictionary_bytes = 0
        self._waiting: _Opened | None = None
        self._guard = threading.Lock()  # guards the next two
        self._is_taking = False
        self._is_closed = False
        self._replay = intake.replay
        self._life = None if self._replay is None else self._replay.open(sender)
        self._replaying = self._life is not None
        self._done = 0
        self._confirmed = 0
        self._tables_confirmed = 0  # of this life: the tables of confirmed messages
        self._sequence = -1  # the highest among them
        self._undurable: deque[tuple[int, int]] = deque()  # (tables, highest sequence), confirmed but not durable yet
        self._pings: deque[tuple[int, float, int]] = deque()  # (number, when, tables that the client may forget)
        self._ping_number = 0

    @property
    def number(self) -> int | None:
        """The identity of the connection in `IntakeProgress.asked`; None without a dedupe window."""
        return None if self._life is None else self._life.number

    def close(self, *, in_order: bool = False) -> None:
        """
        End the connection. *in_order* means that the client sent a close frame and everything it sent was handled.
        Idempotent.

        If another thread is in `take`, waits until it has finished the current table: stored tables must be recorded.
        """
        with self._guard:
            was_closed, self._is_closed = self._is_closed, True
            if was_closed or self._is_taking:
                return
        self._end(in_order=in_order)

    def _end(self, *, in_order: bool) -> None:
        self._intake.grow(-self._dictionary_bytes)
        self._dictionary_bytes = 0
        if self._replay is not None and self._life is not None:
            self._replay.close(self._life, in_order=in_order)

    def silence(self) -> None:
        """Record that the client gets no more answers, although messages may still be stored. Idempotent."""
        if self._replay is not None and self._life is not None:
            self._replay.end(self._life)

    # ── what the client knows ────────────────────────────────────────────────────────────────────────

    def record_confirmation(self, *, durable: bool = False) -> None:
        """Record that a confirmation is about to be sent. With *durable*, the client keeps its rows for now."""
        life = self._life
        if life is not None:
            life.confirmed = self._tables_confirmed
            if durable:
                self._undurable.append((self._tables_confirmed, self._sequence))
            else:
                life.released = self._tables_confirmed

    def record_durable(self, through: int) -> None:
        """Record that the durability of everything up to the number *through* is about to be confirmed."""
        while self._undurable and self._undurable[0][1] <= through:
            count, _ = self._undurable.popleft()
            if self._life is not None:
                self._life.released = count

    def ping(self) -> bytes | None:
        """Return the payload of a ping to send right before a confirmation; None if too many pings are unanswered."""
        if self._life is None or len(self._pings) >= _PINGS_MAX:
            return None
        self._ping_number += 1
        self._pings.append((self._ping_number, self._intake.clock.monotonic(), self._life.released))
        return _PING.pack(self._ping_number)

    def pong(self, payload: bytes) -> None:
        """Record the client's answer to the ping with *payload*, and with it to all earlier ones."""
        number = _PING.unpack(payload)[0] if len(payload) == _PING.size else 0
        while self._life is not None and self._pings and self._pings[0][0] <= number:
            _, at, released = self._pings.popleft()
            self._life.alive_at, self._life.known = at, released

    def is_alive(self) -> None:
        """Record that the client is alive now, as far as is known."""
        if self._life is not None:
            self._life.alive_at = self._intake.clock.monotonic()

    def knows_all(self) -> None:
        """Record that the client has received all confirmations."""
        if self._life is not None:
            self._life.known = self._life.released

    # ── storing ──────────────────────────────────────────────────────────────────────────────────────

    def take(self, messages: Sequence[bytes]) -> IntakeProgress:
        """
        Store *messages*, the next ones of the connection, in order, as far as possible. Never raises for their content
        or for the state of the store.
        """
        with self._guard:
            if self._is_closed:
                return IntakeProgress(outcome="unavailable", message=_ENDED)
            self._is_taking = True
        try:
            return self._take_all(messages)
        finally:
            self._taken()

    def _taken(self) -> None:
        with self._guard:
            self._is_taking = False
            is_closed = self._is_closed
        if is_closed:
            self._end(in_order=False)

    def _take_all(self, messages: Sequence[bytes]) -> IntakeProgress:
        progress = IntakeProgress()
        for data in messages:
            if self._is_closed:
                progress.outcome, progress.message = "unavailable", _ENDED
                break
            self._take(data, progress)
            if progress.outcome != "going":
                break
            progress.taken += 1
        if progress.tables and self._intake.settings.ack == "synced":
            try:
                self._intake.store.sync()
            except (QuiverError, OSError) as error:
                self._fail(progress, error)
                progress.tables.clear()
                return progress
        if self._replay is not None:
            self._replay.commit()
        progress.done, progress.confirmed = self._done, self._confirmed
        return progress

    def _take(self, data: bytes, progress: IntakeProgress) -> None:
        observer = self._intake.observer
        opened = self._waiting or self._open(data, progress)
        if opened is None:
            observer.count("quiver.receiver.messages_total", protocol="qwp", outcome=progress.outcome)
            return
        try:
            self._keep(opened, progress)
        except CapacityError as full:
            self._waiting = opened
            progress.outcome, progress.message, progress.retry_after_s = "full", str(full), full.retry_after_s
        except UnprovenError as unproven:
            self._waiting = opened
            progress.outcome, progress.asked, progress.retry_after_s = "unproven", unproven.lives, _PROOF_WAIT_S
            return
        except _EndedError:
            progress.outcome, progress.message = "unavailable", _ENDED
        except SupersededError:
            progress.outcome, progress.message = "replaced", "the client has reconnected"
        except InvalidBundleError as invalid:
            progress.outcome, progress.message, progress.status = "refused", str(invalid), Status.SCHEMA_MISMATCH
        except (QuiverError, OSError) as error:
            self._fail(progress, error)
        else:
            self._waiting = None
            self._done += 1
            if not opened.flags & Flags.DEFER_COMMIT:
                self._confirmed = self._done
                self._tables_confirmed = 0 if self._life is None else self._life.count
        outcome = "stored" if progress.outcome == "going" else progress.outcome
        observer.count("quiver.receiver.messages_total", protocol="qwp", outcome=outcome)

    def _fail(self, progress: IntakeProgress, error: BaseException) -> None:
        # The store failed or is closed: the message may not be stored, so the client must keep it.
        self._intake.failed()
        progress.outcome, progress.message = "unavailable", str(error)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    def _open(self, data: bytes, progress: IntakeProgress) -> _Opened | None:
        view = memoryview(data)
        with self._intake.opening:
            known = len(self._dictionary.entries)
            answer = decode_message(view, self._dictionary)
            if not isinstance(answer, Frame):
                delta = decode_symbol_delta(view)
                gap = isinstance(delta, Frame) and delta.value.start > known
                progress.status = Status.DICTIONARY_GAP if gap else Status.PARSE_ERROR
                reason = getattr(answer, "reason", "the message ends early")
                progress.outcome, progress.message = (
                    "refused",
                    f"offset {getattr(answer, 'offset', len(data))}: {reason}",
                )
                return None
            message = answer.value
            if answer.end != len(data):
                progress.outcome, progress.status = "refused", Status.PARSE_ERROR
                progress.message = f"{len(data) - answer.end} bytes after the message"
                return None
            if not self._has_room(message, known, progress):
                return None
            batches = [(one.name, one.to_arrow()) for one in _with_rows(message)]
            return _Opened(message.flags, len(data), batches)

    def _has_room(self, message: DecodedMessage, known: int, progress: IntakeProgress) -> bool:
        size = sum(_arrow_bytes(table) for table in message.tables)
        size_max = self._intake.settings.tables_bytes_max
        if size > size_max:
            progress.outcome, progress.status = "refused", Status.PARSE_ERROR
            progress.message = f"the tables of the message take {size} bytes; the limit is {size_max}"
            return False
        fresh = message.symbols[max(known - message.symbols_start, 0) :]
        grown = sum(len(symbol) + _SYMBOL_OVERHEAD_BYTES for symbol in fresh)
        self._dictionary_bytes += grown
        if not self._intake.grow(grown):
            progress.outcome, progress.message = "crowded", "the symbols of all connections together exceed the limit"
            return False
        return True

    # ── its tables ───────────────────────────────────────────────────────────────────────────────────

    def _keep(self, opened: _Opened, progress: IntakeProgress) -> None:
        intake = self._intake
        for name, batch in opened.batches[opened.stored :]:
            if self._is_closed:
                raise _EndedError
            sequence = self._once(opened, batch)
            progress.tables[name] = max(sequence, progress.tables.get(name, sequence))
            self._sequence = max(sequence, self._sequence)
            opened.stored += 1
            opened.digest = None
            intake.observer.count("quiver.receiver.rows_total", batch.num_rows, protocol="qwp")
            intake.observer.count("quiver.receiver.items_total", batch.num_rows, signal="tables")
            intake.observer.count("quiver.receiver.bytes_total", batch.nbytes, signal="tables")

    def _once(self, opened: _Opened, batch: pa.RecordBatch) -> int:
        replay, life = self._replay, self._life
        if replay is None or life is None:
            return self._ingest(batch)
        digest = opened.digest = opened.digest or table_digest(batch)
        stamped = is_stamped(batch)
        if self._replaying:
            known = replay.recognize(life, digest, stamped=stamped)
            if known is not None:
                self._intake.awaited(known)
                self._intake.observer.count("quiver.receiver.repeated_tables_total", protocol="qwp")
                return known
            # A client repeats tables first: a table that cannot be a repetition ends the search.
            self._replaying = not stamped
        replay.begin(life, digest)
        stored: Stored | None = None
        try:
            sequence = self._ingest(batch)
            stored = Stored(digest, sequence, opened.nbytes // len(opened.batches), stamped)
        finally:
            replay.finish(life, stored)
        return sequence

    def _ingest(self, batch: pa.RecordBatch) -> int:
        sequence: int = self._intake.store.ingest(Bundle({QWP_SLOT: batch})).sequence
        self._intake.stored(sequence)
        return sequence


def _with_rows(message: DecodedMessage) -> Iterator[Table]:
    return (table for table in message.tables if table.rows and table.columns)


def _arrow_bytes(table: Table) -> int:
    """
    Return the approximate size of the table in memory: a row of nulls takes a bit on the wire, but a complete value
    here.
    """
    size = 0
    for column in table.columns:
        width = FIXED_BYTES.get(column.type) or DECIMAL_BYTES.get(column.type) or 8
        if column.type in {ColumnType.VARCHAR, ColumnType.BINARY}:
            size += len(column.present[1])
        elif column.type in {ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY}:
            size += sum(one.nbytes for one in column.present)
            width = _ARRAY_BYTES
        elif column.type is ColumnType.LONG256:
            width = 32
        size += column.rows * width
    return size
