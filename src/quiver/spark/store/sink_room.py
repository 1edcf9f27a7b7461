"""
Room for what a sink stages: a task waits for it like any producer, and fails when there is none in time.

An open store writes down how much its files may take together (`quiver.store.limits.disk_reports`). A task adds up what
they take before it writes a segment; so all tasks together pass the cap by at most a segment each.
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


def wait_until(is_done: Callable[[], bool], timeout_s: float, clock: Clock) -> bool:
    """Return whether *is_done* within *timeout_s* seconds; it is asked again after pauses that grow to a second."""
    deadline = clock.monotonic() + timeout_s
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
    The room of one store.

    Attributes:
        fs: the file system.
        root: the store's directory.
        timeout_s: so long a task waits.
        clock: measures it.
    """

    fs: FileSystem
    root: str
    timeout_s: float
    clock: Clock = SYSTEM_CLOCK

    def wait_for(self, nbytes: int) -> None:
        """
        Return when a segment of *nbytes* may be staged.

        Raises:
            CapacityError: there was no room in time.
            OSError: the directory cannot be read.
        """
        if not wait_until(lambda: self._has(nbytes), self.timeout_s, self.clock):
            found = find_room(self.fs, self.root)
            how = "" if found is None else f": {found.used_bytes} of {found.cap_bytes} bytes are used"
            if found is not None and nbytes > found.cap_bytes:
                how = f": its cap is {found.cap_bytes} bytes, so limit the batches of the query at their source"
            raise CapacityError(f"the store {self.root} has no room for {nbytes} bytes more{how}")

    def _has(self, nbytes: int) -> bool:
        found = find_room(self.fs, self.root)
        if found is None or found.used_bytes + nbytes <= found.cap_bytes:
            return True
        # The owner may have finished segments that it keeps for a while: who waits makes it delete them.
        ask_for_room(self.fs, self.root, nbytes)
        return False
