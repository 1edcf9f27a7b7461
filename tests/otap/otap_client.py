"""A fake store that keeps tables in memory, and a client of one OTAP stream."""

import queue
import threading
from collections import deque
from typing import Any, Self

import grpc

from quiver.bundle import Bundle
from quiver.otap import BatchStatus, decode_status
from quiver.otap.tables.payload_schema import SIGNALS


class KeptTables:
    """A fake store.

    The next calls of `ingest` raise `failures` in order (None lets one succeed), those of `sync` raise `sync_failures`.
    `sync` waits for `sync_gate` if it is set.
    """

    def __init__(self) -> None:
        self.kept: list[Bundle] = []
        self.synced = 0
        self.failures: deque[Exception | None] = deque()
        self.sync_failures: deque[Exception] = deque()
        self.sync_gate: threading.Event | None = None
        self.ingested = threading.Semaphore(0)

    def ingest(self, bundle: Bundle, *, durable=False, timeout=None):
        failure = self.failures.popleft() if self.failures else None
        if failure is not None:
            raise failure
        self.kept.append(bundle)
        self.ingested.release()

    def sync(self) -> None:
        before = len(self.kept)
        if self.sync_gate is not None:
            assert self.sync_gate.wait(30)
        if self.sync_failures:
            raise self.sync_failures.popleft()
        self.synced = max(self.synced, before)

    def recent_wal_entries(self):
        return iter(())


class Client:
    """One stream. Leaving the block cancels it."""

    def __init__(self, port: int, signal: str = "logs", *, channel=None, metadata=(), compression=None) -> None:
        self._own = None if channel is not None else grpc.insecure_channel(f"127.0.0.1:{port}")
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method = (channel or self._own).stream_stream(SIGNALS[signal].service)
        self.call: Any = method(
            iter(self._outbox.get, None), timeout=60, metadata=tuple(metadata), compression=compression
        )

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._outbox.put(message)

    def half_close(self) -> None:
        self._outbox.put(None)

    def status(self) -> BatchStatus:
        found = decode_status(next(self.call))
        assert isinstance(found, BatchStatus), found
        return found

    def statuses(self) -> list[BatchStatus]:
        """Return the statuses until the stream ends with OK."""
        found = [decode_status(data) for data in self.call]
        assert self.call.code() == grpc.StatusCode.OK
        return found

    def ended(self) -> grpc.RpcError:
        """Return the error with which the stream ended."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended with OK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.call.cancel()
        self._outbox.put(None)
        if self._own is not None:
            self._own.close()
