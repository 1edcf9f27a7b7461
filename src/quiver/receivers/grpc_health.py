"""The standard gRPC health service, `grpc.health.v1.Health`, for the receivers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

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

    async def start(self, server: Any) -> None:
        """Add the service to *server*, before the server starts, and keep its statuses up to date."""
        await self.refresh()
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
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

    async def _keep_up_to_date(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self.refresh()
