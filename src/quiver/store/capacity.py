"""
What a size cap is held against: what this store has on disk, and what others under the same cap have.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from quiver.primitives.files import Lock

__all__ = ["AloneCapacity", "Capacity", "DeletionPause"]


class Capacity(Protocol):
    """
    The cap that a store lives under. Thread-safe. What it tells is asked often, under locks of the store: it must not
    wait.
    """

    @property
    def cap_bytes(self) -> int | None:
        """
        The cap on everything together; None is no cap.
        """

    def others_bytes(self) -> int:
        """
        Return what other stores under the same cap have on disk at this moment, as far as known.
        """

    def make_room(self, bytes_wanted: int) -> int:
        """
        Free what may go in the directories of others, before this store gives up anything of its own; bytes freed.

        Called without the lock that ingest holds. May take a moment.

        Raises:
            OSError: the disk refused.
        """

    def keep_others_out(self) -> Lock | None:
        """
        Keep others from deleting in this store's directory until the lock is released; None when nobody would.

        Called without the locks of the store. May wait a moment.

        Raises:
            DirectoryInUse: somebody deletes there for longer than that should take.
            OSError: the disk refused.
        """


@dataclass(frozen=True, slots=True)
class AloneCapacity:
    """
    A cap that nobody shares.
    """

    cap_bytes: int | None

    def others_bytes(self) -> int:
        """
        Return 0.
        """
        return 0

    def make_room(self, bytes_wanted: int) -> int:  # noqa: ARG002
        """
        Return 0: nobody else has anything.
        """
        return 0

    def keep_others_out(self) -> Lock | None:
        """
        Return None: nobody else deletes here.
        """
        return None


class DeletionPause:
    """
    While it is held nothing is deleted from a store, by itself or by others: what a subscriber is promised now cannot
    go for what its progress said before. Not to be held twice by one thread.

    Args:
        capacity: knows the others.
        maintenance: held by the store from its decision to the end of a deletion.
    """

    def __init__(self, capacity: Capacity, maintenance: threading.RLock) -> None:
        self._capacity = capacity
        self._maintenance = maintenance
        self._others: Lock | None = None

    def __enter__(self) -> None:
        # In the order in which a core takes note of what others deleted: first their lock, then its own.
        others = self._capacity.keep_others_out()
        self._maintenance.acquire()
        self._others = others

    def __exit__(self, *_: object) -> None:
        others, self._others = self._others, None
        self._maintenance.release()
        if others is not None:
            others.release()
