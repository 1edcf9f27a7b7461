"""One topic: append to it, read it, seal it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal
from weakref import WeakValueDictionary

from quiver.clock import Clock
from quiver.errors import NotDurableError, QuiverError, StoreClosedError, UsageError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import Buffer, FileSystem
from quiver.primitives.scan import Damage
from quiver.topics.cache import MessageCache
from quiver.topics.cold.deleter import LocalDeleter
from quiver.topics.cold.pieces import ColdReader
from quiver.topics.format.message import ATTRIBUTES_MAX, KEY_ATTRIBUTE, NS_PER_MS, Message, MessageCodec
from quiver.topics.format.names import check_producer
from quiver.topics.producer import WINDOW_MESSAGES, Producer
from quiver.topics.reader import TopicReader
from quiver.topics.recovery import recover
from quiver.topics.settings import MESSAGE_OVERHEAD_BYTES, WalSettings
from quiver.topics.wal.files import OnLost, Recovered
from quiver.topics.wal.writer import Wal

__all__ = ["Durable", "Start", "TopicLog"]

Start = int | datetime | Literal["earliest", "latest"]

Durable = bool | Literal["object"]
"""How durable a message is when its append returns: in the file, synced (True), or in the object store, too."""

BatchMessage = Buffer | tuple[Buffer, Mapping[str, str] | None] | tuple[Buffer, Mapping[str, str] | None, str | None]
"""A payload, or with its attributes, or with both and its key."""

_LATENCY_EVERY = 128
_TIME_NS_MAX = (1 << 63) - 1
"""The year 2262: what reads messages keeps their times in 64 bits."""

_TUPLES = (2, 3)
_NS_PER_S = 1_000_000_000


class TopicLog:
    """
    The log of one topic. Made by `TopicStore.topic`. Thread-safe.

    An append is in the file when it returns and survives the death of the process; it survives a power loss from the
    next sync on, which comes by interval or size, with `durable=True`, or with `flush`.
    """

    def __init__(
        self,
        topic: str,
        directory: str | None,
        *,
        settings: WalSettings,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        next_offset_min: int = 0,
        producer_name: str = "",
        open_cold: Callable[[], ColdReader] | None = None,
    ) -> None:
        self.topic = topic
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._now_ns = clock.now_ns
        self._payload_bytes_max = settings.max_message_size
        self.syncs_each = not settings.fsync_interval_ms
        """Whether each append waits for its sync."""
        self._observer = observer
        self._codec = MessageCodec(topic, producer_name=producer_name)
        self._plain = self._codec.tail_of(None)
        recovered = Recovered(next_offset=next_offset_min, first_offset=next_offset_min)
        if directory is not None:
            recovered = recover(
                fs, directory, file_name=settings.file_name, observer=observer, next_offset_min=next_offset_min
            )
        self._cache = MessageCache(
            count_max=settings.cache_capacity,
            bytes_max=settings.cache_max_bytes,
            first_offset=recovered.next_offset,
        )
        self.wal = Wal(
            fs, directory, settings=settings, codec=self._codec, cache=self._cache, clock=clock, observer=observer,
            recovered=recovered, on_dirty=self._on_dirty,
        )  # fmt: skip
        self._write = self.wal.append
        self._open_cold = open_cold
        self._producers: WeakValueDictionary[str, Producer] = WeakValueDictionary()
        self._producers_guard = threading.Lock()
        self.unsynced_since_s: float | None = None
        """Since when something is not synced, by the monotonic clock."""
        self.uploaded: Callable[[int, float | None], None] | None = None
        """Waits until an offset is uploaded; None where nothing is."""
        self.deleter: LocalDeleter | None = None
        """Deletes files that are old enough, where no tier does that."""
        self.on_full: Callable[[], None] = self.wal.sync
        """What is done when a sync is due by size."""

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
        Append one message and return its offset.

        In the file on return; with *durable* synced on return, and with ``durable="object"`` in the object store, too:
        that waits for as long as it takes, where `wait_until_uploaded` takes a time limit. *key* says which consumer of
        a key-shared subscription gets it, and is kept as an attribute. *publish_time_ns* is kept in whole milliseconds;
        None is now.

        Raises:
            UsageError: the message is too large, an attribute is no text, or there is no object store to wait for.
            CapacityError: the disk is full; nothing was kept.
            NotDurableError: it is in the log, and may not be in the object store; `wait_until_uploaded` says more.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the topic was closed, unloaded or sealed.
        """
        if durable and durable is not True:
            self.require_uploads(durable)
        if type(payload) is not bytes:
            payload = _as_bytes(payload)
        if len(payload) > self._payload_bytes_max:
            raise self._too_large(len(payload))
        now_ns = self._now_ns()
        tail = self._plain if attributes is None and key is None else self._tail(attributes, key, self._codec)
        time_ms = now_ns // NS_PER_MS if publish_time_ns is None else self._time_ms(publish_time_ns)
        offset = self._write(payload, time_ms, tail)
        if durable or self.syncs_each:
            self.make_durable(offset, durable)
        if not offset % _LATENCY_EVERY:
            took_s = max(0, self._clock.now_ns() - now_ns) / _NS_PER_S  # the clock may be set back
            self._observer.record("danube_wal_append_latency_seconds", took_s, topic=self.topic)
        return offset

    def append_batch(self, messages: Iterable[BatchMessage], *, durable: Durable = False) -> range:
        """
        Append *messages* in one write and return their offsets: each a payload, or with its attributes and its key.

        All of them are in the file on return, or none; *durable* is that of `append`.

        Raises:
            UsageError, CapacityError, StoreFailedError, StoreClosedError: as `append`; nothing was kept.
            NotDurableError: as `append`; all are in the log.
        """
        if durable and durable is not True:
            self.require_uploads(durable)
        batch = self.laid_out(messages, self._codec)
        first = self.wal.append_batch(batch)
        if batch and (durable or self.syncs_each):
            self.make_durable(first + len(batch) - 1, durable)
        return range(first, first + len(batch))

    def require_uploads(self, durable: object) -> None:
        """
        Return when *durable* is ``"object"``, and messages go to an object store.

        Raises:
            UsageError: it is something else, or they do not.
        """
        if durable != "object":
            raise UsageError(f'{self.topic}: durable is False, True or "object", not {durable!r}; nothing was appended')
        if self.uploaded is None:
            raise UsageError(f"{self.topic} is not uploaded: there is no object store, or uploader.enabled is false")

    def make_durable(self, offset: int, durable: Durable) -> None:
        """
        Return when the message *offset*, and all before it, is synced; in the object store where *durable* says so.

        Raises:
            StoreFailedError: the sync failed, now or earlier.
            NotDurableError, StoreClosedError, FencedError, CorruptionError: as `wait_until_uploaded`.
        """
        self.wal.sync()
        if durable == "object" and self.uploaded is not None and offset >= 0:
            try:
                self.uploaded(offset, None)
            except StoreClosedError as error:  # it would say that nothing was appended
                raise NotDurableError(offset, str(error), what="message") from error

    def wait_until_uploaded(self, offset: int, timeout: float | None = None) -> None:
        """
        Return when the message *offset* is in the object store, waiting up to *timeout* seconds; None: without limit.

        It is synced first, and uploaded at once with all that is synced by then. Callers that wait at the same time
        share the upload. While it fails it is tried again every few seconds.

        Raises:
            NotDurableError: *timeout* passed; the message is in the log, and its upload goes on: never append it again.
            UsageError: there is no such message yet, or no object store.
            CorruptionError: the message is damaged in the log, and is not uploaded.
            FencedError: another process has taken the topic over.
            StoreClosedError, StoreFailedError: nothing will be uploaded any more.
        """
        self.require_uploads("object")
        if not isinstance(offset, int) or not 0 <= offset < self.wal.next_offset:
            raise UsageError(f"{self.topic} has nothing at {offset} to wait for")
        if offset >= self.wal.synced_offset:
            self.wal.sync()
        if self.uploaded is not None:
            self.uploaded(offset, timeout)

    def laid_out(self, messages: Iterable[BatchMessage], codec: MessageCodec) -> list[tuple[bytes, int, bytes]]:
        """
        Return what the log writes of *messages*, published now: payload, time in milliseconds, and *codec*'s tail.

        Raises:
            UsageError: one is too large, or an attribute is no text.
        """
        time_ms = self._clock.now_ns() // NS_PER_MS
        plain, largest = codec.tail_of(None), self._payload_bytes_max
        batch: list[tuple[bytes, int, bytes]] = []
        for one in messages:
            payload, tail = one, plain
            if isinstance(one, tuple):
                if len(one) not in _TUPLES:
                    raise UsageError(f"{self.topic}: a message is a payload, or a payload, its attributes and its key")
                payload, attributes, *key = one
                tail = self._tail(attributes, key[0] if key else None, codec)
            data = payload if type(payload) is bytes else _as_bytes(payload)
            if len(data) > largest:
                raise self._too_large(len(data))
            batch.append((data, time_ms, tail))
        return batch

    def producer(self, name: str, *, window_messages: int = WINDOW_MESSAGES) -> Producer:
        """
        Return the producer *name*, who numbers its messages: what it sends again is appended once.

        Its last number is looked for in the newest *window_messages* of the topic, which are read, unless this process
        holds the producer already. What others appended behind its last message must fit in there.

        Raises:
            UsageError: no name of a producer.
            DataLossError: some of these messages are gone or damaged: nobody knows what it sent.
            StoreFailedError, TransientError: they cannot be read now.
        """
        check_producer(name)
        with self._producers_guard:
            found = self._producers.get(name)
            if found is None:
                start = max(self.start_offset(), self.wal.next_offset - window_messages)
                with self.reader(start, follow=False) as reader:
                    numbers = [one.request_id for one in reader if one.producer_name == name]
                found = self._producers[name] = Producer(self, name, last_sequence=max(numbers, default=None))
            return found

    def note_sequence(self, name: str, number: int) -> None:
        """Let the producer *name*, if this process holds it, know that its message *number* is appended."""
        with self._producers_guard:
            found = self._producers.get(name)
        if found is not None:
            found.note(number)

    def _tail(self, attributes: Mapping[str, str] | None, key: str | None, codec: MessageCodec) -> bytes:
        if attributes is not None and not isinstance(attributes, Mapping):
            raise UsageError(f"attributes of {self.topic} are texts by name, not {type(attributes).__name__}")
        if key is not None and not isinstance(key, str):
            raise UsageError(f"the key of a message of {self.topic} is text, not {type(key).__name__}")
        merged = dict(attributes or {})
        for name, text in merged.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise UsageError(f"attribute {name!r} of a message of {self.topic} is text, not {type(text).__name__}")
        if key is not None:
            merged[KEY_ATTRIBUTE] = key
        if len(merged) > ATTRIBUTES_MAX:
            raise UsageError(f"a message of {self.topic} has at most {ATTRIBUTES_MAX} attributes")
        try:
            tail = codec.tail_of(merged)
        except UnicodeEncodeError as error:
            raise UsageError(f"attributes of {self.topic} must be text that UTF-8 can say") from error
        if len(tail) > MESSAGE_OVERHEAD_BYTES // 2:
            raise UsageError(
                f"attributes of {self.topic} take {len(tail)} bytes; at most {MESSAGE_OVERHEAD_BYTES // 2}"
            )
        return tail

    def _time_ms(self, publish_time_ns: int) -> int:
        if not isinstance(publish_time_ns, int) or not 0 <= publish_time_ns <= _TIME_NS_MAX:
            raise UsageError(f"{self.topic}: a publish time is nanoseconds since 1970, not {publish_time_ns!r}")
        return publish_time_ns // NS_PER_MS

    def _too_large(self, size: int) -> UsageError:
        return UsageError(f"{self.topic}: {size} bytes are more than wal.max_message_size")

    def flush(self) -> None:
        """
        Return when everything appended so far is synced.

        Raises:
            StoreFailedError: the sync failed, now or earlier.
        """
        self.wal.sync()

    def truncate(self, offset: int) -> None:
        """
        Delete the local files whose messages are all below *offset*, up to the first that somebody reads. Durable.

        Raises:
            CapacityError, StoreFailedError: there is no room for the next file, or the disk failed; nothing was
            deleted. OSError: some files are still there.
        """
        if offset >= self.wal.next_offset:
            self.wal.rotate()  # else the file that is written to would stay
        self.wal.release_below(offset)

    def current_offset(self) -> int:
        """Return the offset that the next message gets."""
        return self.wal.next_offset

    def durable_offset(self) -> int:
        """Return the offset below which everything is synced."""
        return self.wal.synced_offset

    def start_offset(self) -> int:
        """Return the oldest offset that is still there, locally or in objects."""
        local = self.wal.start_offset
        if self._open_cold is None:
            return local
        with contextlib.closing(self._open_cold()) as cold:
            first = cold.next_offset(0)
        return local if first is None else min(local, first)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def reader(
        self, start: Start = "latest", *, follow: bool = True, stop: int | None = None, on_lost: OnLost = "raise"
    ) -> TopicReader:
        """
        Return a reader from *start* on.

        Args:
            start: an offset, also one still to come; `earliest`; `latest`, which is what comes after this call; or a
                datetime: the first message published then or later, as far as publish times only grow.
            follow: wait for more at the end; otherwise the reader ends with what is there now.
            stop: one behind the last offset wanted.
            on_lost: `raise` DataLossError once for each lost range, or `skip` and note it in `lost`.

        Raises:
            UsageError: no such start.
        """
        tip = self.wal.next_offset
        end = stop
        if not follow:
            end = tip if stop is None else min(stop, tip)
        return self._reader(self.resolve(start), stop=end, on_lost=on_lost)

    def _reader(self, offset: int, *, stop: int | None, on_lost: OnLost) -> TopicReader:
        return TopicReader(
            self.wal, self._cache, self._codec, self._fs, cold=self._open_cold() if self._open_cold else None,
            observer=self._observer, offset=offset, stop=stop, on_lost=on_lost,
        )  # fmt: skip

    def resolve(self, start: Start, *, kept: bool = False) -> int:
        """
        Return the offset that *start* means now; one still to come only where it is not *kept*.

        Raises:
            UsageError: no such start.
        """
        # 1. A subscription is kept at an offset far ahead. 2. The topic is opened again: what is kept counts as given
        # out. 3. The topic goes on there, and readers miss everything in between.
        if kept and isinstance(start, int) and start > self.wal.next_offset:
            raise UsageError(
                f"{self.topic} has nothing at {start} yet: its end, {self.wal.next_offset}, is the furthest"
            )
        if start == "latest":
            return self.wal.next_offset
        if start == "earliest":
            return self.start_offset()
        if isinstance(start, datetime):
            return self._offset_at(round(start.timestamp() * 1000))
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            return start
        raise UsageError(f"{start!r} is no start: an offset, 'earliest', 'latest' or a datetime")

    def _offset_at(self, time_ms: int) -> int:
        if self._open_cold is not None:
            with contextlib.closing(self._open_cold()) as cold:
                found = cold.offset_at(time_ms)
            if found is not None:
                return found
        begin = self.wal.start_offset
        for file in reversed(self.wal.files()):
            first = self._publish_time_ms(file.first_offset)
            if first is not None and first < time_ms:
                begin = file.first_offset
                break
        tip = self.wal.next_offset
        with self._reader(begin, stop=tip, on_lost="skip") as reader:
            for message in reader:
                if message.publish_time_ns >= time_ms * NS_PER_MS:
                    return message.offset
        return tip

    def _publish_time_ms(self, offset: int) -> int | None:
        if offset >= self.wal.next_offset:
            return None
        with self._reader(offset, stop=offset + 1, on_lost="skip") as reader:
            found = next(iter(reader), None)
        return None if found is None else found.publish_time_ns // NS_PER_MS

    def read_cached_since(self, after_offset: int) -> tuple[list[tuple[int, Message]], int]:
        """
        Return what memory holds behind *after_offset*, oldest first, and the last offset of it.

        Without a gap up to the tip; what was evicted is not there: a `reader` has it. *after_offset* itself is returned
        as the last offset when nothing is there.
        """
        first = max(after_offset + 1, self._cache.first_offset)
        found: list[tuple[int, Message]] = []
        for offset, body in enumerate(self._cache.take(first, count_max=self.wal.next_offset - first), first):
            message = self._codec.decode(body)
            if not isinstance(message, Damage):
                found.append((offset, message))
        return found, found[-1][0] if found else after_offset

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────

    def _on_dirty(self, full: bool) -> None:  # noqa: FBT001
        if self.unsynced_since_s is None:
            self.unsynced_since_s = self._clock.monotonic()
        if full:
            self.on_full()

    def upkeep(self, *, within_s: float = 0.0) -> None:
        """
        Sync when what is unsynced would be too old in *within_s* seconds; rotate and delete files that are old enough.

        Raises:
            StoreFailedError: the disk failed, now or earlier.
            CorruptionError, OSError: as `LocalDeleter.run_once`.
        """
        since_s = self.unsynced_since_s
        due_s = self._settings.fsync_interval_ms / 1000 - within_s
        if since_s is not None and self._clock.monotonic() - since_s >= due_s:
            self.sync_and_note()
        self.wal.rotate_if_due()
        if self.deleter is not None:
            self.deleter.run_if_due()

    def sync_and_note(self) -> None:
        """
        Sync, and write down that it was.

        Raises:
            StoreFailedError: the sync failed, now or earlier.
        """
        self.unsynced_since_s = None
        before = self.wal.synced_offset
        self.wal.sync()
        if self.wal.synced_offset > before:
            self.wal.try_checkpoint()

    def stats(self) -> dict[str, int]:
        """Return figures of this moment."""
        wal = self.wal
        files = wal.files()
        return {
            "start_offset": wal.start_offset,
            "next_offset": wal.next_offset,
            "durable_offset": wal.synced_offset,
            "files": len(files),
            "disk_bytes": sum(file.size_bytes for file in files),
            "danube_wal_cache_size": len(self._cache),
            "cache_bytes": self._cache.nbytes,
        }

    def seal(self) -> int:
        """
        Take no more messages; everything is synced and in sealed files on return. Return the next offset.

        Raises:
            CapacityError: no room to do so; nothing has changed.
            StoreFailedError: the disk failed, now or earlier.
        """
        return self.wal.seal()

    def close(self) -> None:
        """
        Sync, write the checkpoint and let go. Idempotent.

        Raises:
            StoreFailedError: the last sync failed, now or earlier.
        """
        try:
            self.wal.close()
        except StoreClosedError:
            pass
        except QuiverError as error:
            self._observer.event("danube.wal.close", level=logging.ERROR, topic=self.topic, problem=str(error))
            raise


def _as_bytes(payload: object) -> bytes:
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise UsageError(f"a payload is bytes, not {type(payload).__name__}")
    return bytes(payload)
