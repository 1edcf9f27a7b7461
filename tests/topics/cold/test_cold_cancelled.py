"""A task that is cancelled while its message is fetched from the object store."""

from __future__ import annotations

import asyncio
import threading

import pytest
from cold_rig import Rig, append, expected

pytestmark = pytest.mark.usefixtures("quiet")


def test_a_cancelled_task_repeats_and_skips_nothing():
    """Its thread continues to fetch; the next task waits for that thread, and nothing is fetched twice."""
    rig = Rig()
    inside, leave = threading.Event(), threading.Event()

    def slow(operation: str, _key: str) -> None:
        if operation == "get_range":
            inside.set()
            leave.wait()

    async def read() -> list[bytes]:
        with log.reader(0, stop=20) as reader:
            first = asyncio.ensure_future(anext(reader))
            await asyncio.to_thread(inside.wait)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            second = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            leave.set()
            return [(await second).payload, *[message.payload async for message in reader]]

    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.store.maintain()
        rig.objects.on_call = slow
        assert asyncio.run(read()) == expected(20)
