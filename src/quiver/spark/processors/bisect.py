"""
Find which of several items make all of them fail together, by bisection. Pure.

::

    fails([a b c d e f g h])         known before
    fails([a b c d])                 no: then the fault is in the other half, which is not probed
    fails([e f])                     yes: it may be in the other half, too
    fails([g h])                     no
    …
    fails(all except what was found) no: nothing else is at fault
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["PROBES_MAX", "PROBES_WITHOUT_SUCCESS_MAX", "bisect"]

PROBES_MAX = 512
"""
A probe is a Spark job. Items that are not separated after this many probes are queued together and retried
individually later. That takes a job for each of them, so this limit is high.
"""
PROBES_WITHOUT_SUCCESS_MAX = 128
"""When no probe has passed by then, nearly every item fails, and there is little to separate."""

_Item = TypeVar("_Item")


def bisect(
    items: Sequence[_Item],
    fails: Callable[[Sequence[_Item]], str | None],
    *,
    reason: str,
    probes_max: int = PROBES_MAX,
) -> list[tuple[_Item, str]]:
    """
    Return the items without which the others are known or likely to pass, each with the reason of its failure.

    When items fail only in combination, the result has one of them, or all: which one is at fault cannot be known.

    Args:
        items: they fail together.
        fails: returns why some of them fail together, or None if they pass.
        reason: why all of them fail together.
        probes_max: how often *fails* may be called; `PROBES_WITHOUT_SUCCESS_MAX` while no probe has passed. Groups
            that are not separated by then are returned completely.
    """
    search = _Search(items, fails, probes_max)
    found = search.halve(list(range(len(items))), reason, may_assume=True)
    rest = [at for at in range(len(items)) if at not in found]
    if rest and search.may_probe(1):
        why = search.probe(rest)
        if why is not None:
            # An assumption was wrong: both halves of some group fail.
            found |= search.halve(rest, why, may_assume=False)
    return [(items[at], found[at]) for at in sorted(found)]


class _Search(Generic[_Item]):
    def __init__(self, items: Sequence[_Item], fails: Callable[[Sequence[_Item]], str | None], probes_max: int) -> None:
        self._items = items
        self._fails = fails
        self._probes_max = probes_max
        self._probes = 0
        self._has_passed = False

    def may_probe(self, count: int) -> bool:
        limit = self._probes_max if self._has_passed else min(self._probes_max, PROBES_WITHOUT_SUCCESS_MAX)
        return self._probes + count <= limit

    def probe(self, chosen: Sequence[int]) -> str | None:
        self._probes += 1
        reason = self._fails([self._items[at] for at in chosen])
        self._has_passed = self._has_passed or reason is None
        return reason

    def halve(self, chosen: Sequence[int], reason: str, *, may_assume: bool) -> dict[int, str]:
        """
        Return which of *chosen*, which fail together, are at fault.

        Args:
            chosen: indexes of items.
            reason: why they fail.
            may_assume: assume that one half fails when the other passes, instead of probing it.
        """
        found: dict[int, str] = {}
        # Largest group first, so that groups left without probes are small.
        groups = [(-len(chosen), list(chosen), reason)]
        while groups:
            _, group, why = heapq.heappop(groups)
            first, second = group[: len(group) // 2], group[len(group) // 2 :]
            failing = []
            if len(group) > 1 and self.may_probe(2):
                of_first = self.probe(first)
                if of_first is not None:
                    failing.append((-len(first), first, of_first))
                of_second = why if of_first is None and may_assume else self.probe(second)
                if of_second is not None:
                    failing.append((-len(second), second, of_second))
            for one in failing:
                heapq.heappush(groups, one)
            if not failing:
                found |= dict.fromkeys(group, why if len(group) == 1 else f"one of {len(group)} bundles: {why}")
        return found
