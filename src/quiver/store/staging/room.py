"""
Disk space for staged segments: a task waits for it like any producer, and fails when there is none in time.

An open store publishes the cap of its files (`quiver.store.limits.disk_reports`). A task adds up their sizes before it
writes a segment, so all tasks together exceed the cap by at most one segment each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.limits.disk_reports import ask_for_room, find_room

__all__ = ["RETRY_S", "SinkRoom", "wait_until"]

RETRY_S = 0.05
RETRY_S_MAX = 1.0


def wait_until(is_done: Callable[[], bool], timeout: float, clock: Clock) -> bool:
    """Poll *is_done* for up to *timeout* seconds, with pauses that grow to one second. Return its last answer."""
    deadline = clock.monotonic() + timeout
    condition = threading.Condition()
    pause_s = RETRY_S
    while not is_done():
        left = deadline - clock.monotonic()
        if left <= 0:
            return False
        with condition:
            clock.wait(condition, min(pause_s, left))
        pause_s = min(2 * pause_s, RETRY_S_MAX)
    return True


@dataclass(frozen=True, slots=True)
class SinkRoom:
    """
    The disk space of one store.

    Attributes:
        fs: the file system.
        root: the store's directory.
        timeout_s: how long a task waits.
        clock: measures the time.
    """

    fs: FileSystem
    root: str
    timeout_s: float
    clock: Clock = SYSTEM_CLOCK

    def wait_for(self, nbytes: int) -> None:
        """
        Wait until a segment of *nbytes* may be staged.

        Raises:
            CapacityError: there was no space in time.
            OSError: the directory cannot be read.
        """
        if not wait_until(lambda: self._has(nbytes), self.timeout_s, self.clock):
            found = find_room(self.fs, self.root)
            how = "" if found is None else f": {found.used_bytes} of {found.cap_bytes} bytes are used"
            if found is not None and nbytes > found.cap_bytes:
                how = f": its cap is {found.cap_bytes} bytes, so limit the batches of the query at their source"
            raise CapacityError(f"the store {self.root} has no space for {nbytes} more bytes{how}")

    def _has(self, nbytes: int) -> bool:
        found = find_room(self.fs, self.root)
        if found is None or found.used_bytes + nbytes <= found.cap_bytes:
            return True
        # The owner may keep delivered segments for some time; this request makes it delete them.
        ask_for_room(self.fs, self.root, nbytes)
        return False
