"""Statistics of a sender."""

from __future__ import annotations

from typing import Any

from quiver.qwp.connection.session import SenderError
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.drainers import Drainers
from quiver.qwp.inbox import ErrorInbox
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.slot import MemorySlot, Slot

__all__ = ["SenderFigures"]


class SenderFigures:
    """The read-only part of a `Sender`: statistics."""

    settings: SenderSettings
    _slot: Slot | MemorySlot
    _loop: WireLoop
    _inbox: ErrorInbox
    _drainers: Drainers
    _counters: Counters

    def stats(self) -> dict[str, Any]:
        """Return current statistics; ``slots`` has those of each slot by name, including adopted slots."""
        return {"slots": {self.settings.sender_id: self._loop.stats(), **self._drainers.stats()}}

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the frames that the server has not confirmed."""
        return self._slot.ring.backlog_bytes

    @property
    def oldest_unconfirmed_s(self) -> float:
        """
        The age in seconds of the oldest unconfirmed row in the slot; 0 if all are confirmed. For rows of an earlier
        process it is the age of their segment.
        """
        age_s: float = self._loop.stats()["oldest_unconfirmed_s"]
        return age_s

    @property
    def published_fsn(self) -> int:
        """The number of the newest frame in the slot; -1 if there is none."""
        return self._slot.ring.published_fsn

    @property
    def acked_fsn(self) -> int:
        """The highest frame that the server has confirmed; -1 if there is none."""
        return self._slot.ring.acked_fsn

    @property
    def total_reconnect_attempts(self) -> int:
        """The number of attempts to reconnect."""
        return self._counters.reconnect_attempts

    @property
    def total_reconnects_succeeded(self) -> int:
        """The number of successful reconnects."""
        return self._counters.reconnects_succeeded

    @property
    def total_frames_sent(self) -> int:
        """The number of frames sent, counting each attempt."""
        return self._counters.frames_sent

    @property
    def total_frames_replayed(self) -> int:
        """The number of frames sent again."""
        return self._counters.frames_replayed

    @property
    def total_server_errors(self) -> int:
        """The number of refusals from the server."""
        return self._counters.server_errors

    @property
    def total_frames_dropped(self) -> int:
        """The number of frames, or parts of frames, dropped: refused by the server, or too large for it."""
        return self._counters.frames_dropped

    @property
    def total_dead_letters_dropped(self) -> int:
        """The number of dead letters not kept: the limit was reached, or ``sf_dir`` is not set."""
        return self._counters.dead_letters_dropped

    @property
    def dropped_error_notifications(self) -> int:
        """The number of errors dropped because the inbox was full."""
        return self._inbox.dropped

    @property
    def total_error_notifications_delivered(self) -> int:
        """The number of errors delivered to the handler."""
        return self._inbox.delivered

    @property
    def total_backpressure_stalls(self) -> int:
        """How often a producer had to wait for space."""
        return self._slot.ring.stalls

    @property
    def last_terminal_error(self) -> SenderError | None:
        """The error that halted the sender, or None."""
        return self._loop.halted

    @property
    def active_background_drainers(self) -> int:
        """The number of adopted slots that are being drained."""
        return self._drainers.active

    @property
    def total_background_drainers_succeeded(self) -> int:
        """The number of adopted slots that were drained."""
        return self._drainers.succeeded

    @property
    def total_background_drainers_failed(self) -> int:
        """The number of adopted slots that could not be drained."""
        return self._drainers.failed
