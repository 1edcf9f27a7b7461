"""
An OTAP client over gRPC: one stream per signal, requests sent as tables and confirmed by the status of each batch.

A stream is opened on demand and replaced after `stream_lifetime_s`, which releases the dictionaries at both ends. When
a stream breaks, all batches without a status are sent again on a new, empty stream. If the server ends a stream because
a message is too large, later messages are smaller. OTLP is the fallback for servers without OTAP and for requests that
tables cannot represent.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pyarrow as pa

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.exporters.otlp_grpc import OtlpGrpcSender, open_channel
from quiver.exporters.reply import Reply, grpc_reply
from quiver.exporters.settings import MESSAGE_BYTES_MIN, ExporterSettings, OtapSenderSettings
from quiver.exporters.size_limit import SizeLimit
from quiver.observe import InMemoryObserver
from quiver.otap import EncodedBatch, StatusCode, StreamEncoder
from quiver.otap.stream.arrow_message import try_decode_status
from quiver.otap.tables.from_otlp import Converted, tables_of_request
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.primitives.scan import Damage
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError

__all__ = ["OtapGrpcSender"]

_STREAMS_TRIED = 3
_METRIC_METADATA = 26
_INTERNAL = grpc.StatusCode.INTERNAL.value[0]
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
_SUSPICIOUS = frozenset({grpc.StatusCode.INTERNAL.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]})
_DENIED = frozenset({StatusCode.PERMISSION_DENIED.value, StatusCode.UNAUTHENTICATED.value, _UNIMPLEMENTED})


class OtapGrpcSender:
    """
    Sends export requests as OTAP batches. Thread-safe. `send` does not raise for failures of network or destination.

    Args:
        settings: endpoint and options. Certificates are read once, here.
        otap: settings specific to OTAP.
        clock: measures the lifetime of streams and the wait for a status.

    Raises:
        SettingsError: a certificate file cannot be read or is invalid.
    """

    def __init__(
        self, settings: ExporterSettings, otap: OtapSenderSettings | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.settings = settings
        self.otap = otap or OtapSenderSettings()
        self._clock = clock
        self._otlp = OtlpGrpcSender(settings)
        self._channel = open_channel(settings)
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._open: set[_Stream] = set()
        self._limit = SizeLimit(self.otap.message_bytes_max)
        self._without_otap = False
        self._closed = False

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        """
        Send one request and wait up to `timeout_s` seconds for the statuses of its batches.

        `Reply.left_out` counts the data that tables cannot represent.
        """
        if self._without_otap:
            return self._otlp.send(signal, request, batch_id)
        converted = tables_of_request(request, signal)
        if isinstance(converted, Damage):
            return self._otlp.send(signal, request, batch_id)
        deadline = self._clock.monotonic() + self.settings.timeout_s
        progress = _RequestState(list(converted.tables))
        tried = 0
        while tried < _STREAMS_TRIED:
            left = len(progress.waiting)
            reply = self._send(signal, progress, deadline)
            if isinstance(reply, Reply):
                return replace(reply, left_out=self._left_out(converted)) if reply.outcome == "confirmed" else reply
            if reply.is_otlp:
                return self._otlp.send(signal, request, batch_id)
            # Smaller messages do not count as an attempt: the limit is lower each time, so this ends. Neither does a
            # stream that ended after at least one set of tables was settled.
            tried += not reply.is_smaller and len(progress.waiting) == left
        return Reply("retry", "UNAVAILABLE", f"the server ended {_STREAMS_TRIED} streams without an answer")

    def _send(self, signal: str, progress: _RequestState, deadline: float) -> Reply | _Resend:
        """Send the waiting tables and remove those that are settled. Return the reply, or how to send the rest."""
        stream = self._stream(signal)
        if stream is None:
            return Reply("retry", "CLOSED", "the sender was closed")
        sent = stream.put(progress.waiting)
        if isinstance(sent, Damage):
            # No message of these settings has space for it; an OTLP request may be accepted.
            return _Resend(is_otlp=True)
        again: _Resend | None = None
        for tables, batches in zip(list(progress.waiting), sent, strict=True):
            answer = self._answer(stream, batches, deadline)
            if isinstance(answer, _Resend):
                # Tables that do have a status are settled and not sent again.
                again = answer if again is None or answer.is_smaller else again
                continue
            if answer.outcome == "retry":
                return answer
            if answer.outcome == "refused":
                progress.refusal = answer
            progress.waiting.remove(tables)
        return again or progress.refusal or Reply("confirmed")

    def _answer(self, stream: _Stream, batches: Sequence[_PendingBatch], deadline: float) -> Reply | _Resend:
        """Wait for the statuses of a set of tables and return the outcome."""
        for batch in batches:
            answer = stream.wait(batch, deadline)
            if isinstance(answer, _Resend):
                self._without_otap |= answer.is_unknown
                return answer
            if answer.is_too_large and batch.size_bytes > MESSAGE_BYTES_MIN:
                self._limit.refused(batch.size_bytes, answer.limit_bytes)
                stream.retire()  # the next stream sends smaller messages
                return _Resend(is_smaller=True)
            if answer.is_too_large:
                self._limit.not_the_reason()
            if answer.outcome != "confirmed":
                return answer
            self._limit.accepted(batch.size_bytes)
        return Reply("confirmed")

    def _left_out(self, converted: Converted) -> dict[str, int]:
        left_out = dict(converted.left_out)
        metadata = sum(tables[_METRIC_METADATA].num_rows for tables in converted.tables if _METRIC_METADATA in tables)
        if metadata and not self.otap.metric_metadata:
            left_out["metric_metadata"] = metadata
        return left_out

    def _stream(self, signal: str) -> _Stream | None:
        with self._lock:
            if self._closed:
                return None
            stream = self._streams.get(signal)
            if stream is not None and stream.is_usable():
                return stream
            if stream is not None:
                stream.retire()
            self._open = {one for one in self._open if not one.ended}
            otap = replace(self.otap, message_bytes_max=max(self._limit.bytes_max, MESSAGE_BYTES_MIN))
            stream = self._streams[signal] = _Stream(self._channel, signal, self.settings, otap, self._clock)
            self._open.add(stream)
            return stream

    def close(self) -> None:
        """Close the connections; requests in flight get the outcome `retry`. Idempotent."""
        with self._lock:
            self._closed = True
            streams = list(self._open)
        for stream in streams:
            stream.cancel()
        self._channel.close()
        self._otlp.close()
        for stream in streams:
            stream.join()


@dataclass(frozen=True, slots=True)
class _Resend:
    """
    How to send again.

    Attributes:
        is_otlp: as OTLP, because the server does not support OTAP or fails on this batch; otherwise on a new stream.
        is_unknown: the server does not support OTAP.
        is_smaller: in smaller messages.
    """

    is_otlp: bool = False
    is_unknown: bool = False
    is_smaller: bool = False


@dataclass(slots=True, eq=False)
class _RequestState:
    """The tables of a request without a status, and the reply that refused some of the others."""

    waiting: list[Any]
    refusal: Reply | None = None


@dataclass(slots=True, eq=False)
class _PendingBatch:
    """A batch in flight: the size of its message, and its answer once there is one."""

    size_bytes: int = 0
    answer: Reply | _Resend | None = None


class _Stream:
    """One stream: its encoder, the batches without a status, and the thread that reads statuses."""

    def __init__(
        self, channel: Any, signal: str, settings: ExporterSettings, otap: OtapSenderSettings, clock: Clock
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._encoder = StreamEncoder(
            signal,
            payload_compression=otap.payload_compression,
            metric_metadata=otap.metric_metadata,
            message_bytes_max=otap.message_bytes_max,
        )
        self._changed = threading.Condition(threading.Lock())
        self._pending: dict[int, _PendingBatch] = {}
        self._retired = False
        self._until = clock.monotonic() + otap.stream_lifetime_s
        self.ended = False
        self._end_answer: Reply | _Resend = _Resend()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        gzip = settings.compression_method == "gzip"
        self._call = channel.stream_stream(SIGNALS[signal].service)(
            iter(self._outbox.get, None),
            # Even if the server does not answer, the stream ends some time after its lifetime.
            timeout=otap.stream_lifetime_s + settings.timeout_s + 1.0,
            metadata=tuple((name.lower(), value) for name, value in settings.headers.items()),
            compression=grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression,
        )
        self._reader = Worker(
            f"quiver-otap {signal}", self._read, every=0.0, on_death=self._fail, clock=clock,
            observer=InMemoryObserver(),
        )  # fmt: skip
        self._reader.start()

    def is_usable(self) -> bool:
        """Return whether another batch may be sent on it."""
        with self._changed:
            return not (self.ended or self._retired or self._clock.monotonic() >= self._until)

    def put(self, sets: Sequence[Mapping[int, pa.RecordBatch]]) -> list[list[_PendingBatch]] | Damage:
        """Send all sets of tables, each in one or more batches, or none of them. Return the batches of each set."""
        with self._changed:
            if self.ended or self._retired:
                # It may have ended before the first batch: then the reason decides how to continue.
                return [[_PendingBatch(answer=self._end_answer)] for _ in sets]
            encoded = self._encoder.try_encode_all(sets)
            return encoded if isinstance(encoded, Damage) else [self._put(batches) for batches in encoded]

    def _put(self, encoded: Iterable[EncodedBatch]) -> list[_PendingBatch]:
        batches = []
        for one in encoded:
            batch = self._pending[one.batch_id] = _PendingBatch(len(one.message))
            batches.append(batch)
            self._outbox.put(one.message)
        return batches

    def wait(self, batch: _PendingBatch, deadline: float) -> Reply | _Resend:
        """Return the answer to a batch. Without a status in time, retire the stream and return `retry`."""
        with self._changed:
            while batch.answer is None:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    break
                self._clock.wait(self._changed, left)
            if batch.answer is not None:
                return batch.answer
        self.retire()
        return Reply("retry", "DEADLINE_EXCEEDED", f"no status within {self._settings.timeout_s:g} s")

    def retire(self) -> None:
        """Stop sending on the stream; pending statuses are still read."""
        with self._changed:
            if not self._retired:
                self._retired = True
                self._outbox.put(None)

    def cancel(self) -> None:
        """Cancel the stream."""
        self.retire()
        self._call.cancel()

    def join(self) -> None:
        """Wait for the thread, which ends with the call."""
        self._reader.join(5.0)

    # ── the reading thread ───────────────────────────────────────────────────────────────────────────

    def _read(self) -> Finished:
        try:
            for data in self._call:
                status = try_decode_status(data)
                if isinstance(status, Damage):
                    self._call.cancel()
                    break
                with self._changed:
                    batch = self._pending.pop(status.batch_id, None)
                    if batch is not None:
                        batch.answer = self._reply(status.code, status.message)
                        self._changed.notify_all()
        except grpc.RpcError as error:
            self._end(error.code().value[0], error.details() or "", _details(error))
        else:
            self._end(0, "", None)
        finally:
            self._outbox.put(None)
        return FINISHED

    def _fail(self, died: WorkerDiedError) -> None:
        """End the stream: batches without a status are sent again on another one."""
        self._call.cancel()
        self._end(_INTERNAL, str(died), None)

    def _reply(self, code: int, message: str) -> Reply:
        if code == StatusCode.OK:
            return Reply("confirmed")
        if code == StatusCode.RESOURCE_EXHAUSTED:
            # The server is short of memory now. It has read the batch, so the batch is not too large.
            return Reply("retry", "RESOURCE_EXHAUSTED", message)
        return grpc_reply(code, message, None, denied=self._settings.denied)

    def _end(self, code: int, message: str, details: bytes | None) -> None:
        """Answer all batches without a status according to how the stream ended."""
        with self._changed:
            self.ended = True
            left, self._pending = self._pending, {}
            reply = grpc_reply(code, message, details, denied=self._settings.denied) if code else None
            # Without a stated limit, the server is short of memory; the message is not too large.
            limit_bytes = None if reply is None else reply.limit_bytes
            answer: Reply | _Resend
            if code == _UNIMPLEMENTED:
                answer = _Resend(is_otlp=True, is_unknown=True)
            elif code in _SUSPICIOUS and len(left) == 1:
                # The server failed on this batch, or for another reason; as OTLP the request gets its own answer.
                answer = _Resend(is_otlp=True)
            elif reply is None or limit_bytes is not None:
                answer = _Resend()  # ended normally before reading these, or because of another batch
            elif code in _DENIED:
                answer = reply
            else:
                answer = Reply("retry", reply.reason, reply.message, reply.retry_after_s)
            self._end_answer = answer
            for batch in left.values():
                batch.answer = answer
            if reply is not None and limit_bytes is not None:
                for batch in left.values():
                    if batch.size_bytes > limit_bytes:
                        batch.answer = reply
            self._changed.notify_all()


def _details(error: Any) -> bytes | None:
    found: bytes | None = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    return found
