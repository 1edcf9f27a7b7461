"""
Slots that other senders left behind, emptied beside one's own.

Each has its own lock, ring and connection. One that cannot be emptied (no server in time, not let in, refused for good,
damaged) is marked with ``.failed`` while its lock is still held, and left alone from then on until a person removes the
mark.
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
    What became of one slot: `started`, `drained`, `failed` (and marked), `skipped` (somebody holds it, or it is of a
    newer version), `stopped` (the sender was closed first, or no server answered one that gives way).
    """

    sender_id: str
    kind: Literal["started", "drained", "failed", "skipped", "stopped"]
    reason: str = ""


DrainerListener = Callable[[DrainerEvent], None]


class Drainers:
    """
    Empties orphaned slots, a few at a time.

    Args:
        settings: of the sender that adopts them.
        tracker: what is known of the hosts.
        listener: is told what becomes of each slot, from the drainers' threads.
        on_error: is given every refusal.
        fs, clock, observer, random: as everywhere.
        gives_way: let go of a slot while no server answers, and leave no mark: its owner will soon want it, as a task
            of Spark does. Otherwise it is held until one does, or the time for reconnecting is over.
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
        gives_way: bool = False,
    ) -> None:
        self._settings = settings
        self._gives_way = gives_way
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
        Look for orphans once, and begin to empty them.

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
        """Return figures of this moment about each slot that is being emptied."""
        with self._guard:
            loops = dict(self._loops)
        return {sender_id: loop.stats() for sender_id, loop in loops.items()}

    def stop(self) -> None:
        """End all drainers. What they had not emptied stays, unmarked."""
        with self._guard:
            self._stopping = True
            self._waiting.clear()
            loops = list(self._loops.values())
        for loop in loops:
            loop.stop(0)
        for worker in self._workers:
            worker.stop(_STOP_S)  # from a listener, which may close the sender, it is not waited for

    def drain(self, sender_id: str) -> DrainerEvent:
        """Empty one slot in this thread, because a person asked for it: failure leaves no mark."""
        try:
            return self._drain(sender_id, mark=False)
        except (OSError, StoreFailedError) as error:
            return DrainerEvent(sender_id, "failed", f"the disk refused: {error}")

    def _turn(self) -> Finished | None:
        with self._guard:
            if not self._waiting or self._stopping:
                return FINISHED
            sender_id = self._waiting.pop(0)
            self.active += 1
        event = DrainerEvent(sender_id, "failed", "a fault of the drainer")
        try:
            event = self._drain(sender_id, mark=True)
        except (OSError, StoreFailedError) as error:
            event = DrainerEvent(sender_id, "failed", f"the disk refused: {error}")
        finally:
            with self._guard:
                self.active -= 1
            self._settle(event)
        return None

    def _settle(self, event: DrainerEvent) -> None:
        with self._guard:
            self.succeeded += event.kind == "drained"
            self.failed += event.kind == "failed"
        self._tell(event)

    def _fail(self, died: WorkerDiedError) -> None:
        """Report every slot that no drainer is left for. They are not marked: the next sender tries them again."""
        with self._guard:
            if any(worker.is_running and worker.died is None for worker in self._workers):
                return
            waiting, self._waiting = self._waiting, []
        for sender_id in waiting:
            self._settle(DrainerEvent(sender_id, "failed", str(died)))

    def _tell(self, event: DrainerEvent) -> None:
        level = logging.ERROR if event.kind == "failed" else logging.INFO
        self._observer.count("quiver.qwp.drainers_total", kind=event.kind)
        self._observer.event("qwp.drainer", level=level, slot=event.sender_id, kind=event.kind, reason=event.reason)
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:  # noqa: BLE001
            # The caller's code: its failure must neither end the thread nor leave the slot locked.
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
            self._tell(DrainerEvent(sender_id, "started"))
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
                gives_way=self._gives_way,
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
            if self._gives_way:
                with self._guard:
                    self._waiting.clear()  # the others would find no server either
            return DrainerEvent(sender_id, "stopped")
        return DrainerEvent(sender_id, "drained")
