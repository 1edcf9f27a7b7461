"""Wait for another process or thread, with a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import SYSTEM_CLOCK

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02


def wait_until(
    condition: Callable[[], object], *, timeout: float = TIMEOUT_S, describe: Callable[[], str] = lambda: ""
) -> None:
    """Return when *condition* holds; after *timeout* seconds fail, with what *describe* returns as the message."""
    pause = threading.Event()
    deadline = SYSTEM_CLOCK.monotonic() + timeout
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline, describe()
        pause.wait(POLL_INTERVAL_S)
