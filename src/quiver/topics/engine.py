"""The engine of one topic: its files, memory and objects, opened by the one process that writes to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

from quiver.clock import Clock
from quiver.errors import NotDurableError, QuiverError, StoreClosedError, UsageError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import Buffer, FileSystem
from quiver.primitives.scan import Damage
from quiver.topics.cache import MessageCache
from quiver.topics.cold.deleter import LocalDeleter
from quiver.topics.cold.pieces import ColdReader
from quiver.topics.format.message import ATTRIBUTES_MAX, KEY_ATTRIBUTE, NS_PER_MS, Message, MessageCodec
from quiver.topics.reader import TopicReader
from quiver.topics.recovery import recover
from quiver.topics.settings import MESSAGE_OVERHEAD_BYTES, WalSettings
from quiver.topics.wal.files import OnLost, RecoveredWal
from quiver.topics.wal.writer import Wal

__all__ = ["BatchMessage", "Durable", "Start", "TopicEngine", "as_bytes"]

Start = int | datetime | Literal["earliest", "latest"]

Durable = bool | Literal["object"]
"""Where a message is when its append returns: in the file, synced (True), or also in the object store ("object")."""

BatchMessage = Buffer | tuple[Buffer, Mapping[str, str] | None] | tuple[Buffer, Mapping[str, str] | None, str | None]
"""A payload, optionally with its attributes, or with its attributes and its key."""

_TUPLES = (2, 3)


class TopicEngine:
    """
    Everything that one process does with one topic: `TopicLog` is its public face. Thread-safe.

    Args:
        topic, directory: its name, and where its files are; None keeps it in memory.
        settings: of the log.
        fs, clock, observer: the file system, time, and where counts and events are sent.
        next_offset_min: the lowest offset that no other process has given out.
        producer_name: written into each message.
        open_cold: opens a reader of the topic's objects; None without an object tier.
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
        self.clock = clock
        self.observer = observer
        self._settings = settings
        self._fs = fs
        self.payload_bytes_max = settings.max_message_size
        self.syncs_each = not settings.fsync_interval_ms
        """Whether each append waits for its sync."""
        self.codec = MessageCodec(topic, producer_name=producer_name)
        recovered = RecoveredWal(next_offset=next_offset_min, first_offset=next_offset_min)
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
            fs, directory, settings=settings, codec=self.codec, cache=self._cache, clock=clock, observer=observer,
            recovered=recovered, on_dirty=self._on_dirty,
        )  # fmt: skip
        self._open_cold = open_cold
        self.unsynced_since_s: float | None = None
        """When the oldest unsynced message was appended, by the monotonic clock."""
        self.uploaded: Callable[[int, float | None], None] | None = None
        """Waits until an offset is uploaded; None when the topic is not uploaded."""
        self.deleter: LocalDeleter | None = None
        """Deletes files that are old enough; None where the object tier does that."""
        self.on_full: Callable[[], None] = self.wal.sync
        """Called when a sync is due because of the number of unsynced bytes."""

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────

    def require_uploads(self, durable: object) -> None:
        """
        Check that *durable* is ``"object"`` and that the topic is uploaded.

        Raises:
            UsageError: *durable* is another value, or the topic is not uploaded.
        """
        if durable != "object":
            raise UsageError(f'{self.topic}: durable is False, True or "object", not {durable!r}; nothing was appended')
        if self.uploaded is None:
            raise UsageError(f"{self.topic} is not uploaded: there is no object store, or uploader.enabled is false")

    def make_durable(self, offset: int, durable: Durable) -> None:
        """
        Return when the message *offset* and all before it are synced, and with ``durable="object"`` also uploaded.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
            NotDurableError, StoreClosedError, FencedError, CorruptionError: as `TopicLog.wait_until_uploaded`.
        """
        self.wal.sync()
        if durable == "object" and self.uploaded is not None and offset >= 0:
            try:
                self.uploaded(offset, None)
            except StoreClosedError as error:  # the caller would take it to mean that nothing was appended
                raise NotDurableError(offset, str(error), what="message") from error

    def wait_until_uploaded(self, offset: int, timeout: float | None) -> None:
        """Implement `TopicLog.wait_until_uploaded`."""
        self.require_uploads("object")
        if not isinstance(offset, int) or not 0 <= offset < self.wal.next_offset:
            raise UsageError(f"{self.topic} has nothing at {offset} to wait for")
        if offset >= self.wal.synced_offset:
            self.wal.sync()
        if self.uploaded is not None:
            self.uploaded(offset, timeout)

    def encode_batch(self, messages: Iterable[BatchMessage], codec: MessageCodec) -> list[tuple[bytes, int, bytes]]:
        """
        Return what the log writes for *messages*, published now: payload, time in milliseconds, and *codec*'s tail.

        Raises:
            UsageError: a message is too large, or an attribute is not text.
        """
        time_ms = self.clock.now_ns() // NS_PER_MS
        plain, largest = codec.tail_of(None), self.payload_bytes_max
        batch: list[tuple[bytes, int, bytes]] = []
        for one in messages:
            payload, tail = one, plain
            if isinstance(one, tuple):
                if len(one) not in _TUPLES:
                    raise UsageError(f"{self.topic}: a message is a payload, or a payload, its attributes and its key")
                payload, attributes, *key = one
                tail = self.encode_tail(attributes, key[0] if key else None, codec)
            data = payload if type(payload) is bytes else as_bytes(payload)
            if len(data) > largest:
                raise self.too_large(len(data))
            batch.append((data, time_ms, tail))
        return batch

    def encode_tail(self, attributes: Mapping[str, str] | None, key: str | None, codec: MessageCodec) -> bytes:
        """
        Return the bytes of a message after its payload.

        Raises:
            UsageError: an attribute or the key is not text, or they are too many or too large.
        """
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
            raise UsageError(f"attributes of {self.topic} must be text that UTF-8 can encode") from error
        if len(tail) > MESSAGE_OVERHEAD_BYTES // 2:
            raise UsageError(
                f"attributes of {self.topic} take {len(tail)} bytes; at most {MESSAGE_OVERHEAD_BYTES // 2}"
            )
        return tail

    def too_large(self, size: int) -> UsageError:
        """Return the error for a payload of *size* bytes."""
        return UsageError(f"{self.topic}: {size} bytes are more than wal.max_message_size")

    def flush(self) -> None:
        """
        Return when everything appended so far is synced.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
        """
        self.wal.sync()

    def truncate(self, offset: int) -> None:
        """
        Delete the local files whose messages are all below *offset*, up to the first that a reader uses. Durable.

        Raises:
            CapacityError, StoreFailedError: the next file could not be created, or the disk failed; nothing was
                deleted.
            OSError: some files could not be deleted.
        """
        if offset >= self.wal.next_offset:
            self.wal.rotate()  # otherwise the active file would stay
        self.wal.release_below(offset)

    def current_offset(self) -> int:
        """Return the offset that the next message gets."""
        return self.wal.next_offset

    def durable_offset(self) -> int:
        """Return the offset below which everything is synced."""
        return self.wal.synced_offset

    def start_offset(self) -> int:
        """Return the oldest offset that is still available, locally or in objects."""
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
        """Implement `TopicLog.reader`."""
        tip = self.wal.next_offset
        end = stop
        if not follow:
            end = tip if stop is None else min(stop, tip)
        return self._reader(self.resolve(start), stop=end, on_lost=on_lost)

    def _reader(self, offset: int, *, stop: int | None, on_lost: OnLost) -> TopicReader:
        return TopicReader(
            self.wal, self._cache, self.codec, self._fs, cold=self._open_cold() if self._open_cold else None,
            observer=self.observer, offset=offset, stop=stop, on_lost=on_lost,
        )  # fmt: skip

    def resolve(self, start: Start, *, stored: bool = False) -> int:
        """
        Return the offset that *start* means now. It may be beyond the end, unless it is to be *stored*.

        Raises:
            UsageError: *start* is not valid.
        """
        # 1. A subscription is stored at an offset far beyond the end. 2. The topic is opened again: a stored offset
        # counts as given out. 3. The topic continues there, and readers miss everything in between.
        if stored and isinstance(start, int) and start > self.wal.next_offset:
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
        raise UsageError(f"{start!r} is not a start: use an offset, 'earliest', 'latest' or a datetime")

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
        """Implement `TopicLog.read_cached_since`."""
        first = max(after_offset + 1, self._cache.first_offset)
        found: list[tuple[int, Message]] = []
        for offset, body in enumerate(self._cache.take(first, count_max=self.wal.next_offset - first), first):
            message = self.codec.decode(body)
            if not isinstance(message, Damage):
                found.append((offset, message))
        return found, found[-1][0] if found else after_offset

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def _on_dirty(self, full: bool) -> None:  # noqa: FBT001
        if self.unsynced_since_s is None:
            self.unsynced_since_s = self.clock.monotonic()
        if full:
            self.on_full()

    def maintain(self, *, within_s: float = 0.0) -> None:
        """
        Sync if the oldest unsynced message is due within *within_s* seconds; rotate and delete files as due.

        Raises:
            StoreFailedError: the disk failed, now or earlier.
            CorruptionError, OSError: as `LocalDeleter.run_once`.
        """
        since_s = self.unsynced_since_s
        due_s = self._settings.fsync_interval_ms / 1000 - within_s
        if since_s is not None and self.clock.monotonic() - since_s >= due_s:
            self.unsynced_since_s = None
            before = self.wal.synced_offset
            self.wal.sync()
            if self.wal.synced_offset > before:
                self.wal.try_checkpoint()
        self.wal.rotate_if_due()
        if self.deleter is not None:
            self.deleter.run_if_due()

    def stats(self) -> dict[str, int]:
        """Return current figures."""
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

    def close(self) -> None:
        """
        Sync, write the checkpoint and close the files. Idempotent.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
        """
        try:
            self.wal.close()
        except StoreClosedError:
            pass
        except QuiverError as error:
            self.observer.event("danube.wal.close", level=logging.ERROR, topic=self.topic, problem=str(error))
            raise


def as_bytes(payload: object) -> bytes:
    """
    Return *payload* as bytes.

    Raises:
        UsageError: it is not a buffer.
    """
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise UsageError(f"a payload is bytes, not {type(payload).__name__}")
    return bytes(payload)
