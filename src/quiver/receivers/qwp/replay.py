"""
Detection of tables that a client sends again on its next connection, as opposed to equal tables of another client.

A message has no number that outlives its connection, and a client has no name. Two facts are certain. A client resends
what it does not know to be stored: first, in the old order, unchanged. And it has one connection at a time. So a table
can only repeat a table from a connection that is over, and either

- its storage was never confirmed: then the sender does not matter, because no copy is confirmed twice; or
- its connection belonged to the same sender (`sender_key`) and broke before the client was known to have received all
  confirmations. This excludes rows without timestamps: two heartbeats may be equal.

If a connection is closed in order, after its client answered a ping that was sent with the last confirmation, nothing
can be resent. Such a connection is forgotten.

A broken connection is not always detected. So if two connections of the same sender send the same table, the older one
is pinged first (`UnprovenError`): an answer proves two clients, the end of the connection proves one.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from blake3 import blake3

from quiver.clock import SYSTEM_CLOCK, Clock, SteadyTime
from quiver.observe import Observer
from quiver.qwp.wire.decoded import TABLE_KEY
from quiver.receivers.qwp.ledger import ReplayLedger, Stored

__all__ = ["Life", "ReplayIndex", "SupersededError", "UnprovenError", "is_stamped", "sender_key", "table_digest"]

_DIGEST_BYTES = 16
_DESIGNATED_KEY = b"qwp.designated"
_KNOWN_BYTES = 64 << 20
"""A client deletes confirmed rows in segments of a few MiB; a power loss may restore some of them."""
_TRIM_BYTES = 1 << 20
_EXPIRE_S = 60.0


def table_digest(batch: pa.RecordBatch) -> bytes:
    """Return the identity of a table: 128 bits of BLAKE3 over its name, its columns and its rows."""
    digest = blake3()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    digest.update(memoryview(sink.getvalue()))
    return digest.digest(length=_DIGEST_BYTES)


def is_stamped(batch: pa.RecordBatch) -> bool:
    """Return whether the client set the designated timestamp of every row."""
    for index, column in enumerate(batch.schema):
        if (column.metadata or {}).get(_DESIGNATED_KEY) == b"true":
            return batch.column(index).null_count == 0
    return False


def sender_key(client_id: str | None, host: str, authorization: Sequence[str]) -> bytes:
    """Return the identity of a sender: its client id, or the host that it connects from; and its credentials."""
    parts = [f"id:{client_id}" if client_id else f"host:{host}", *authorization]
    digest = blake3()
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part.encode("utf-8", "surrogateescape"))
    return digest.digest(length=_DIGEST_BYTES)


class UnprovenError(Exception):
    """The table is repeated if these connections are over, and new if they are alive: ping them, then retry."""

    def __init__(self, lives: frozenset[int]) -> None:
        super().__init__("another connection of the same sender brought the same")
        self.lives = lives


class SupersededError(Exception):
    """The tables of this connection are stored by a later one of the same client."""


class Life:
    """
    One connection, from its handshake until its last table is stored.

    The thread that talks to the client records confirmations and their receipt; these counters only grow.

    Attributes:
        number: higher than those of earlier connections.
        sender: see `sender_key`.
        opened_at: the monotonic time of its start.
        alive_at: the time of the last ping that the client has answered.
        count: the number of tables stored so far.
        nbytes: their size.
        confirmed: how many of them were confirmed to the client as stored.
        released: how many of them the client may forget: fewer, if it waits for durability.
        known: how many of them the client verifiably knows to be released.
        is_over: whether the connection gets no more answers, though its tables may still be stored.
    """

    __slots__ = (
        "alive_at",
        "confirmed",
        "count",
        "is_over",
        "is_superseded",
        "known",
        "marks",
        "nbytes",
        "number",
        "opened_at",
        "released",
        "sender",
        "storing",
    )  # fmt: skip

    def __init__(self, number: int, sender: bytes, opened_at: float) -> None:
        self.number = number
        self.sender = sender
        self.opened_at = opened_at
        self.alive_at = -1.0
        self.count = 0
        self.nbytes = 0
        self.confirmed = 0
        self.released = 0
        self.known = 0
        self.is_over = False
        self.is_superseded = False
        self.storing: bytes | None = None
        self.marks: list[tuple[int, int]] = []  # (tables, their bytes): where the oldest can be removed


class ReplayIndex:
    """
    All tables that some client may send again. Thread-safe.

    `open`, `end` and `close` only queue changes, so that they never wait for the file.

    Args:
        path: the path of the file that outlives the process; None keeps everything in memory.
        bytes_max: the size of the remembered tables per connection: as much as its client can send again.
        entries_max: the maximum number of remembered tables of all connections together.
        window_s: how long a connection is remembered after its end; None means as long as there is space.
        clock: orders handshakes and pings, and measures the window.
        observer: receives events about the file.
    """

    def __init__(
        self,
        path: str | None,
        *,
        bytes_max: int,
        entries_max: int,
        window_s: float | None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer,
    ) -> None:
        self._bytes_max = bytes_max
        self._window_s = window_s
        self._clock = clock
        self._time = SteadyTime(clock)
        self._changed = threading.Condition(threading.Lock())  # held while the file is used
        self._ledger = ReplayLedger(path, entries_max=entries_max, observer=observer)
        self._news: deque[Callable[[], None]] = deque()
        self._lives: dict[int, Life] = {}
        self._opened_at: dict[bytes, float] = {}  # sender → the start of its latest connection
        self._numbers = itertools.count(1)
        self._expired_at = clock.monotonic()

    def __len__(self) -> int:
        with self._changed:
            self._settle()
            return len(self._ledger)

    def recover(self, entries: Iterable[Any], slot: int, *, next_sequence: int) -> int:
        """
        Import the state of earlier processes, and tables that they did not record: stamped tables in *slot* of the
        log's *entries* that are unknown to the ledger.

        Returns the number of unreadable entries.
        """
        unread = 0
        found = []
        with self._changed:
            newest, heard_of = self._ledger.recover(next_sequence=next_sequence, now_ns=self._time.now_ns())
            for entry in entries:
                for payload in entry.slots if entry.sequence > heard_of else ():
                    batch = _read(payload) if payload.slot == slot else None
                    unread += payload.slot == slot and batch is None
                    if batch is not None and TABLE_KEY in (batch.schema.metadata or {}) and is_stamped(batch):
                        found.append(Stored(table_digest(batch), entry.sequence, batch.nbytes, is_stamped=True))
            if found:
                newest += 1
                self._ledger.add_unclaimed(newest, found, ended_ns=self._time.now_ns())
            self._ledger.commit()
            self._numbers = itertools.count(newest + 1)
        return unread

    def commit(self) -> None:
        """Save changes for the next process. Call it before any of them is confirmed."""
        with self._changed:
            self._settle()
            self._ledger.commit()

    def shut(self, *, next_sequence: int) -> None:
        """Close the file. Idempotent. All stored tables below *next_sequence* have been recorded here."""
        with self._changed:
            self._settle()
            self._ledger.record_sequence(next_sequence - 1)
            self._ledger.close()

    # ---- connections

    def open(self, sender: bytes) -> Life:
        """Start a connection."""
        life = Life(next(self._numbers), sender, self._clock.monotonic())
        self._news.append(lambda: self._opened(life))
        return life

    def end(self, life: Life) -> None:
        """Record that the connection gets no more answers, though its tables may still be stored. Idempotent."""
        if not life.is_over:
            life.is_over = True
            now_ns = self._time.now_ns()
            self._news.append(lambda: self._ended(life, now_ns))

    def close(self, life: Life, *, in_order: bool) -> None:
        """
        Record that no more tables of the connection are stored. *in_order* means that the client closed it, and
        everything it sent was handled.
        """
        self.end(life)
        self._news.append(lambda: self._closed(life, in_order=in_order))

    # ---- tables

    def recognize(self, life: Life, digest: bytes, *, stamped: bool) -> int | None:
        """
        Return the number of the stored table that the next one of *life* repeats: from now on it belongs to *life*.
        Returns None for a new table.

        Waits while a closed connection is still storing it.

        Raises:
            UnprovenError: the answer depends on whether other connections are over.
        """
        with self._changed:
            while True:
                self._settle()
                doubted = [one for one in self._lives.values() if _may_be_former(one, life) and self._has(one, digest)]
                if doubted:
                    raise UnprovenError(frozenset(one.number for one in doubted))
                found = self._ledger.find_repeated(
                    life.number, digest, sender=life.sender, opened_at=life.opened_at, since_ns=self._since_ns()
                )
                if found is not None:
                    break
                over = (one for one in self._lives.values() if one.is_over and one.number < life.number)
                if not any(one.storing == digest for one in over):
                    return None
                self._clock.wait(self._changed, None)
            self._ledger.claim(found)
            former = self._lives.get(found.life)
            if former is not None and found.is_same_sender:
                former.is_superseded = True
            self._add(life, Stored(digest, found.sequence, found.nbytes, stamped))
            return found.sequence

    def begin(self, life: Life, digest: bytes) -> None:
        """
        Record that the next table of *life* is being stored. The caller must call `finish` in every case.

        Raises:
            SupersededError: it must not be stored. The client has reconnected, and resends it there.
            UnprovenError: the answer depends on whether this connection is over.
        """
        with self._changed:
            self._settle()
            if not life.is_superseded and life.alive_at < self._opened_at.get(life.sender, -1.0):
                later = (one for one in self._lives.values() if _may_be_former(life, one, even_over=True))
                if any(self._has(one, digest) for one in later):
                    if not life.is_over:
                        raise UnprovenError(frozenset({life.number}))
                    life.is_superseded = True
            if life.is_superseded:
                raise SupersededError
            life.storing = digest

    def finish(self, life: Life, stored: Stored | None) -> None:
        """End what `begin` started; None: the table is not stored."""
        with self._changed:
            life.storing = None
            if stored is not None:
                self._add(life, stored)
            self._changed.notify_all()

    # ---- under the lock

    def _settle(self) -> None:
        while self._news:
            self._news.popleft()()

    def _opened(self, life: Life) -> None:
        self._lives[life.number] = life
        self._opened_at[life.sender] = life.opened_at
        self._ledger.open_life(life.number, life.sender)
        now = self._clock.monotonic()
        if self._window_s is not None and now - self._expired_at >= _EXPIRE_S:
            self._expired_at = now
            self._ledger.expire(self._since_ns())

    def _ended(self, life: Life, now_ns: int) -> None:
        self._ledger.end_life(
            life.number, confirmed=life.confirmed, released=life.released, alive_at=life.alive_at, ended_ns=now_ns
        )

    def _closed(self, life: Life, *, in_order: bool) -> None:
        del self._lives[life.number]
        if not any(one.sender == life.sender for one in self._lives.values()):
            del self._opened_at[life.sender]
        if not life.count or (in_order and life.known == life.count):
            self._ledger.drop_life(life.number)

    def _since_ns(self) -> int:
        return 0 if self._window_s is None else self._time.now_ns() - int(self._window_s * 1e9)

    def _has(self, life: Life, digest: bytes) -> bool:
        return life.storing == digest or self._ledger.has(life.number, digest)

    def _add(self, life: Life, stored: Stored) -> None:
        self._ledger.add(life.number, life.count, stored)
        life.count += 1
        life.nbytes += stored.nbytes
        if life.nbytes - (life.marks[-1][1] if life.marks else 0) >= _TRIM_BYTES:
            life.marks.append((life.count, life.nbytes))
            self._trim(life)

    def _trim(self, life: Life) -> None:
        """Forget tables that the client cannot send again."""
        marks = life.marks
        known = bisect.bisect_right(marks, (life.known, life.nbytes))
        known_bytes = marks[known - 1][1] if known else 0
        first = max(life.nbytes - self._bytes_max, known_bytes - _KNOWN_BYTES)
        cut = bisect.bisect_right(marks, first, key=lambda mark: mark[1])
        if cut:
            self._ledger.forget(life.number, marks[cut - 1][0])
            del marks[:cut]


def _may_be_former(one: Life, life: Life, *, even_over: bool = False) -> bool:
    """Return whether *one* may be an earlier connection of the client of *life*, and still counts as open."""
    return (
        one.number < life.number
        and one.sender == life.sender
        and one.alive_at < life.opened_at
        and (even_over or not one.is_over)
    )


def _read(slot: Any) -> pa.RecordBatch | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(slot.payload)) as stream:
            batches = list(stream)
    except pa.ArrowException:
        return None
    return batches[0] if len(batches) == 1 else None
