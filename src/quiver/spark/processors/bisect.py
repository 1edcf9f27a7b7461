"""
Which of several things is it that makes all of them fail? Found by halving; pure.

::

    fails([a b c d e f g h])        asked before
    fails([a b c d])                no: then it is in the other half, and that is not asked
    fails([e f])                    yes: it may be in the other half, too
    fails([g h])                    no
    …
    fails(all but what was found)   no: that was all
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["PROBES_IN_VAIN_MAX", "PROBES_MAX", "isolate"]

PROBES_MAX = 512
"""
A probe is a job of Spark's. What is not told apart by then is set aside together, and tried one by one later: a job for
each, which costs more than to go on asking.
"""
PROBES_IN_VAIN_MAX = 128
"""Where nothing has passed by then, nearly everything fails, and there is little to tell apart."""

_Thing = TypeVar("_Thing")


def isolate(
    things: Sequence[_Thing],
    fails: Callable[[Sequence[_Thing]], str | None],
    *,
    reason: str,
    probes_max: int = PROBES_MAX,
) -> list[tuple[_Thing, str]]:
    """
    Return those of *things* without which the others are known or likely not to fail, each with the reason.

    Of what fails only together with others, one is returned, or all of them: nobody knows which one it is.

    Args:
        things: they fail together.
        fails: says why some of them fail together, or None.
        reason: why all of them do.
        probes_max: *fails* is asked so often at most, and `PROBES_IN_VAIN_MAX` times as long as nothing passes; what
            is not told apart by then is returned whole.
    """
    search = _Search(things, fails, probes_max)
    found = search.halve(list(range(len(things))), reason, may_assume=True)
    rest = [at for at in range(len(things)) if at not in found]
    if rest and search.may_ask(1):
        why = search.ask(rest)
        if why is not None:
            # What was taken for granted was wrong.
            found |= search.halve(rest, why, may_assume=False)
    return [(things[at], found[at]) for at in sorted(found)]


class _Search(Generic[_Thing]):
    def __init__(
        self, things: Sequence[_Thing], fails: Callable[[Sequence[_Thing]], str | None], probes_max: int
    ) -> None:
        self._things = things
        self._fails = fails
        self._probes_max = probes_max
        self._asked = 0
        self._has_passed = False

    def may_ask(self, count: int) -> bool:
        most = self._probes_max if self._has_passed else min(self._probes_max, PROBES_IN_VAIN_MAX)
        return self._asked + count <= most

    def ask(self, chosen: Sequence[int]) -> str | None:
        self._asked += 1
        reason = self._fails([self._things[at] for at in chosen])
        self._has_passed = self._has_passed or reason is None
        return reason

    def halve(self, chosen: Sequence[int], reason: str, *, may_assume: bool) -> dict[int, str]:
        """
        Return which of *chosen*, which fail together, are at fault.

        Args:
            chosen: places of things.
            reason: why they fail.
            may_assume: take it for granted that one half fails when the other does not.
        """
        found: dict[int, str] = {}
        # The largest first: what is left when there are no probes any more is small.
        groups = [(-len(chosen), list(chosen), reason)]
        while groups:
            _, group, why = heapq.heappop(groups)
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            failing = []
            if len(group) > 1 and self.may_ask(2):
                of_first = self.ask(first)
                if of_first is not None:
                    failing.append((-len(first), first, of_first))
                of_second = why if of_first is None and may_assume else self.ask(second)
                if of_second is not None:
                    failing.append((-len(second), second, of_second))
            for one in failing:
                heapq.heappush(groups, one)
            if not failing:
                said = why if len(group) == 1 else f"one of {len(group)} bundles: {why}"
                found |= dict.fromkeys(group, said)
        return found
