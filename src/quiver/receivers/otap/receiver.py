"""
OTAP over gRPC: three bidirectional streams, next to the unary OTLP services on the same port.

Every batch gets one status: OK once it is as safe as `ack` requires, UNAVAILABLE if the client may retry (the store is
full, failed or closing), INVALID_ARGUMENT if it must not. No other status is used, because clients drop a batch for any
other code. After a message that cannot be decoded, the rest of the stream has no meaning: this message and the earlier
ones get their statuses, and the stream ends. Clients then open another one and resend unanswered batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc import aio

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.observe import Observer
from quiver.otap import BatchStatus, StatusCode, encode_status
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.receivers.group_sync import GroupSync
from quiver.receivers.grpc_server.call import CallClosedError
from quiver.receivers.intake import IntakeResult, IntakeStore, OtlpIntake
from quiver.receivers.otap.intake import OtapIntake, OtapStream, Taken
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.otlp.grpc_receiver import Handler, OtlpGrpcReceiver, encoding_of, refuse_call
from quiver.receivers.places import Place, Places, address_of_peer, network_of
from quiver.receivers.request_window import RequestWindow
from quiver.receivers.settings import OtlpSettings

__all__ = ["OtapGrpcReceiver"]

_BUSY = IntakeResult("unavailable", "the maximum number of streams is open, or the receiver is stopping", 1.0)
_MESSAGE_CHARS_MAX = 500


class OtapGrpcReceiver(OtlpGrpcReceiver):
    """
    Listens for OTAP streams and OTLP requests on one port, for one store. A context manager.

    Args:
        store: the destination of tables and requests.
        settings: address, sizes, acknowledgement and security, as for OTLP.
        otap: limits of streams.
        clock: passed to the intakes.
        observer: passed to the intakes; receives an event if a stream ends for a reason other than the client's.
        intake: another receiver's intake of OTLP requests, to share.
        problems: as for OTLP.

    Raises:
        StoreFailedError: the store could not be synced after the dedupe window was rebuilt.
        SettingsError: certificates or credentials cannot be read.
    """

    def __init__(
        self,
        store: IntakeStore,
        settings: OtlpSettings | None = None,
        *,
        otap: OtapSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        intake: OtlpIntake | None = None,
        problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        super().__init__(store, settings, clock=clock, observer=observer, intake=intake, problems=problems)
        self.otap = OtapSettings() if otap is None else otap
        self._store = store
        captured = self.settings.capture_headers
        self._batches = OtapIntake(
            store, self.otap, self._observer, clock=clock, window=self.intake.window, capture_headers=captured
        )
        # Only one message at a time is decoded, because of its memory, and always by the same thread, which can then
        # reuse the memory of the previous one.
        self._taking = ThreadPoolExecutor(1, thread_name_prefix="quiver-otap-taking")
        self._streaming = Places(self.otap.streams_max)
        self._closing: asyncio.Event | None = None
        self._syncs = GroupSync(self._make_durable, self.pool)

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new requests immediately, and give current ones *grace_s* seconds. Idempotent."""
        super().stop(grace_s)
        self._taking.shutdown(wait=True)

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        self._closing = asyncio.Event()
        return await super()._listen()

    async def _close(self, grace_s: float) -> None:
        if self._closing is not None:
            self._closing.set()  # streams stop reading, answer what they have read, and end
        await super()._close(grace_s)

    def _services(self) -> list[str]:
        return [*super()._services(), *(tables.service.split("/")[1] for tables in SIGNALS.values())]

    def _handlers(self) -> dict[str, Handler]:
        streams: dict[str, Handler] = {tables.service: self._streams(signal) for signal, tables in SIGNALS.items()}
        return super()._handlers() | streams

    def _streams(self, signal: str) -> Callable[[AsyncIterator[bytes], Any], Coroutine[Any, Any, None]]:
        async def serve(_messages: AsyncIterator[bytes], context: Any) -> None:
            if not self._is_authorized(context):
                self._observer.count("quiver.receiver.unauthorized_total", protocol="otap")
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the authorization header is missing or unknown")
            with self._streaming.take(network_of(address_of_peer(context.peer()))) as place:
                if self.is_stopping or place is None:
                    await refuse_call(context, _BUSY)
                    return
                stream = self._batches.open(signal, context.invocation_metadata())
                try:
                    taken = await self._serve(stream, context, place)
                finally:
                    stream.close()
            if taken is not None and taken.last:
                self._observer.event("quiver.receiver.stream_ended", signal=signal, why=taken.why)
                if taken.status is None:
                    # The batch is unknown, so no status can be sent; an OK at the end would confuse the client.
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, taken.why[:_MESSAGE_CHARS_MAX])

        return serve

    async def _serve(self, stream: OtapStream, context: Any, place: Place) -> Taken | None:
        """Answer a stream until it ends. Return the result of its last message."""
        answers: set[asyncio.Task[None]] = set()
        one_writer = asyncio.Lock()  # gRPC fails concurrent writes
        loop = asyncio.get_running_loop()
        taken: Taken | None = None
        try:
            while taken is None or not taken.last:
                await self._fewer_than(self.otap.batches_in_flight_max, answers)
                message = await self._next(context, place)
                if message is None:
                    break
                taken = await loop.run_in_executor(self._taking, stream.take, message, encoding_of(message, context))
                del message
                answers.add(asyncio.create_task(self._answer(taken, context, one_writer)))
            await self._fewer_than(1, answers)
        except TimeoutError:
            # The client sends but does not read: an open stream would keep its dictionaries forever.
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the statuses of the stream are not read")
        finally:
            for answer in answers:
                answer.cancel()
        return taken

    async def _fewer_than(self, count: int, answers: set[asyncio.Task[None]]) -> None:
        """Wait until fewer than *count* batches have no status; finished ones are removed from *answers*."""
        async with asyncio.timeout(self.otap.stream_idle_s):
            while len(answers) >= count:
                done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
                answers -= done
                for answer in done:
                    answer.result()

    async def _next(self, context: Any, place: Place) -> bytes | None:
        """
        Return the next message. Returns None at the end of the stream, after an idle time-out, when another stream
        takes the place, and when the receiver is closing.
        """
        closing = self._closing
        if closing is None or closing.is_set():
            return None
        read = asyncio.ensure_future(context.read())
        stop = asyncio.ensure_future(closing.wait())
        try:
            async with asyncio.timeout(self.otap.stream_idle_s) as timer:
                with place.waiting(timer):
                    await asyncio.wait({read, stop}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            stop.cancel()
            if not read.done():
                read.cancel()
        if not read.done() or read.cancelled() or read.exception() is not None:
            return None
        message = read.result()
        return message if isinstance(message, bytes) else None

    async def _answer(self, taken: Taken, context: Any, one_writer: asyncio.Lock) -> None:
        status = taken.status
        if status is None:
            return
        if taken.stored and self.settings.ack == "synced":
            failure = await self._syncs.wait()
            if failure:
                status = BatchStatus(status.batch_id, StatusCode.UNAVAILABLE, failure)
        text = status.message[:_MESSAGE_CHARS_MAX]
        async with one_writer:
            with contextlib.suppress(
                aio.BaseError, CallClosedError
            ):  # the client disconnected, and will send the batch again
                await context.write(encode_status(BatchStatus(status.batch_id, status.code, text)))

    def _make_durable(self) -> None:
        self._store.sync()
        if isinstance(self.intake.window, RequestWindow):
            self.intake.window.note_durable()
