"""
Automatic replay of dead letters after their exporter has recovered.

A dead letter whose data were refused would be refused again, so it is only replayed manually. The others became dead
letters because the destination was down for too long or rejected the exporter's credentials. They are tried one by
one, those with the fewest attempts first. A failure ends the pass. The next pass starts after a backoff of up to ten
minutes, or when the exporter recovers. An exporter without other data notices the recovery by trying one dead letter
in each pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from quiver.bundle import BundleRef
from quiver.clock import Clock
from quiver.delivery.dead_letters import DeadLetter, DeadLetters
from quiver.delivery.policy import Delivered, Outcome, Permanent
from quiver.errors import QuiverError
from quiver.observe import Observer
from quiver.primitives.backoff import Backoff

__all__ = ["DeadLetterReplay"]

CHECK_INTERVAL_S = 30.0
"""Pause between two checks for dead letters."""
REFUSED_MAX = 10
"""This many refused dead letters in a row also end a pass."""
BACKOFF = Backoff(first_s=30.0, cap_s=600.0)


class DeadLetterReplay:
    """
    Replays the dead letters of one exporter. Not thread-safe: one worker calls `run`.

    Args:
        exporter: its name.
        letters: its dead letters.
        deliver: sends one and returns the outcome.
        random: source of the jitter of the pauses.
        clock: measures the pauses between passes.
        observer: receives counts and events.
    """

    def __init__(
        self,
        exporter: str,
        letters: DeadLetters,
        deliver: Callable[[DeadLetter], Outcome],
        *,
        random: Random,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._exporter = exporter
        self._letters = letters
        self._deliver = deliver
        self._random = random
        self._clock = clock
        self._observer = observer
        self._tried: Counter[BundleRef] = Counter()
        self._refused: set[BundleRef] = set()
        self._delays = BACKOFF.delays(random)
        self._next_at_s = clock.monotonic()

    def exporter_recovered(self) -> None:
        """Start the next pass immediately, because the exporter delivers again after a failure."""
        self._delays = BACKOFF.delays(self._random)
        self._next_at_s = self._clock.monotonic()

    def run(self, may_continue: Callable[[], bool]) -> int:
        """
        Run one pass if it is due. Return how many dead letters were delivered.

        Args:
            may_continue: called before each dead letter; whether the exporter is working and not about to stop.
        """
        if self._clock.monotonic() < self._next_at_s or not may_continue():
            return 0
        self._next_at_s = self._clock.monotonic() + CHECK_INTERVAL_S
        try:
            delivered = self._replay(may_continue)
        except (QuiverError, OSError) as error:
            # Another process has the dead letters open, or the disk failed. A later pass loses nothing.
            self._observer.event("quiver.exporter.replay", exporter=self._exporter, problem=str(error))
            return 0
        if delivered:
            self._observer.event("quiver.exporter.replay", exporter=self._exporter, delivered=delivered)
        return delivered

    def _replay(self, may_continue: Callable[[], bool]) -> int:
        delivered = refused = 0
        with self._letters.open_for_removal() as opened:
            waiting = [
                letter
                for letter in ([] if opened is None else opened.sealed())
                if not letter.is_refused and letter.ref not in self._refused
            ]
            for letter in sorted(waiting, key=lambda letter: self._tried[letter.ref]):
                if opened is None or not may_continue():
                    break
                outcome = self._deliver(letter)
                if isinstance(outcome, Delivered):
                    # After a crash before this is durable, it is delivered again.
                    opened.drop({letter.ref})
                    self._tried.pop(letter.ref, None)
                    self._delays = BACKOFF.delays(self._random)
                    delivered += 1
                    refused = 0
                    self._count("delivered")
                    continue
                self._tried[letter.ref] += 1
                if isinstance(outcome, Permanent) and outcome.is_data_refused:
                    self._refused.add(letter.ref)
                    self._count("refused")
                    refused += 1
                    if refused < REFUSED_MAX:
                        continue
                else:
                    self._count("failed")
                self._next_at_s = self._clock.monotonic() + next(self._delays)
                break
        return delivered

    def _count(self, outcome: str) -> None:
        self._observer.count("quiver.exporter.replayed_total", exporter=self._exporter, outcome=outcome)
