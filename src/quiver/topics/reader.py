"""
Reading a topic from any offset on, as one iterator over objects, files, memory, and new messages.

A reader stores only the next offset, and looks up where that offset is for each piece that it reads::

    in memory?      ─▶ take it             (the newest messages)
    in a file?      ─▶ read the file       (held, so that it is not deleted meanwhile)
    in an object?   ─▶ read the object
    nowhere?        ─▶ report the lost range once, and continue after it

So nothing is skipped or repeated when messages are evicted, rotated, uploaded or deleted meanwhile, and a writer never
waits for a reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Generator, Iterator
from types import TracebackType
from typing import Any, Self

from quiver.errors import DataLossError, StoreClosedError
from quiver.invariant import invariant
from quiver.lazy_names import warn_renamed
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Damage
from quiver.topics.cache import MessageCache
from quiver.topics.cold.pieces import ColdLost, ColdReader
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.message import Message, MessageCodec
from quiver.topics.wal.files import FrameScanner, Good, Lost, OnLost, ReadStart, quarantine_damage
from quiver.topics.wal.writer import Wal

__all__ = ["TopicReader"]

_CACHED_MESSAGES = 512


class TopicReader:
    """
    The messages of a topic in order, each once. One user at a time.

    Iterating with ``for`` or ``async for`` ends at `stop`; without it, iteration waits for more. After an error the
    reader continues where it was: after the lost messages, or with another attempt.

    Args:
        wal, cache, codec, files, cold, observer: those of the topic.
        offset: of the first message wanted; it may be beyond the end.
        stop: the offset after the last message wanted; None follows the topic.
        on_lost: whether to raise an error when messages are lost, or to add them to `lost`.
    """

    def __init__(
        self,
        wal: Wal,
        cache: MessageCache,
        codec: MessageCodec,
        fs: FileSystem,
        *,
        cold: ColdReader | None,
        observer: Observer,
        offset: int,
        stop: int | None,
        on_lost: OnLost,
    ) -> None:
        self._wal = wal
        self._cache = cache
        self._decode = codec.decode
        self._fs = fs
        self._cold = cold
        self._observer = observer
        self._stop = stop
        self._on_lost = on_lost
        self._buffer: deque[Message] = deque()
        self._fetched = offset
        self._scanner: FrameScanner | None = None
        self._span: ReadStart | None = None
        self._closed = False
        # ``async for`` fetches in a thread, which continues when its task is cancelled: the next task must not fetch
        # the same messages again.
        self._fetching = threading.Lock()
        self.lost: list[tuple[int, int]] = []
        """Ranges that were skipped: the first lost offset, and the next available one."""

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._buffer[0].offset if self._buffer else self._fetched

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        buffer = self._buffer
        while not buffer:
            if not self._fetch():
                if self._is_over():
                    raise StopIteration
                self._wal.wait_for(self._fetched, None)
        return buffer.popleft()

    def poll(self, count_max: int = _CACHED_MESSAGES) -> list[Message]:
        """
        Return at most *count_max* messages that are available now; none when all were taken. Never waits.

        Raises:
            DataLossError: messages are lost; the next call continues after them.
            TransientError: the object store cannot be reached.
        """
        buffer = self._buffer
        if not buffer:
            self._fetch()
        return [buffer.popleft() for _ in range(min(count_max, len(buffer)))]

    def wait(self, timeout: float | None = None, *, timeout_s: float | None = None) -> bool:
        """
        Wait until there is a message or the topic accepts no more; return False if *timeout* seconds pass first.

        Args:
            timeout: seconds; None waits without limit.
            timeout_s: the former name of *timeout*.
        """
        if timeout_s is not None:
            warn_renamed("TopicReader.wait", "timeout_s", "timeout")
            timeout = timeout_s
        return bool(self._buffer) or self._wal.wait_for(self._fetched, timeout)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Message]:
        return _NextMessage(self)

    def take_now(self) -> Message | None:
        """Return the next message if it is in memory, else None."""
        if not self._buffer and self._fetching.acquire(blocking=False):
            try:
                if self._scanner is None:
                    self._fetch_cached()
            finally:
                self._fetching.release()
        return self._buffer.popleft() if self._buffer else None

    def fetch(self) -> bool:
        """
        Load some messages into memory, from wherever they are; return False if there are none now.

        Raises:
            DataLossError: messages are lost; the next call continues after them.
        """
        with self._fetching:
            return bool(self._buffer) or self._fetch()

    def is_over(self) -> bool:
        """Return whether there will be no more messages."""
        return not self._buffer and self._is_over()

    def call_when_more(self, wake: Any) -> None:
        """Call *wake* once, from any thread, when there is a message or the topic accepts no more."""
        self._wal.call_when(self._fetched, wake)

    def _is_over(self) -> bool:
        if self._stop is not None and self._fetched >= self._stop:
            return True
        self._wal.require_healthy()
        return self._wal.closed and self._fetched >= self._wal.next_offset

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> int:
        tip = self._wal.next_offset
        return tip if self._stop is None else min(tip, self._stop)

    def _fetch(self) -> bool:
        if self._closed:
            raise StoreClosedError("the reader was closed")
        while (offset := self._fetched) < (end := self._end()):
            found = self._fetch_cached() or self._fetch_from_file(offset, end) or self._fetch_cold(offset, end)
            if not found and self._fetched == offset:
                self._skip_lost(offset, self._next_anywhere(offset, end), path=self._where(), position=0, reason="gone")
            if self._buffer:
                return True
        self._leave_file()
        return False

    def _fetch_cached(self) -> bool:
        offset = self._fetched
        bodies = self._cache.take(offset, count_max=min(_CACHED_MESSAGES, max(0, self._end() - offset)))
        if bodies:
            self._leave_file()
            self._keep(offset, bodies)
        return bool(bodies)

    def _keep(self, offset: int, bodies: list[bytes]) -> None:
        invariant(offset == self._fetched, "a reader returns each offset once and skips none")
        decode, keep = self._decode, self._buffer.append
        for at, body in enumerate(bodies, offset):
            message = decode(body)
            if isinstance(message, Damage) or message.offset != at:
                # The checksum is right, so these bytes are what was written: no other message is in doubt.
                if self._buffer:
                    return
                reason = message.reason if isinstance(message, Damage) else f"its offset field is {message.offset}"
                self._skip_lost(at, at + 1, path=self._where(), position=0, reason=reason)
                return
            keep(message)
            self._fetched = at + 1

    def _fetch_from_file(self, offset: int, end: int) -> bool:
        """Return whether a file had messages or damage at *offset*."""
        while True:
            scanner = self._scanner or self._open_file(offset)
            if scanner is None:
                return False
            span = self._span
            step = scanner.step()
            if step is None:
                if span is not None and span.next_offset > offset and scanner.expected <= offset:
                    step = Lost(scanner.position, scanner.position, "the file ends too early", offset, None)
                else:
                    self._leave_file()
                    continue
            elif isinstance(step, Good) and step.first_offset > offset:
                self._leave_file()  # an object supplied part of what is damaged here
                continue
            if isinstance(step, Lost):
                self._skip_lost_in_file(step, offset)
                return True
            if self._take_from(step, offset, end):
                return True

    def _take_from(self, step: Good, offset: int, end: int) -> bool:
        invariant(step.first_offset <= offset, "a reader skips no message of a file")
        skip = max(0, offset - step.first_offset)
        places = step.frames[skip : max(skip, end - step.first_offset)]
        data = step.data
        self._keep(offset, [data[start + FRAME_HEADER_BYTES : stop] for _, start, stop in places])
        return bool(places)

    def _open_file(self, offset: int) -> FrameScanner | None:
        wal = self._wal
        while (span := wal.locate(offset)) is not None:
            wal.take_hold(span.path, self)
            again = wal.locate(offset)
            if again is None or again.path != span.path:
                wal.drop_hold(span.path, self)
                continue
            try:
                self._scanner = FrameScanner(
                    self._fs, again.path, position=again.position, end=again.end, expected=again.expected,
                    marks=wal.marks_of(again.path),
                )  # fmt: skip
            except FileNotFoundError:
                # Another program removed it. Its messages are lost unless an object has them.
                wal.drop_hold(span.path, self)
                return None
            self._span = again
            return self._scanner
        return None

    def _leave_file(self) -> None:
        if self._scanner is not None and self._span is not None:
            self._scanner.close()
            self._wal.drop_hold(self._span.path, self)
        self._scanner = self._span = None

    def _fetch_cold(self, offset: int, end: int) -> bool:
        if self._cold is None:
            return False
        found = self._cold.take(offset, end)
        if found is None:
            return False
        if isinstance(found, ColdLost):
            self._skip_lost(offset, found.next_offset, path=found.name, position=found.position, reason=found.reason)
        else:
            self._keep(offset, list(found.bodies[offset - found.first_offset : end - found.first_offset]))
        return True

    # ── lost messages ────────────────────────────────────────────────────────────────────────────────────

    def _skip_lost_in_file(self, lost: Lost, offset: int) -> None:
        span = self._span
        if span is None:
            return
        if self._fetch_cold(offset, span.next_offset if lost.next_offset is None else lost.next_offset):
            return
        damage = quarantine_damage(self._fs, span.path, lost, self._observer)
        after = span.next_offset if lost.next_offset is None else lost.next_offset
        if lost.next_offset is None:
            self._leave_file()
        if after > offset:
            self._skip_lost(offset, after, path=span.path, position=damage.offset, reason=damage.reason)

    def _next_anywhere(self, offset: int, end: int) -> int:
        cold = self._cold.next_offset(offset + 1) if self._cold is not None else None
        claimed = self._wal.locate(offset)
        local = self._wal.next_local(offset + 1) if claimed is None else claimed.next_offset
        return max(offset + 1, min(one for one in (cold, local, end) if one is not None))

    def _where(self) -> str:
        return self._span.path if self._span is not None else str(self._wal.directory or "memory")

    def _skip_lost(self, first: int, after: int, *, path: str, position: int, reason: str) -> None:
        self._fetched = after
        self._observer.count("danube_wal_messages_lost_total", after - first)
        if self._on_lost == "skip":
            self.lost.append((first, after))
            return
        what = f"message {first} is" if after == first + 1 else f"messages {first} to {after - 1} are"
        raise DataLossError(path, position, f"{what} lost ({reason}); the reader continues at {after}")

    def close(self) -> None:
        """Close the file that is being read. Idempotent."""
        self._closed = True
        self._leave_file()
        if self._cold is not None:
            self._cold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _NextMessage:
    """The awaitable of ``async for``: it reads memory on the event loop, and everything else in a thread."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader

    def __await__(self) -> Generator[Any, None, Message]:
        reader = self._reader
        while True:
            message = reader.take_now()
            if message is not None:
                return message
            if (yield from asyncio.to_thread(reader.fetch).__await__()):
                continue
            if reader.is_over():
                raise StopAsyncIteration
            yield from self._until_more().__await__()

    def _until_more(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        self._reader.call_when_more(lambda: loop.call_soon_threadsafe(arrive))
        return arrived
