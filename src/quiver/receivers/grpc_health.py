"""The standard gRPC health service, `grpc.health.v1.Health`, for the receivers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from quiver.receivers.grpc_server.call import Call
from quiver.receivers.grpc_server.server import Method

__all__ = ["HealthService"]

WATCH_INTERVAL_S = 1.0
"""The interval at which statuses are updated for clients that watch. `Check` computes the status on each call."""


class HealthService(health_aio.HealthServicer):
    """
    Reports SERVING for the server and each of its services while there are no problems. Needs no credentials.

    Args:
        problems: returns a sentence for each reason why the receiver is not ready; called in a worker thread.
        services: the names of the server's other services.
    """

    def __init__(self, problems: Callable[[], Sequence[str]], services: Iterable[str]) -> None:
        super().__init__()
        self._problems = problems
        self._services = ("", *services)
        self._watch: asyncio.Task[None] | None = None

    def add_to(self, server: Any) -> None:
        """Add the service to a `grpc.aio` server, before it starts."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def methods(self) -> dict[str, Method]:
        """Return the methods of the service, for a `GrpcServer`."""
        return {
            "/grpc.health.v1.Health/Check": Method(self._serve_check),
            "/grpc.health.v1.Health/Watch": Method(self._serve_watch, is_watch=True),
        }

    async def start(self) -> None:
        """Keep the statuses up to date."""
        await self.refresh()
        self._watch = asyncio.get_running_loop().create_task(self._keep_up_to_date())

    async def stop(self) -> None:
        """Report NOT_SERVING from now on: the server is about to stop. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        await self.enter_graceful_shutdown()

    async def refresh(self) -> None:
        """Update the statuses."""
        is_ready = not await asyncio.to_thread(self._problems)
        status = health_pb2.HealthCheckResponse
        for service in self._services:
            await self.set(service, status.SERVING if is_ready else status.NOT_SERVING)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        """Return the current status of a service."""
        await self.refresh()
        return await super().Check(request, context)

    async def _serve_check(self, call: Call) -> bytes:
        response = await self.Check(await _request_of(call), call)
        return response.SerializeToString()

    async def _serve_watch(self, call: Call) -> None:
        await self.Watch(await _request_of(call), _WatchContext(call))

    async def _keep_up_to_date(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self.refresh()


class _WatchContext:
    """The part of a call's context that the service uses, with messages instead of bytes."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, response: Any) -> None:
        """Send a response."""
        await self._call.write(response.SerializeToString())


async def _request_of(call: Call) -> Any:
    data = await call.read()
    if data is None or call.message_encoding != "identity":
        await call.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request, or a compressed one")
    try:
        return health_pb2.HealthCheckRequest.FromString(data)
    except DecodeError:
        await call.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
