"""Delays between retries. Pure: nothing here sleeps, and the random source is a parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from quiver.errors import SettingsError

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Delays that grow by a factor up to a cap, each randomly shortened so that many clients do not retry simultaneously.

    Attributes:
        first_s: the delay after the first failure.
        cap_s: the maximum delay.
        factor: each delay is this many times the previous one.
        jitter: 0 uses each delay unchanged; 1 uses a random part of it.

    Raises:
        SettingsError: out of range.
    """

    first_s: float = 0.1
    cap_s: float = 30.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.cap_s < math.inf:
            raise SettingsError(f"backoff: 0 < first_s <= cap_s must hold, not {self.first_s} and {self.cap_s}")
        if not 1 <= self.factor < math.inf:
            raise SettingsError(f"backoff: factor must be at least 1, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise SettingsError(f"backoff: jitter must be 0 to 1, not {self.jitter}")

    def delays(self, random: Random) -> Iterator[float]:
        """Yield the seconds to wait after the first failure, the second, and so on indefinitely."""
        delay = self.first_s
        while True:
            yield delay * (1 - self.jitter * random.random())
            delay = min(delay * self.factor, self.cap_s)
