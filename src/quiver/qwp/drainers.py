"""
Background draining of slots that other senders left.

Each adopted slot has its own lock, ring and connection. A slot that cannot be drained (no server in time, credentials
refused, a final refusal, damage) is marked with ``.failed`` while its lock is still held. Drainers then ignore it until
an operator removes the mark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from quiver.clock import Clock
from quiver.errors import CorruptionError, DirectoryInUseError, SettingsError, StoreFailedError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.qwp.connection.failover import HostTracker
from quiver.qwp.connection.session import SenderError
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import Slot, find_orphans, mark_failed, open_slot

__all__ = ["DrainerEvent", "DrainerListener", "Drainers"]

_STOP_S = 5.0
_log = logging.getLogger("quiver.qwp")


@dataclass(frozen=True, slots=True)
class DrainerEvent:
    """
    The outcome for one slot: `started`, `drained`, `failed` (and marked), `skipped` (in use, or written by a newer
    version), `stopped` (the sender was closed first, or no server answered and the drainer yields to the owner).
    """

    sender_id: str
    kind: Literal["started", "drained", "failed", "skipped", "stopped"]
    reason: str = ""


DrainerListener = Callable[[DrainerEvent], None]


class Drainers:
    """
    Drains orphaned slots, several at a time.

    Args:
        settings: of the sender that adopts the slots.
        tracker: the states of the hosts.
        listener: called with the outcome for each slot, from the drainers' threads.
        on_error: called with every refusal.
        fs, clock, observer, random: the disk, time, events and metrics, and randomness.
        gives_way: release a slot while no server answers, without a mark, because its owner will need it soon, as a
            Spark task does. Otherwise the slot is held until a server answers or the reconnect time is over.
    """

    def __init__(
        self,
        settings: SenderSettings,
        tracker: HostTracker,
        *,
        listener: DrainerListener | None,
        on_error: Callable[[SenderError], None],
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        random: Random,
        stop_when_offline: bool = False,
    ) -> None:
        self._settings = settings
        self._stop_when_offline = stop_when_offline
        self._tracker = tracker
        self._listener = listener
        self._on_error = on_error
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._random = random
        self._guard = threading.Lock()
        self._waiting: list[str] = []
        self._workers: list[Worker] = []
        self._loops: dict[str, WireLoop] = {}  # by slot
        self._stopping = False
        self.active = 0
        self.succeeded = 0
        self.failed = 0

    def start(self) -> None:
        """
        Search for orphaned slots once, and start to drain them.

        Raises:
            OSError: the directory cannot be read.
        """
        sf_dir = self._settings.sf_dir
        if sf_dir is None or self._settings.drainers_max == 0:
            return
        self._waiting = find_orphans(self._fs, sf_dir, self._settings.sender_id)
        for number in range(min(self._settings.drainers_max, len(self._waiting))):
            worker = Worker(
                f"quiver-qwp-drainer {number}", self._turn, every=0.0, on_death=self._fail, clock=self._clock,
                observer=self._observer,
            )  # fmt: skip
            self._workers.append(worker)
        for worker in self._workers:
            worker.start()

    def stats(self) -> dict[str, Any]:
        """Return current statistics of each slot that is being drained."""
        with self._guard:
            loops = dict(self._loops)
        return {sender_id: loop.stats() for sender_id, loop in loops.items()}

    def stop(self) -> None:
        """Stop all drainers. Undrained slots keep their frames and get no mark."""
        with self._guard:
            self._stopping = True
            self._waiting.clear()
            loops = list(self._loops.values())
        for loop in loops:
            loop.stop(0)
        for worker in self._workers:
            worker.stop(_STOP_S)  # does not wait when called from a listener, which may close the sender

    def drain(self, sender_id: str) -> DrainerEvent:
        """Drain one slot in this thread, at an operator's request: a failure leaves no mark."""
        try:
            return self._drain(sender_id, mark=False)
        except (OSError, StoreFailedError) as error:
            return DrainerEvent(sender_id, "failed", f"disk error: {error}")

    def _turn(self) -> Finished | None:
        with self._guard:
            if not self._waiting or self._stopping:
                return FINISHED
            sender_id = self._waiting.pop(0)
            self.active += 1
        event = DrainerEvent(sender_id, "failed", "an internal error of the drainer")
        try:
            event = self._drain(sender_id, mark=True)
        except (OSError, StoreFailedError) as error:
            event = DrainerEvent(sender_id, "failed", f"disk error: {error}")
        finally:
            with self._guard:
                self.active -= 1
            self._settle(event)
        return None

    def _settle(self, event: DrainerEvent) -> None:
        with self._guard:
            self.succeeded += event.kind == "drained"
            self.failed += event.kind == "failed"
        self._notify(event)

    def _fail(self, died: WorkerDiedError) -> None:
        """Report every slot that has no drainer left. The slots are not marked: the next sender tries them again."""
        with self._guard:
            if any(worker.is_running and worker.died is None for worker in self._workers):
                return
            waiting, self._waiting = self._waiting, []
        for sender_id in waiting:
            self._settle(DrainerEvent(sender_id, "failed", str(died)))

    def _notify(self, event: DrainerEvent) -> None:
        level = logging.ERROR if event.kind == "failed" else logging.INFO
        self._observer.count("quiver.qwp.drainers_total", kind=event.kind)
        self._observer.event("qwp.drainer", level=level, slot=event.sender_id, kind=event.kind, reason=event.reason)
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:  # noqa: BLE001
            # The caller's code: its exceptions must neither end the thread nor leave the slot locked.
            _log.exception("the drainer listener failed on: %s", event)

    def _drain(self, sender_id: str, *, mark: bool) -> DrainerEvent:
        settings = self._settings
        try:
            slot = open_slot(
                self._fs,
                settings.sf_dir or "",
                sender_id,
                settings.ring,
                observer=self._observer,
                clock=self._clock,
                is_adopted=mark,
                dead_letters_bytes_max=settings.dead_letters_bytes_max,
            )
        except (DirectoryInUseError, SettingsError) as error:
            return DrainerEvent(sender_id, "skipped", str(error))
        except CorruptionError as error:
            is_unmarked = any(name == sender_id for name in find_orphans(self._fs, settings.sf_dir or "", ""))
            return DrainerEvent(sender_id, "skipped" if is_unmarked else "failed", str(error))
        with contextlib.closing(slot):
            self._notify(DrainerEvent(sender_id, "started"))
            loop = WireLoop(
                slot,
                dataclasses.replace(settings, sender_id=sender_id, initial_connect="async"),
                self._tracker,
                counters=Counters(),
                on_error=self._on_error,
                clock=self._clock,
                observer=self._observer,
                random=self._random,
                until_drained=True,
                stop_when_offline=self._stop_when_offline,
            )
            with self._guard:
                self._loops[sender_id] = loop
                if self._stopping:
                    loop.stop(0)
            try:
                loop.run()
                return self._finish(sender_id, slot, loop, mark=mark)
            finally:
                with self._guard:
                    del self._loops[sender_id]
                loop.release()

    def _finish(self, sender_id: str, slot: Slot, loop: WireLoop, *, mark: bool) -> DrainerEvent:
        if loop.halted is not None:
            if mark:
                mark_failed(self._fs, slot.directory, str(loop.halted))
            return DrainerEvent(sender_id, "failed", str(loop.halted))
        if slot.ring.acked_fsn < slot.ring.published_fsn:
            if self._stop_when_offline:
                with self._guard:
                    self._waiting.clear()  # the other slots would not reach a server either
            return DrainerEvent(sender_id, "stopped")
        return DrainerEvent(sender_id, "drained")
