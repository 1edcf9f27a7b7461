"""
Tables stored a short while ago, so that what a client sends again on its next connection is not stored twice.

A message has no number that outlives its connection. What a client sends again it sends first, in the old order, and
unchanged; so only the first messages of a connection are held against what other connections brought, up to the first
table that is new. Rows without a time of their own may say the same and still be others: such a table is a repetition
only if the connection that brought it is over and never told that it is stored.

A connection that broke may leave a queue behind. Who comes back sends all of it again, and is faster than the queue, so
two would store the same side by side: from the first repetition on, the older of the two stores nothing that is new.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from blake3 import blake3

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.qwp.wire.decoded import TABLE_KEY

__all__ = ["Kept", "ReplayWindow", "is_stamped", "table_digest"]

_DIGEST_BYTES = 16
_DESIGNATED_KEY = b"qwp.designated"
_LOG = 0
"""The client of what was found in the log."""


def table_digest(batch: pa.RecordBatch) -> bytes:
    """
    Return what a table is known by: 128 bits of BLAKE3 over its name, its columns and its rows.
    """
    digest = blake3()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    digest.update(memoryview(sink.getvalue()))
    return digest.digest(length=_DIGEST_BYTES)


def is_stamped(batch: pa.RecordBatch) -> bool:
    """
    Say whether every row has its designated timestamp from the client.
    """
    for index, column in enumerate(batch.schema):
        if (column.metadata or {}).get(_DESIGNATED_KEY) == b"true":
            return batch.column(index).null_count == 0
    return False


class Kept:
    """
    One table that is stored, or being stored: `sequence` is None until it is.
    """

    __slots__ = ("client", "digest", "is_told", "sequence", "stored_at")

    def __init__(self, digest: bytes, client: int, stored_at: float, sequence: int | None = None) -> None:
        self.digest = digest
        self.client = client
        self.stored_at = stored_at
        self.sequence = sequence
        self.is_told = False
        """The client may have read that it is stored."""


class ReplayWindow:
    """
    What was stored within the last *window_s* seconds. Thread-safe.

    Args:
        window_s: how long a table is remembered.
        entries_max: beyond this many the oldest are forgotten early.
        clock: measures the window.
    """

    def __init__(self, window_s: float, *, entries_max: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.window_s = window_s
        self._entries_max = entries_max
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._known: dict[bytes, deque[Kept]] = {}
        self._oldest: deque[Kept] = deque()
        self._open: set[int] = set()  # connections of which something may still be stored
        self._live: set[int] = set()  # … and told
        self._replaced: set[int] = set()  # … and not stored: their clients have come back
        self._numbers = itertools.count(_LOG + 1)

    def __len__(self) -> int:
        with self._changed:
            return len(self._oldest)

    def open_client(self) -> int:
        """
        Return the number of a new connection.
        """
        with self._changed:
            number = next(self._numbers)
            self._open.add(number)
            self._live.add(number)
            return number

    def silence_client(self, client: int) -> None:
        """
        Nothing more is told on the connection, though what it brought may still be stored. Again is fine.
        """
        with self._changed:
            self._live.discard(client)

    def close_client(self, client: int) -> None:
        """
        The connection is over: nothing more is stored of it, and nothing is told on it.
        """
        with self._changed:
            for numbers in (self._open, self._live, self._replaced):
                numbers.discard(client)

    def claim(self, digest: bytes, client: int, *, stamped: bool) -> Kept | None:
        """
        Return the table of another connection that this one repeats, which is *client*'s from now on; None: it is new,
        or *client* was replaced, which `begin` says.

        Waits while another connection is just storing it.
        """
        with self._changed:
            while True:
                found = self._found(digest, client, stamped=stamped)
                if found is None:
                    return None
                self._replace(found, client)
                if client in self._replaced:
                    return None
                if found.sequence is not None:
                    found.client = client
                    found.is_told = False
                    return found
                self._clock.wait(self._changed, None)

    def _found(self, digest: bytes, client: int, *, stamped: bool) -> Kept | None:
        oldest_kept = self._clock.monotonic() - self.window_s
        for kept in self._known.get(digest, ()):
            if kept.client == client or kept.stored_at < oldest_kept:
                continue
            if stamped or not (kept.is_told or kept.client == _LOG or kept.client in self._live):
                return kept
            if client < kept.client and client not in self._live:
                return kept  # the other way round: who comes back was faster
        return None

    def _replace(self, found: Kept, client: int) -> None:
        # Clients that do not know of each other may say the same, too: one that is there and was told goes on.
        older = min(found.client, client)
        if older in self._open and (older not in self._live or not found.is_told):
            self._replaced.add(older)

    def begin(self, digest: bytes, client: int) -> Kept | None:
        """
        Say that *client*'s table is being stored; the caller must call `finish`, whatever happens.

        None: it is not to be stored. The client has come back on another connection, and sends it again there.
        """
        kept = Kept(digest, client, self._clock.monotonic())
        with self._changed:
            if client in self._replaced:
                return None
            self._remember(kept)
        return kept

    def finish(self, kept: Kept, sequence: int | None) -> None:
        """
        End what `begin` began: the number under which the table is stored, or None when it is not.
        """
        with self._changed:
            kept.sequence = sequence
            if sequence is None:
                self._forget(kept)
                self._oldest.remove(kept)
            self._changed.notify_all()

    def rebuild(self, entries: Iterable[Any], slot: int) -> int:
        """
        Remember the stamped tables in *slot* of the log's *entries*, oldest first, that are younger than the window.

        Returns how many could not be read.
        """
        now_ns = self._clock.now_ns()
        unread = 0
        for entry in entries:
            # The wall clock may have stepped back since: what lies in the future counts as just stored.
            age_s = max(0, now_ns - entry.ingested_at_ns) / 1e9
            if age_s > self.window_s:
                continue
            for found in entry.slots:
                if found.slot != slot:
                    continue
                batch = _read(found)
                if batch is None:
                    unread += 1
                elif TABLE_KEY in (batch.schema.metadata or {}) and is_stamped(batch):
                    stored_at = self._clock.monotonic() - age_s
                    with self._changed:
                        self._remember(Kept(table_digest(batch), _LOG, stored_at, entry.sequence))
        return unread

    def _remember(self, kept: Kept) -> None:
        self._known.setdefault(kept.digest, deque()).append(kept)
        self._oldest.append(kept)
        oldest_kept = self._clock.monotonic() - self.window_s
        while len(self._oldest) > self._entries_max or self._oldest[0].stored_at < oldest_kept:
            if self._oldest[0].sequence is None:
                break  # somebody waits for it
            self._forget(self._oldest.popleft())

    def _forget(self, kept: Kept) -> None:
        same = self._known[kept.digest]
        same.remove(kept)
        if not same:
            del self._known[kept.digest]


def _read(slot: Any) -> pa.RecordBatch | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(slot.payload)) as stream:
            batches = list(stream)
    except pa.ArrowException:
        return None
    return batches[0] if len(batches) == 1 else None
