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

__all__ = ["PROBES_MAX", "isolate"]

PROBES_MAX = 64
"""A probe is a job of Spark's. What is not told apart by then is set aside together, and tried one by one later."""

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
        probes_max: *fails* is asked so often at most; what is not told apart by then is returned whole.
    """
    search = _Search(things, fails, probes_max)
    found = search.halve(list(range(len(things))), reason, may_assume=True)
    rest = [at for at in range(len(things)) if at not in found]
    if rest and search.probes_left:
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
        self.probes_left = probes_max

    def ask(self, chosen: Sequence[int]) -> str | None:
        self.probes_left -= 1
        return self._fails([self._things[at] for at in chosen])

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
            if len(group) > 1 and self.probes_left >= 2:
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
