"""What a sender says of itself in numbers."""

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
    """The part of a `Sender` that only reads."""

    settings: SenderSettings
    _slot: Slot | MemorySlot
    _loop: WireLoop
    _inbox: ErrorInbox
    _drainers: Drainers
    _counters: Counters

    def stats(self) -> dict[str, Any]:
        """
        Return figures of this moment: ``slots`` has those of each slot by its name, also of slots
        that are adopted.
        """
        return {"slots": {self.settings.sender_id: self._loop.stats(), **self._drainers.stats()}}

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the frames that the server has not confirmed."""
        return self._slot.ring.backlog_bytes

    @property
    def oldest_unconfirmed_s(self) -> float:
        """
        For how many seconds the oldest row that the server has not confirmed has been in the slot; 0 when there is
        none. Of rows that an earlier process left, since when their segment has been there.
        """
        age_s: float = self._loop.stats()["oldest_unconfirmed_s"]
        return age_s

    @property
    def published_fsn(self) -> int:
        """The number of the newest frame in the slot, -1 for none."""
        return self._slot.ring.published_fsn

    @property
    def acked_fsn(self) -> int:
        """The highest frame that the server has confirmed, -1 for none."""
        return self._slot.ring.acked_fsn

    @property
    def total_reconnect_attempts(self) -> int:
        """How often another connection was tried."""
        return self._counters.reconnect_attempts

    @property
    def total_reconnects_succeeded(self) -> int:
        """How often that succeeded."""
        return self._counters.reconnects_succeeded

    @property
    def total_frames_sent(self) -> int:
        """Frames that went out, each time counted."""
        return self._counters.frames_sent

    @property
    def total_frames_replayed(self) -> int:
        """Frames that went out again."""
        return self._counters.frames_replayed

    @property
    def total_server_errors(self) -> int:
        """Refusals that the server sent."""
        return self._counters.server_errors

    @property
    def total_frames_dropped(self) -> int:
        """Frames, or parts of them, that were given up: refused by the server, or too large for it."""
        return self._counters.frames_dropped

    @property
    def total_dead_letters_dropped(self) -> int:
        """Dead letters that are not kept: there was no room for more of them, or there is no ``sf_dir``."""
        return self._counters.dead_letters_dropped

    @property
    def dropped_error_notifications(self) -> int:
        """Errors that found the inbox full and pushed another one out."""
        return self._inbox.dropped

    @property
    def total_error_notifications_delivered(self) -> int:
        """Errors that were given to the handler."""
        return self._inbox.delivered

    @property
    def total_backpressure_stalls(self) -> int:
        """How often a producer had to wait for room."""
        return self._slot.ring.stalls

    @property
    def last_terminal_error(self) -> SenderError | None:
        """Why the sender has halted; None while it has not."""
        return self._loop.halted

    @property
    def active_background_drainers(self) -> int:
        """Adopted slots that are being emptied."""
        return self._drainers.active

    @property
    def total_background_drainers_succeeded(self) -> int:
        """Adopted slots that were emptied."""
        return self._drainers.succeeded

    @property
    def total_background_drainers_failed(self) -> int:
        """Adopted slots that could not be emptied."""
        return self._drainers.failed
