"""One performance goal: who is measured, what comes out, what it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[Path], Mapping[str, float]]

STORE = "Quiver"


@dataclass(frozen=True)
class Figure:
    """One figure that every contender returns under *key*."""

    key: str
    unit: str
    aim: str = ""
    lower_is_better: bool = False
    style: str = ",.0f"


@dataclass(frozen=True)
class Goal:
    """Contenders by name, each run in an empty directory; *floor* is the one that the ratios are to."""

    key: str
    what: str
    contenders: dict[str, Run]
    figures: tuple[Figure, ...]
    floor: str
    ours: str = STORE


def percentile(values: list[float], share: float) -> float:
    """Return the value that *share* of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
