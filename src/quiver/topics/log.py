"""One topic as its users see it: append to it, read it, seal it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.topics.engine import BatchMessage, Durable, Start, TopicEngine, as_bytes
from quiver.topics.format.message import NS_PER_MS, Message
from quiver.topics.producer import WINDOW_MESSAGES, Producer, Producers
from quiver.topics.reader import TopicReader
from quiver.topics.wal.files import OnLost

__all__ = ["OpenTopic", "TopicLog"]

_LATENCY_EVERY = 128
_TIME_NS_MAX = (1 << 63) - 1
"""The year 2262: readers store publish times in 64 bits."""

_NS_PER_S = 1_000_000_000


class TopicLog:
    """
    The log of one topic. Created by `TopicStore.topic`. Thread-safe.

    An appended message is in the file when `append` returns, and survives the death of the process. It survives a power
    loss from the next sync on, which happens by interval or size, with `durable=True`, or with `flush`.
    """

    def __init__(self, engine: TopicEngine, producers: Producers) -> None:
        self.topic = engine.topic
        self._engine = engine
        self._producers = producers
        # `append` is called for each message: it takes these without going through the engine.
        self._clock = engine.clock
        self._now_ns = engine.clock.now_ns
        self._payload_bytes_max = engine.payload_bytes_max
        self._syncs_each = engine.syncs_each
        self._codec = engine.codec
        self._plain = engine.codec.tail_of(None)
        self._write = engine.wal.append

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        payload: Buffer,
        *,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
        publish_time_ns: int | None = None,
        durable: Durable = False,
    ) -> int:
        """
        Append one message and return its offset. The message is in the file on return.

        Args:
            payload: its bytes.
            attributes: texts by name.
            key: selects the consumer of a key-shared subscription; stored as an attribute.
            publish_time_ns: stored in whole milliseconds; None is now.
            durable: True waits for the sync, ``"object"`` also for the upload, without a limit: `wait_until_uploaded`
                takes a timeout.

        Raises:
            UsageError: the message is too large, an attribute is not text, or *durable* needs an object store.
            CapacityError: the disk is full; nothing was stored.
            NotDurableError: the message is in the log, but may not be in the object store; see `wait_until_uploaded`.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the topic was closed, unloaded or sealed.
        """
        if durable and durable is not True:
            self._engine.require_uploads(durable)
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        if len(payload) > self._payload_bytes_max:
            raise self._engine.too_large(len(payload))
        now_ns = self._now_ns()
        tail = (
            self._plain
            if attributes is None and key is None
            else self._engine.encode_tail(attributes, key, self._codec)
        )
        time_ms = now_ns // NS_PER_MS if publish_time_ns is None else self._time_ms(publish_time_ns)
        offset = self._write(payload, time_ms, tail)
        if durable or self._syncs_each:
            self._engine.make_durable(offset, durable)
        if not offset % _LATENCY_EVERY:
            took_s = max(0, self._clock.now_ns() - now_ns) / _NS_PER_S  # the clock may be set back
            self._engine.observer.record("danube_wal_append_latency_seconds", took_s, topic=self.topic)
        return offset

    def append_batch(self, messages: Iterable[BatchMessage], *, durable: Durable = False) -> range:
        """
        Append *messages* in one write and return their offsets: all of them are in the file on return, or none.

        Args:
            messages: each a payload, or a tuple of payload, attributes and optionally the key.
            durable: as for `append`.

        Raises:
            UsageError, CapacityError, StoreFailedError, StoreClosedError: as `append`; nothing was stored.
            NotDurableError: as `append`; all messages are in the log.
        """
        if durable and durable is not True:
            self._engine.require_uploads(durable)
        batch = self._engine.encode_batch(messages, self._codec)
        first = self._engine.wal.append_batch(batch)
        if batch and (durable or self._syncs_each):
            self._engine.make_durable(first + len(batch) - 1, durable)
        return range(first, first + len(batch))

    def wait_until_uploaded(self, offset: int, timeout: float | None = None) -> None:
        """
        Return when the message *offset* is in the object store, waiting up to *timeout* seconds; None has no limit.

        The message is synced first, and uploaded immediately with everything that is synced by then. Concurrent
        callers share the upload. A failed upload is retried every few seconds.

        Raises:
            NotDurableError: *timeout* passed. The message is in the log and its upload continues: do not append it
                again.
            UsageError: the topic has no such message yet, or no object store.
            CorruptionError: the message is damaged in the log and cannot be uploaded.
            FencedError: another process has taken over the topic.
            StoreClosedError, StoreFailedError: nothing will be uploaded any more.
        """
        self._engine.wait_until_uploaded(offset, timeout)

    def producer(self, name: str, *, window_messages: int = WINDOW_MESSAGES) -> Producer:
        """
        Return the producer *name*, which numbers its messages: a message that it sends again is appended once.

        Its last number is searched in the newest *window_messages* of the topic, which are read, unless this process
        has the producer already. Messages that others appended after its last one must fit in this window, too.

        Raises:
            UsageError: *name* is not valid.
            DataLossError: some of these messages are lost or damaged: the last number cannot be determined.
            StoreFailedError, TransientError: they cannot be read now.
        """
        return self._producers.get(name, window_messages)

    def _time_ms(self, publish_time_ns: int) -> int:
        if not isinstance(publish_time_ns, int) or not 0 <= publish_time_ns <= _TIME_NS_MAX:
            raise UsageError(f"{self.topic}: a publish time is nanoseconds since 1970, not {publish_time_ns!r}")
        return publish_time_ns // NS_PER_MS

    def flush(self) -> None:
        """
        Return when everything appended so far is synced.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
        """
        self._engine.flush()

    def current_offset(self) -> int:
        """Return the offset that the next message gets."""
        return self._engine.current_offset()

    def durable_offset(self) -> int:
        """Return the offset below which everything is synced."""
        return self._engine.durable_offset()

    def start_offset(self) -> int:
        """Return the oldest offset that is still available, locally or in objects."""
        return self._engine.start_offset()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def reader(
        self, start: Start = "latest", *, follow: bool = True, stop: int | None = None, on_lost: OnLost = "raise"
    ) -> TopicReader:
        """
        Return a reader from *start* on.

        Args:
            start: an offset, which may be beyond the end; ``"earliest"``; ``"latest"``, for messages appended after
                this call; or a datetime: the first message published then or later, provided that publish times only
                increase.
            follow: wait for more at the end; otherwise the reader ends with the messages that are there now.
            stop: the offset after the last message wanted.
            on_lost: ``"raise"`` a DataLossError once for each lost range, or ``"skip"`` it and add it to `lost`.

        Raises:
            UsageError: *start* is not valid.
        """
        return self._engine.reader(start, follow=follow, stop=stop, on_lost=on_lost)

    def read_cached_since(self, after_offset: int) -> tuple[list[tuple[int, Message]], int]:
        """
        Return the messages in memory after *after_offset*, oldest first, and the last offset of them.

        They reach up to the tip without a gap. Evicted messages are missing: use a `reader` for them. When there are
        none, the last offset is *after_offset*.
        """
        return self._engine.read_cached_since(after_offset)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def stats(self) -> dict[str, int]:
        """Return current figures."""
        return self._engine.stats()

    def seal(self) -> int:
        """
        Accept no more messages; everything is synced and in sealed files on return. Return the next offset.

        Raises:
            CapacityError: there is not enough space; nothing has changed.
            StoreFailedError: the disk failed, now or earlier.
        """
        return self._engine.wal.seal()

    def close(self) -> None:
        """
        Sync, write the checkpoint and close the files. Idempotent.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
        """
        self._engine.close()


class OpenTopic(NamedTuple):
    """A topic that a `TopicStore` has open: its engine, its producers, and the log that users get."""

    engine: TopicEngine
    producers: Producers
    log: TopicLog

    @classmethod
    def of(cls, engine: TopicEngine) -> OpenTopic:
        """Return the topic of *engine*."""
        producers = Producers(engine)
        return cls(engine, producers, TopicLog(engine, producers))
