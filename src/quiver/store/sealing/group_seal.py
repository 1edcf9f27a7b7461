"""
Durable calls of a store without a log wait until their bundles are in a sealed segment. Concurrent calls share one.

::

    caller 1   add, seal ─────────────▶ durable
    caller 2      add, wait ──────────────────▶ seal ─────────▶ durable
    caller 3           add, wait ─────────────────────────────▶ durable     both in one segment

One caller at a time seals, for all bundles added by then. A segment costs files and syncs, so these seals begin at
least `INTERVAL_S` apart: a single call is not delayed, and many calls share few segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import CapacityError, NotDurableError, StoreClosedError
from quiver.store.sealing.schedule import RETRY_S, Sealing

__all__ = ["INTERVAL_S", "GroupSeal"]

INTERVAL_S = 0.025
"""The default interval at which a log syncs."""


class GroupSeal:
    """
    Waits for sealed segments. Thread-safe.

    Args:
        sealing: knows the sequence number up to which all bundles are sealed.
        seal: seals all bundles added so far, durably.
        require_healthy: raises when the store has failed.
        clock: spaces the seals.
    """

    def __init__(
        self, sealing: Sealing, seal: Callable[[], None], *, require_healthy: Callable[[], None], clock: Clock
    ) -> None:
        self._sealing = sealing
        self._seal = seal
        self._require_healthy = require_healthy
        self._clock = clock
        self._changed = threading.Condition()
        self._is_sealing = False
        self._began_s: float | None = None

    def through(self, sequence: int) -> None:
        """
        Wait until the bundle with *sequence*, which was added before, and all earlier ones are in sealed segments.

        Raises:
            CapacityError: the disk has no space for the segment. It is kept in memory and tried again.
            StoreFailedError: the disk failed.
            StoreClosedError: the store was closed, and could not seal it.
        """
        while True:
            with self._changed:
                while self._is_sealing and self._sealing.sealed_through < sequence:
                    self._clock.wait(self._changed, None)
                if self._sealing.sealed_through >= sequence:
                    return
                self._require_healthy()
                self._is_sealing = True
            try:
                self._pause()
                self._seal()
            except StoreClosedError:
                if self._sealing.sealed_through < sequence:
                    raise
            finally:
                with self._changed:
                    self._is_sealing = False
                    self._changed.notify_all()

    def wait_for(self, sequence: int, deadline_s: float) -> None:
        """
        Wait like `through`; if the disk is full, try again until *deadline_s*, in monotonic seconds.

        Raises:
            NotDurableError: the disk had no space until then. The bundle is kept in memory and delivered.
            StoreFailedError, StoreClosedError: see `through`.
        """
        while True:
            try:
                self.through(sequence)
            except CapacityError as full:
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    raise NotDurableError(sequence, str(full)) from full
                with self._changed:
                    self._clock.wait(self._changed, min(left_s, RETRY_S))
            else:
                return

    def _pause(self) -> None:
        """Wait until the interval since the last seal has passed, so that more callers can join."""
        with self._changed:
            due_s = self._clock.monotonic() if self._began_s is None else self._began_s + INTERVAL_S
            while (left_s := due_s - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left_s)
            self._began_s = self._clock.monotonic()
