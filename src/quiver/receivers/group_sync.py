"""One sync for all clients that wait for the disk at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from quiver.errors import QuiverError

__all__ = ["GroupSync"]


class GroupSync:
    """
    Shares syncs between the calls of one event loop.

    Args:
        sync: makes everything durable that was stored before the call. It is called in *pool*.
        pool: the threads for the disk.
    """

    def __init__(self, sync: Callable[[], None], pool: Executor) -> None:
        self._sync = sync
        self._pool = pool
        self._waiters: list[asyncio.Future[str]] = []
        self._syncing: asyncio.Task[None] | None = None

    async def wait(self) -> str:
        """Wait until everything stored so far is on disk. Return the error, or "". Called in the loop."""
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.create_task(self._sync_all())
        return await waiter

    async def _sync_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            waiters, self._waiters = self._waiters, []
            failure = "the receiver is stopping"
            try:
                await loop.run_in_executor(self._pool, self._sync)
                failure = ""
            except (QuiverError, OSError) as error:
                failure = str(error) or type(error).__name__
            finally:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(failure)
