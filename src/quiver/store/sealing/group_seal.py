"""
Durable calls of a store without a log: they wait until their bundles are in a sealed segment, and share it.

::

    caller 1   add, seal ─────────────▶ durable
    caller 2      add, wait ──────────────────▶ seal ─────────▶ durable
    caller 3           add, wait ─────────────────────────────▶ durable     both in one segment

One caller at a time seals, for all that were added by then. A segment costs files and syncs, so seals for this reason
begin at least `INTERVAL_S` apart: a single call is not delayed, and many calls share few segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import CapacityError, NotDurableError, StoreClosedError
from quiver.store.sealing.schedule import RETRY_S, Sealing

__all__ = ["INTERVAL_S", "GroupSeal"]

INTERVAL_S = 0.025
"""As long as a log would gather entries for a sync by default."""


class GroupSeal:
    """
    Waits for sealed segments. Thread-safe.

    Args:
        sealing: says through which sequence number everything is sealed.
        seal: seals all that was added, durably.
        require_healthy: raises when the store has failed.
        clock: spaces the seals.
    """

    def __init__(
        self, sealing: Sealing, seal: Callable[[], None], *, require_healthy: Callable[[], None], clock: Clock
    ) -> None:
        self._sealing = sealing
        self._seal = seal
        self._require_sound = require_healthy
        self._clock = clock
        self._changed = threading.Condition()
        self._is_sealing = False
        self._began_s: float | None = None

    def through(self, sequence: int) -> None:
        """
        Return when the bundle of *sequence*, which was added, is in a sealed segment, and so is everything before it.

        Raises:
            CapacityError: the disk has no room for the segment. It is kept in memory and tried again.
            StoreFailedError: the disk failed.
            StoreClosedError: the store was closed, and could not seal it.
        """
        while True:
            with self._changed:
                while self._is_sealing and self._sealing.sealed_through < sequence:
                    self._clock.wait(self._changed, None)
                if self._sealing.sealed_through >= sequence:
                    return
                self._require_sound()
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
        Like `through`; on a full disk try again until *deadline_s*, in monotonic seconds.

        Raises:
            NotDurableError: the disk had no room until then. The bundle is kept in memory and delivered.
            StoreFailedError, StoreClosedError: as `through`.
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
        """Wait until the last seal began long enough ago: more callers join meanwhile."""
        with self._changed:
            due_s = self._clock.monotonic() if self._began_s is None else self._began_s + INTERVAL_S
            while (left_s := due_s - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left_s)
            self._began_s = self._clock.monotonic()
