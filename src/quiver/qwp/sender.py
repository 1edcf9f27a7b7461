"""
`Sender`: rows and tables in, frames into the slot. A background thread sends them to the server.

::

    row, row, row … ─▶ flush ─▶ messages ─▶ ring ─▶ (thread) ─▶ server
    table ────────────────────▶ messages ─▶

The producer waits for space in the ring and, with the durabilities `flush` and `append`, for the disk. It never waits
for the network.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.counted import counted
from quiver.errors import CapacityError, PartialWriteError, SenderHaltedError, StoreClosedError, UsageError
from quiver.lazy_names import renamed_keyword
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import Buffer, FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.forked import refuse_in_children
from quiver.qwp.connection.failover import HostTracker
from quiver.qwp.connection.session import SenderError
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.drainers import DrainerListener, Drainers
from quiver.qwp.environment import conf_from_env
from quiver.qwp.inbox import ErrorHandler, ErrorInbox
from quiver.qwp.rows import At, RowTable
from quiver.qwp.sender_figures import SenderFigures
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import MemorySlot, Slot, memory_slot, open_slot
from quiver.qwp.tables import encode_slices, record_batches
from quiver.qwp.wire.message import MessageBuffer, SymbolIds, encode_message

__all__ = ["Sender"]

_STOP_S = 5.0
_NO_VALUES: dict[str, Any] = {}
_HEADROOM_BYTES = 160  # reserved for the rest of the message when the size of a row is checked


@dataclass(frozen=True, slots=True)
class _Due:
    """When to flush the buffered rows: their number, their bytes, a time. And the size limit of the next row."""

    rows: float
    nbytes: float
    at_s: float
    row_bytes_max: int


class Sender(SenderFigures):
    """
    Sends rows to a server that speaks QWP, and stores them until the server has confirmed them.

    Create one with `from_conf`, `from_env` or `connect`, and close it. Thread-safe; all threads share one row buffer.

    Args:
        settings: everything that a connect string can contain.
        on_error: called with each `SenderError`, in its own thread. By default errors are logged.
        on_drainer: called with the outcome for each adopted slot, from the drainers' threads.
        fs, clock, observer: the disk, time, and the receiver of events and metrics.

    Raises:
        SenderHaltedError: no server answered, or it refused the credentials (not with ``initial_connect_retry=async``).
        DirectoryInUseError: another process is using this slot.
        CorruptionError: frames are missing in the slot, or a newer version wrote it. Nothing was deleted.
        OSError: a disk error.
    """

    def __init__(
        self,
        settings: SenderSettings,
        *,
        on_error: ErrorHandler | None = None,
        on_drainer: DrainerListener | None = None,
        fs: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._monotonic = clock.monotonic  # called for every row
        self._observer: Observer = observer if observer is not None else InMemoryObserver()
        self._guard = threading.RLock()  # protects the row buffer
        self._tables: dict[str, RowTable] = {}
        self._ready: deque[bytes] = deque()  # encoded, but the ring was full
        self._symbol_ids = SymbolIds()
        self._rows = 0
        self._buffered_bytes = 0
        self._due = _Due(math.inf, math.inf, math.inf, 0)  # computed with the first row
        self._closed = False
        self._seen: SenderError | None = None  # the terminal error that the producer has received
        self._counters = Counters()
        self._inbox = ErrorInbox(on_error, settings.inbox_capacity, clock=clock, observer=self._observer)
        self._message_bytes_max = min(settings.ring.payload_bytes_max, settings.message_bytes_max)
        self._buffer = MessageBuffer(min(settings.buffer_bytes, settings.message_bytes_max), settings.message_bytes_max)
        if settings.tls and not settings.tls_verify:
            self._observer.event(
                "qwp.tls_unverified", level=logging.WARNING, warning="the identity of the server is not verified"
            )
        random = Random()  # noqa: S311
        tracker = HostTracker(len(settings.addresses))
        with ExitStack() as undo:
            undo.callback(self._inbox.close)
            self._slot = self._open_slot(fs)
            undo.callback(self._slot.close)
            self._loop = WireLoop(
                self._slot,
                settings,
                tracker,
                counters=self._counters,
                on_error=self._inbox.offer,
                clock=clock,
                observer=self._observer,
                random=random,
            )
            undo.callback(self._loop.release)
            self._drainers = Drainers(
                settings,
                tracker,
                listener=on_drainer,
                on_error=self._inbox.offer,
                fs=fs,
                clock=clock,
                observer=self._observer,
                random=random,
            )
            self._loop.connect_first()
            if self._loop.halted is not None:
                raise SenderHaltedError(self._loop.halted)
            if settings.drain_orphans:
                self._drainers.start()
            self._loop.start(f"quiver-qwp-sender {settings.sender_id}")
            undo.pop_all()
        refuse_in_children(self, f"the sender {settings.sender_id}")

    def _open_slot(self, fs: FileSystem) -> Slot | MemorySlot:
        settings = self.settings
        if settings.sf_dir is None:
            return memory_slot(settings.ring, clock=self._clock, observer=self._observer)
        return open_slot(
            fs,
            settings.sf_dir,
            settings.sender_id,
            settings.ring,
            observer=self._observer,
            clock=self._clock,
            dead_letters_bytes_max=settings.dead_letters_bytes_max,
        )

    # ---- constructors

    @classmethod
    def from_conf(cls, conf: str, **components: Any) -> Self:
        """
        Return a sender for the connect string *conf*. *components* are the keyword arguments of the class.

        Raises:
            SettingsError: a key is unknown, or a value is invalid.
            QuiverError, OSError: as the class.
        """
        return cls(SenderSettings.from_conf(conf), **components)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **components: Any) -> Self:
        """
        Return a sender for the connect string in ``QDB_CLIENT_CONF``.

        Raises:
            SettingsError: the variable is not set, a key is unknown, or a value is invalid.
            QuiverError, OSError: as the class.
        """
        return cls.from_conf(conf_from_env(environ), **components)

    @classmethod
    def connect(cls, service: str = "ws", **keys: Any) -> Self:
        """
        Return a sender from keyword arguments named like connect string keys: ``Sender.connect(addr="host:9000")``.

        Raises:
            SettingsError: a key is unknown, or a value is invalid.
            QuiverError, OSError: as the class.
        """
        return cls(SenderSettings.from_mapping(keys, service=service))

    # ---- rows and tables

    def row(
        self,
        table: str,
        *,
        symbols: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
        at: At = None,
    ) -> None:
        """
        Buffer one row. Flush if an `auto_flush_*` limit is reached.

        *at* is the timestamp: nanoseconds since the epoch, a datetime with a zone, or None for the server's clock.

        Raises:
            UsageError: a name or value cannot be sent. The row was not buffered. Or the flush failed for some rows: the
                message has their number; they were dropped, and all others were published.
            CapacityError: no space for earlier rows, so this one was not buffered.
            SenderHaltedError, StoreFailedError, StoreClosedError: see there.
        """
        with self._guard:
            if self._closed or self._loop.halted is not None:
                self._require_usable()
            if self._ready:
                self._push()
            symbols, columns = symbols or _NO_VALUES, columns or _NO_VALUES
            rows = self._tables.get(table)
            if rows is None:
                rows = RowTable(table, name_bytes_max=self.settings.name_bytes_max)
                if not self._rows:
                    self._due = self._when_due()
                due = self._due
                size = rows.append(symbols, columns, at, bytes_max=due.row_bytes_max)
                self._tables[table] = rows
            else:
                due = self._due
                size = rows.check(symbols, columns, at, due.row_bytes_max, rows.last)
                if not size:
                    size = rows.append(symbols, columns, at, bytes_max=due.row_bytes_max)
            self._buffered_bytes += size
            self._rows += 1
            if self._rows >= due.rows or self._buffered_bytes >= due.nbytes or self._monotonic() >= due.at_s:
                try:
                    self._publish()
                except CapacityError:
                    # The row is buffered. The next call raises if there is still no space.
                    self._observer.count("quiver.qwp.flushes_postponed_total")

    def _limit(self, rows: int = 1) -> int:
        """
        Return the size limit of a message with *rows* rows, from the segment size and the server's limit.

        Until a server has announced its limit, messages of several rows respect the limit that any server accepts. A
        single row cannot be split, and may have to wait for a server that accepts it.
        """
        announced = self._loop.batch_bytes_max
        if not announced and rows > 1:
            announced = self.settings.offline_bytes_max
        return min(self._message_bytes_max, announced or self._message_bytes_max)

    def _when_due(self) -> _Due:
        settings = self.settings
        nbytes: float = math.inf
        if settings.auto_flush_bytes is not None:
            nbytes = settings.auto_flush_bytes
        elif settings.auto_flush_rows is not None:
            nbytes = self._limit(2)  # a full frame gains nothing by waiting; "off" means rows and time are off
        return _Due(
            math.inf if settings.auto_flush_rows is None else settings.auto_flush_rows,
            nbytes,
            math.inf if settings.auto_flush_s is None else self._clock.monotonic() + settings.auto_flush_s,
            self._limit() - _HEADROOM_BYTES,
        )

    def table(self, name: str, data: Any, *, symbols: Collection[str] = (), at: str | None = None) -> int:
        """
        Send an Arrow table, a record batch or a pandas data frame. Return its number of rows.

        *symbols* names text columns to send as symbols. *at* names the column with the designated timestamp. The index
        of a data frame is not sent. Columns that contain only None are omitted.

        Raises:
            UsageError: a name, type or value cannot be sent. Nothing was stored.
            PartialWriteError: some rows were stored; then there was no space, or a later row cannot be sent.
            SenderHaltedError, StoreFailedError, StoreClosedError: see there.
        """
        batches = record_batches(data)
        with self._guard:
            self._require_usable()
            kept = 0
            try:
                self._publish()
                for message, rows in encode_slices(
                    name,
                    batches,
                    symbols=symbols,
                    at=at,
                    message_bytes_max=self._limit(2),
                    row_bytes_max=self._limit(),
                    dialect=self.settings.dialect,
                    shared=self._symbol_ids,
                    into=self._buffer,
                    name_bytes_max=self.settings.name_bytes_max,
                ):
                    self._append(message)
                    kept += rows
            except CapacityError as full:
                self._sync_what_is_kept()
                raise PartialWriteError(kept, str(full)) from full
            except UsageError as refused:
                if not kept:
                    raise
                self._sync_what_is_kept()
                raise PartialWriteError(kept, str(refused)) from refused
            self._sync_what_is_kept()
            return kept

    def flush(self) -> int:
        """
        Publish every buffered row. Return the number of the newest frame; all is confirmed once `acked_fsn` reaches it.

        On return the rows survive the death of this process (with ``sf_dir``) and, with the durabilities `flush` and
        `append`, a power loss. They are not necessarily confirmed by the server yet.

        Raises:
            UsageError: some rows cannot be sent. They were dropped; all others were published.
            CapacityError: no space became free. The rows stay buffered; flush again.
            SenderHaltedError, StoreFailedError, StoreClosedError: see there.
        """
        with self._guard:
            self._require_usable()
            self._publish()
            return self._slot.ring.published_fsn

    def _publish(self) -> None:
        tables, self._tables = list(self._tables.values()), {}
        self._rows = 0
        self._buffered_bytes = 0
        refused: list[UsageError] = []
        full: CapacityError | None = None
        try:
            self._push()
        except CapacityError as error:
            full = error
        for message in self._encode(tables, refused):
            if full is None:
                try:
                    self._append(message)
                    continue
                except CapacityError as error:
                    full = error
            self._ready.append(bytes(message))
        if full is not None:
            raise full
        self._sync_what_is_kept()  # rows of this call and of earlier ones
        if refused:
            raise UsageError(f"cannot send {counted(len(refused), 'row')}, now dropped: {refused[0]}")

    def _sync_what_is_kept(self) -> None:
        if self.settings.durability == "flush":
            self._slot.ring.sync()

    def _push(self) -> None:
        while self._ready:
            self._append(self._ready[0])
            self._ready.popleft()

    def _append(self, message: Buffer) -> None:
        self._slot.ring.append(message)
        self._loop.wake()

    def _encode(self, tables: list[RowTable], refused: list[UsageError]) -> Iterator[Buffer]:
        """
        Yield messages that contain *tables*, in order. Each is valid until the next one is requested.

        Tables that are too large are split in half. Errors of rows that cannot be sent are added to *refused*.
        """
        if not tables:
            return
        try:
            packed = [one.pack() for one in tables]
            dialect, schemas_max = self.settings.dialect, self.settings.schemas_max
            message = encode_message(
                packed, dialect=dialect, shared=self._symbol_ids, schemas_max=schemas_max, into=self._buffer
            )
            limit = self._limit(sum(one.rows for one in tables))
            if len(message) > limit and len(tables) == tables[0].rows == 1:
                message = encode_message(packed, dialect=dialect)  # without the symbols of other rows
            if len(message) <= limit:
                yield message
                return
            trouble = UsageError(f"the message has {len(message)} bytes; a segment and the server take at most {limit}")
        except UsageError as error:
            trouble = error
        if len(tables) > 1:
            half = len(tables) // 2
            yield from self._encode(tables[:half], refused)
            yield from self._encode(tables[half:], refused)
        elif tables[0].rows > 1:
            for one in tables[0].split():
                yield from self._encode([one], refused)
        else:
            refused.append(trouble)

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreClosedError("the sender was closed")
        halted = self._loop.halted
        if halted is not None:
            self._seen = halted
            raise SenderHaltedError(halted)

    # ---- confirmation

    @renamed_keyword("timeout_s", "timeout")
    def wait_until_confirmed(self, fsn: int, timeout: float) -> bool:
        """
        Wait up to *timeout* seconds until the server has confirmed the frame *fsn*. Return whether it has.

        Raises:
            SenderHaltedError: the sender has halted, so the frame will not be confirmed.
        """
        deadline = self._clock.monotonic() + timeout
        while not self._slot.ring.wait_until_confirmed(fsn, min(0.2, max(0.0, deadline - self._clock.monotonic()))):
            if self._loop.halted is not None:
                self._seen = self._loop.halted
                raise SenderHaltedError(self._loop.halted)
            if self._clock.monotonic() >= deadline:
                return False
        return True

    # ---- resuming and closing

    def resume_after_halt(self) -> None:
        """
        Resume sending after a halt, from the first unconfirmed frame.

        Raises:
            UsageError: the sender has not halted.
            StoreClosedError: the sender was closed.
        """
        with self._guard:
            if self._closed:
                raise StoreClosedError("the sender was closed")
            if self._loop.halted is None:
                raise UsageError("the sender has not halted")
            self._loop.stop(_STOP_S)
            self._seen = None
            self._loop.resume()
            self._loop.start(f"quiver-qwp-sender {self.settings.sender_id}")

    def close(self) -> None:
        """
        Publish the buffered rows, wait up to `close_flush_timeout_millis` for the server, and release all resources.

        Idempotent. Unconfirmed frames stay on disk for the next sender of this slot; frames in memory are lost.
        Everything is released even if this raises.

        Raises:
            SenderHaltedError: the sender has halted, and neither the error handler nor a call of the producer has
                received the error.
            QuiverError, OSError: the last rows could not be published.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
            with ExitStack() as release:
                release.callback(self._inbox.close)
                release.callback(self._slot.close)
                release.callback(self._loop.release)
                release.callback(self._loop.stop, _STOP_S)
                release.callback(self._drainers.stop)
                self._publish()
                self._drain()
                # Independent of the time-out: a caller that only ever calls close must learn of a failure, too.
                halted = self._loop.halted
                if halted is not None and not self._inbox.has_notified_caller and self._seen is not halted:
                    raise SenderHaltedError(halted)

    def _drain(self) -> None:
        ring = self._slot.ring
        timeout = self.settings.close_flush_s
        if timeout <= 0:
            return
        deadline = self._clock.monotonic() + timeout
        while not ring.wait_until_confirmed(ring.published_fsn, min(0.2, max(0.0, deadline - self._clock.monotonic()))):
            if self._loop.halted is not None:
                return
            if self._clock.monotonic() >= deadline:
                self._observer.event(
                    "qwp.close_undrained",
                    level=logging.WARNING,
                    frames=ring.backlog,
                    kept=self.settings.sf_dir is not None,
                )
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
