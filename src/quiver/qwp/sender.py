"""
`Sender`: rows and tables in, frames into the slot; another thread brings them to the server.

::

    row, row, row … ─▶ flush ─▶ messages ─▶ ring ─▶ (thread) ─▶ server
    table ────────────────────▶ messages ─▶

The producer waits for room in the ring and, with the durabilities `flush` and `append`, for the disk; never for the
wire.
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
_HEADROOM_BYTES = 160  # of a message, for what is not the row, when a row's size is judged


@dataclass(frozen=True, slots=True)
class _Due:
    """When buffered rows are flushed: their number, their bytes, the time. And how large the next one may be."""

    rows: float
    nbytes: float
    at_s: float
    row_bytes_max: int


class Sender(SenderFigures):
    """
    Sends rows to a server that speaks QWP, and keeps them until the server has them.

    Made by `from_conf`, `from_env` or `connect`. Thread-safe; rows of several threads share one buffer. To be closed.

    Args:
        settings: everything a connect string can say.
        on_error: is called with each `SenderError`, in a thread of its own; without it they are logged.
        on_drainer: is told what becomes of adopted slots, from their threads.
        fs, clock, observer: the disk, time, and who is told what happens.

    Raises:
        SenderHaltedError: no server answered, or it refused the credentials (not with ``initial_connect_retry=async``).
        DirectoryInUseError: another process sends from this slot.
        CorruptionError: frames are missing in the slot, or it belongs to a newer version. Nothing was deleted.
        OSError: the disk refused.
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
        self._observer: Observer = observer if observer is not None else InMemoryObserver()
        self._guard = threading.RLock()  # the buffer and what becomes of it
        self._tables: dict[str, RowTable] = {}
        self._ready: deque[bytes] = deque()  # encoded, and there was no room yet
        self._symbol_ids = SymbolIds()
        self._rows = 0
        self._buffered_bytes = 0
        self._due = _Due(math.inf, math.inf, math.inf, 0)  # asked anew with the first row
        self._closed = False
        self._seen: SenderError | None = None  # the end of it, as the producer was told
        self._counters = Counters()
        self._inbox = ErrorInbox(on_error, settings.inbox_capacity, clock=clock, observer=self._observer)
        self._message_bytes_max = min(settings.ring.payload_bytes_max, settings.message_bytes_max)
        self._buffer = MessageBuffer(min(settings.buffer_bytes, settings.message_bytes_max), settings.message_bytes_max)
        if settings.tls and not settings.tls_verify:
            self._observer.event(
                "qwp.tls_unverified", level=logging.WARNING, warning="anybody may answer as the server"
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

    # ---- ways to make one

    @classmethod
    def from_conf(cls, conf: str, **components: Any) -> Self:
        """
        Return a sender as the connect string *conf* says; *components* are those of the class.

        Raises:
            SettingsError: the string says something that is not known.
            QuiverError, OSError: as the class.
        """
        return cls(SenderSettings.from_conf(conf), **components)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **components: Any) -> Self:
        """
        Return a sender as the connect string in ``QDB_CLIENT_CONF`` says.

        Raises:
            SettingsError: there is none, or it says something that is not known.
            QuiverError, OSError: as the class.
        """
        return cls.from_conf(conf_from_env(environ), **components)

    @classmethod
    def connect(cls, service: str = "ws", **keys: Any) -> Self:
        """
        Return a sender from the keys of a connect string, given as arguments: ``Sender.connect(addr="host:9000")``.

        Raises:
            SettingsError: a key is not known, or its value is wrong.
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
        Buffer one row; flush when it is time (`auto_flush_*`).

        *at* is when it happened: nanoseconds since the epoch, a datetime with a zone, or None for the server's clock.

        Raises:
            UsageError: a name or value cannot be sent. Nothing of the row was kept. Or it was time to flush, and the
                message says how many buffered rows cannot be sent and are gone; all others are published.
            CapacityError: earlier rows found no room, so this one was not kept.
            SenderHaltedError, StoreFailedError, StoreClosedError: see there.
        """
        with self._guard:
            if self._closed or self._loop.halted is not None:
                self._require_usable()
            if self._ready:
                self._push()
            rows = self._tables.get(table)
            if rows is None:
                rows = RowTable(table, name_bytes_max=self.settings.name_bytes_max)
            if not self._rows:
                self._due = self._when_due()
            due = self._due
            size = rows.append(symbols or {}, columns or {}, at, bytes_max=due.row_bytes_max)
            if rows.rows == 1:
                self._tables[table] = rows
            self._buffered_bytes += size
            self._rows += 1
            if self._rows >= due.rows or self._buffered_bytes >= due.nbytes or self._clock.monotonic() >= due.at_s:
                try:
                    self._publish()
                except CapacityError:
                    # The row is kept; whoever comes next is told that there is no room.
                    self._observer.count("quiver.qwp.flushes_postponed_total")

    def _limit(self, rows: int = 1) -> int:
        """
        Return the bytes of the largest message of so many rows that fits into a segment and that the server takes.

        Before a server has said what it takes, several rows go together only as far as any server takes them: a single
        one cannot be made smaller, and may have to wait for a server that takes it.
        """
        said = self._loop.batch_bytes_max
        if not said and rows > 1:
            said = self.settings.offline_bytes_max
        return min(self._message_bytes_max, said or self._message_bytes_max)

    def _when_due(self) -> _Due:
        settings = self.settings
        nbytes: float = math.inf
        if settings.auto_flush_bytes is not None:
            nbytes = settings.auto_flush_bytes
        elif settings.auto_flush_rows is not None:
            nbytes = self._limit(2)  # what fills a frame gains nothing by waiting; off means off for rows and time
        return _Due(
            math.inf if settings.auto_flush_rows is None else settings.auto_flush_rows,
            nbytes,
            math.inf if settings.auto_flush_s is None else self._clock.monotonic() + settings.auto_flush_s,
            self._limit() - _HEADROOM_BYTES,
        )

    def table(self, name: str, data: Any, *, symbols: Collection[str] = (), at: str | None = None) -> int:
        """
        Send an Arrow table, a record batch or a pandas data frame; return how many rows it had.

        *symbols* names text columns to be sent as symbols, *at* the column that is the designated timestamp. The index
        of a data frame is not sent, and a column in which there is nothing but None is left out.

        Raises:
            UsageError: a name, type or value cannot be sent. Nothing was kept.
            PartialWriteError: there was no room for all rows, or one behind the first messages cannot be sent.
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
        Publish every buffered row; return the number of the newest frame, which `acked_fsn` reaches when all is there.

        On return the rows survive the death of this process (with ``sf_dir``), and with the durabilities `flush` and
        `append` a loss of power. Whether the server has them is another matter.

        Raises:
            UsageError: some rows cannot be sent. They are gone, all others are published.
            CapacityError: there was no room. The rows stay buffered: flush again.
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
        self._sync_what_is_kept()  # by this call, or by one before it
        if refused:
            raise UsageError(f"{len(refused)} rows cannot be sent and are gone: {refused[0]}")

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
        Yield messages that hold *tables*, in order, each valid until the next one is asked for.

        What is too large is halved; what cannot be sent ends in *refused*.
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
                message = encode_message(packed, dialect=dialect)  # without symbols of other rows
            if len(message) <= limit:
                yield message
                return
            trouble = UsageError(
                f"a message of {len(message)} bytes; {limit} fit into a segment, or the server takes so many"
            )
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

    # ---- what is known

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

    # ---- the end

    def resume_after_halt(self) -> None:
        """
        Go on after a halt, with the first frame that is not confirmed.

        Raises:
            UsageError: the sender has not halted.
            StoreClosedError: it was closed.
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
        Publish what is buffered, wait for the server as long as `close_flush_timeout_millis` says, and let go.

        Idempotent. What the server has not confirmed by then stays on disk for the next sender of this slot; in memory
        it is lost.
        Everything is released, also when this raises.

        Raises:
            SenderHaltedError: the sender has halted, and neither a handler of the caller's nor one of its calls was
            told. QuiverError, OSError: the last rows could not be published.
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
                # Neither waits nor depends on the time-out: who only ever calls close must hear of a failure, too.
                halted = self._loop.halted
                if halted is not None and not self._inbox.has_told_caller and self._seen is not halted:
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
