"""
Dead letters that are delivered again by themselves, once their exporter works again.

A letter whose data were refused would be refused again: it waits for a person. The others are there because the
receiver was down for too long, or did not let the exporter in. They are tried one after the other, the least often
tried first. One that fails ends the pass, and the next pass comes later, after up to ten minutes, or when the exporter
is seen to work again: an exporter without other data finds that out with a single letter now and then.
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

__all__ = ["LetterReplay"]

LOOK_S = 30.0
"""Whether there are letters is looked at this often."""
REFUSED_MAX = 10
"""So many letters that are refused one after the other end a pass, too."""
BACKOFF = Backoff(first_s=30.0, cap_s=600.0)


class LetterReplay:
    """
    Replays the letters of one exporter. Not thread-safe: one worker calls `run`.

    Args:
        exporter: its name.
        letters: its dead letters.
        deliver: sends one, and says what became of it.
        random: where the jitter of the pauses comes from.
        clock: spaces the passes.
        observer: takes counts and events.
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

    def works_again(self) -> None:
        """Let the next pass begin at once: the exporter failed, and delivers again."""
        self._delays = BACKOFF.delays(self._random)
        self._next_at_s = self._clock.monotonic()

    def run(self, may_go_on: Callable[[], bool]) -> int:
        """
        Deliver what may be delivered now; return how many letters were.

        Args:
            may_go_on: asked before each letter: the exporter works, as far as it knows, and is not to stop.
        """
        if self._clock.monotonic() < self._next_at_s or not may_go_on():
            return 0
        self._next_at_s = self._clock.monotonic() + LOOK_S
        try:
            delivered = self._replay(may_go_on)
        except (QuiverError, OSError) as error:
            # Somebody else has the letters open, or the disk refused: nothing is lost by trying later.
            self._observer.event("quiver.exporter.replay", exporter=self._exporter, problem=str(error))
            return 0
        if delivered:
            self._observer.event("quiver.exporter.replay", exporter=self._exporter, delivered=delivered)
        return delivered

    def _replay(self, may_go_on: Callable[[], bool]) -> int:
        delivered = refused = 0
        with self._letters.opened_for_dropping() as box:
            waiting = [
                letter
                for letter in ([] if box is None else box.sealed_letters())
                if not letter.is_refused and letter.ref not in self._refused
            ]
            for letter in sorted(waiting, key=lambda letter: self._tried[letter.ref]):
                if box is None or not may_go_on():
                    break
                outcome = self._deliver(letter)
                if isinstance(outcome, Delivered):
                    # Killed before this is durable, it is delivered once more.
                    box.drop({letter.ref})
                    self._tried.pop(letter.ref, None)
                    self._delays = BACKOFF.delays(self._random)
                    delivered += 1
                    refused = 0
                    self._count("delivered")
                    continue
                self._tried[letter.ref] += 1
                if isinstance(outcome, Permanent) and outcome.is_of_data:
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
