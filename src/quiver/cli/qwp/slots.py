"""Helpers shared by the `quiver qwp` commands: finding slots, reports, and messages while no server answers."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import UsageError
from quiver.observe import InMemoryObserver, Value

if TYPE_CHECKING:
    from quiver.qwp.slots.inspection import SlotReport

__all__ = ["NoServerReporter", "age_s", "holder", "names_of_slots", "slot_as_dict", "slot_report"]

_SILENT_S = 5.0


class NoServerReporter(InMemoryObserver):
    """Reports periodically that no server answers, because reconnecting can take minutes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._printed_at = -math.inf

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:  # noqa: ARG002
        """Print a line to stderr if the last one is old enough."""
        now = self._clock.monotonic()
        if name == "qwp.no_server" and now - self._printed_at >= _SILENT_S:
            self._printed_at = now
            typer.echo(f"quiver: {attributes['reason']}; {attributes['frames']} frames are waiting, retrying", err=True)


def names_of_slots(root: Path, wanted: list[str] | None) -> list[str]:
    """
    Return the names in *wanted*, or all slots below *root* if it is None.

    Raises:
        UsageError: a slot does not exist.
    """
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.slots.inspection import slots_below  # noqa: PLC0415

    found = slots_below(REAL_FILES, str(root))
    for name in wanted or ():
        if name not in found:
            raise UsageError(f"{root} has no slot {name}; available: {', '.join(found) or 'none'}")
    return wanted or found


def slot_report(root: Path, name: str, known: dict[str, Any] | None = None) -> SlotReport:
    """Return a report on the slot *name*. Pass the same *known* each time to reuse what has not changed."""
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.slots.inspection import inspect_slot  # noqa: PLC0415

    return inspect_slot(REAL_FILES, str(root), name, known)


def age_s(one: SlotReport) -> float | None:
    """Return the age of the oldest unconfirmed rows of a slot in seconds, or None if all are confirmed."""
    return None if one.oldest_us is None else max(0.0, SYSTEM_CLOCK.now_ns() / 1e9 - one.oldest_us / 1e6)


def holder(one: SlotReport) -> str | None:
    """Return the pid that last held the slot, marked if no such process exists on this machine."""
    if one.holder is None or not one.holder.isdecimal():
        return one.holder
    return one.holder if Path(f"/proc/{one.holder}").exists() or not Path("/proc").exists() else f"{one.holder} (dead)"


def slot_as_dict(one: SlotReport) -> dict[str, Any]:
    """Return a report in the form that `--json` prints."""
    return {
        "slot": one.sender_id,
        "backlog_frames": one.backlog,
        "backlog_bytes": one.backlog_bytes,
        "waits_s": age_s(one),
        "first_frame": one.first_fsn,
        "next_frame": one.next_fsn,
        "confirmed": one.confirmed,
        "size_bytes": one.size_bytes,
        "last_holder": holder(one),
        "held": one.is_held,
        "failed": one.failed,
        "dead_letters": one.dead_letters,
        "problem": one.problem,
        "damaged_copies": list(one.damaged_copies),
        "segments": one.segments,
    }
