"""
A function of the consumer's that is called when bundles become available: a new segment, a deferral whose time has
come, a bundle that was given back, a rewind.

Each has a thread of its own: it is called outside all locks, so it may do with the store whatever it likes, and one
that is slow holds up nobody else. One that raises is not called again; its thread ends as any thread does that
raises, through `threading.excepthook`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.store.subscribers.claims import WAIT_S_MAX, Claims
from quiver.store.subscribers.delivery import DeliveryQueue
from quiver.store.subscribers.records import Membership, Shared
from quiver.store.subscribers.table import Members

__all__ = ["BundleCallback"]


class BundleCallback:
    """Calls *callback* until `stop`, or until the subscriber or the store is gone. Threads: one, started at once."""

    def __init__(
        self, shared: Shared, members: Members, claims: Claims, member: Membership, callback: Callable[[], object]
    ) -> None:
        self._shared = shared
        self._members = members
        self._claims = claims
        self._member = member
        self._callback = callback
        self._is_stopped = False
        # A daemon: a program that forgets to close must still be able to end.
        self._seen: tuple[DeliveryQueue, int] | None = None
        Worker(
            f"quiver-on-bundle {member.id}", self._turn, every=0.0, on_death=self._report, clock=shared.clock,
            observer=shared.observer,
        ).start()  # fmt: skip

    def stop(self) -> None:
        """Call it no more. A call that runs at this moment is not waited for. Idempotent."""
        with self._shared.condition:
            self._is_stopped = True
            self._shared.condition.notify_all()

    def _turn(self) -> Finished | None:
        self._seen = self._wait_for_news(self._seen)
        if self._seen is None:
            return FINISHED
        self._callback()
        return None

    def _report(self, died: WorkerDiedError) -> None:
        self._shared.observer.event(
            "quiver.subscriber.callback", level=logging.ERROR, subscriber=self._member.id, problem=str(died)
        )

    def _wait_for_news(self, seen: tuple[DeliveryQueue, int] | None) -> tuple[DeliveryQueue, int] | None:
        """
        Return when there is something that was not there when *seen* was returned; None when there
        will be no more.
        """
        clock, condition = self._shared.clock, self._shared.condition
        with condition:
            while not (self._is_stopped or self._members.is_closed or self._member.gone):
                queue = self._member.queue
                wait_s = WAIT_S_MAX
                if queue is not None:
                    self._claims.queue_of(self._member)  # takes note of dropped handles
                    now_s = clock.monotonic()
                    if queue.has_free(now_s) and seen != (queue, queue.arrivals):
                        return queue, queue.arrivals
                    due_s = queue.next_due_s()
                    wait_s = WAIT_S_MAX if due_s is None else min(WAIT_S_MAX, due_s - now_s)
                clock.wait(condition, wait_s)
        return None
