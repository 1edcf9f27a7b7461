"""
Replay of dead letters at an operator's request.

::

    letters ─▶ a ring in memory ─▶ server ─▶ accepted: the letter is removed
                                         └─▶ refused again: it becomes a new letter, with the new reason

A letter is removed only after the server has confirmed it, so a crash causes it to be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.connection.failover import HostTracker
from quiver.qwp.connection.session import Category, Policy, SenderError
from quiver.qwp.connection.wire_loop import Counters, WireLoop
from quiver.qwp.format.dead_letters import DeadLetterRecord
from quiver.qwp.settings import SenderSettings
from quiver.qwp.slots.dead_letters import DeadLetterFiles, StoredDeadLetter, remove_dead_letters
from quiver.qwp.slots.ring import Ring, RingSettings
from quiver.qwp.slots.segment_files import MemorySegments
from quiver.qwp.slots.slot import MemorySlot
from quiver.qwp.wire.pieces import committing

__all__ = ["ReplayResult", "replay_dead_letters"]

_BATCH_BYTES = 32 << 20
_FRAME_BYTES = 64
"""An upper bound of the overhead of a frame in a segment."""
_REFUSALS = (
    Category.SCHEMA_MISMATCH, Category.PARSE_ERROR, Category.INTERNAL_ERROR, Category.SECURITY_ERROR,
    Category.WRITE_ERROR,
)  # fmt: skip


@dataclass(slots=True)
class ReplayResult:
    """The result: how many letters the server accepted, those refused again, and why the others were not sent."""

    taken: int = 0
    refused: list[DeadLetterRecord] = field(default_factory=list)
    left: int = 0
    halted: SenderError | None = None


@dataclass(slots=True)
class _Collector(MemorySlot):
    """A slot in memory that collects refused messages."""

    refused: list[DeadLetterRecord] = field(default_factory=list)

    def keep_dead_letter(self, letter: DeadLetterRecord) -> int:
        """Collect a letter. Returns 0: no letter was removed."""
        self.refused.append(letter)
        return 0


def replay_dead_letters(
    settings: SenderSettings,
    directory: str,
    letters: Sequence[StoredDeadLetter],
    *,
    fs: FileSystem = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> ReplayResult:
    """
    Send *letters* of the slot *directory* to the server of *settings*, and remove those that it accepts.

    Refusals do not stop it and remove no other letter, regardless of the error policies and the size limit.
    Safe while the slot's sender runs.

    Raises:
        TransientError: another process was changing the letters for the entire wait.
        OSError: a disk error. Accepted letters may not have been removed.
    """
    observer = InMemoryObserver() if observer is None else observer
    settings = replace(
        settings, policies=dict.fromkeys(_REFUSALS, Policy.DROP), dead_letters=True, initial_connect="async"
    )
    # Without a limit: a letter that is refused again replaces itself, and must not displace another one.
    files = DeadLetterFiles(fs, directory, None, clock=clock, observer=observer)
    result = ReplayResult(left=len(letters))
    try:
        for batch in _batches(letters):
            refused, confirmed, halted = _send(settings, [one.letter.message for one in batch], clock, observer)
            again = [replace(one, fsn=batch[one.fsn].letter.fsn) for one in refused]
            for letter in again:
                files.keep(letter)  # before the old one is removed: a crash in between leaves it twice
            done = batch[:confirmed]
            remove_dead_letters(fs, directory, {one.id for one in done}, clock=clock)
            result.refused += again
            result.taken += len(done) - len({one.fsn for one in refused})
            result.left -= len(done)
            result.halted = halted
            if halted is not None:
                break
    finally:
        files.close()
    return result


def _batches(letters: Sequence[StoredDeadLetter]) -> Iterator[list[StoredDeadLetter]]:
    batch: list[StoredDeadLetter] = []
    size = 0
    for one in letters:
        if batch and size + len(one.letter.message) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.letter.message)
    if batch:
        yield batch


def _send(
    settings: SenderSettings, messages: list[bytes], clock: Clock, observer: Observer
) -> tuple[list[DeadLetterRecord], int, SenderError | None]:
    """Return the refusals by message number, how many messages are settled, and why not all are."""
    segment_bytes = _FRAME_BYTES * (len(messages) + 1) + sum(map(len, messages))
    ring = Ring(RingSettings(segment_bytes, 2 * segment_bytes, 0.0), MemorySegments(), clock=clock, observer=observer)
    slot = _Collector(ring)
    try:
        for message in messages:
            ring.append(committing(message))  # individually: the rest of its group was committed long ago
        loop = WireLoop(
            slot,
            settings,
            HostTracker(len(settings.addresses)),
            counters=Counters(),
            on_error=lambda _: None,
            clock=clock,
            observer=observer,
            random=Random(),  # noqa: S311
            until_drained=True,
        )
        try:
            loop.run()
        finally:
            loop.release()
        confirmed = ring.acked_fsn + 1
        return [one for one in slot.refused if one.fsn < confirmed], confirmed, loop.halted
    finally:
        slot.close()
