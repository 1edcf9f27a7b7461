"""
Which host next, and after which pause: the arithmetic of reconnecting. Nothing here sleeps or connects.

Hosts are tried in rounds: each at most once in a round, the best state first, among equals in the order of the connect
string. Between the hosts of a round there is no pause; between rounds there is one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum
from random import Random

__all__ = ["Backoff", "HostState", "HostTracker"]


class HostState(IntEnum):
    """What is thought of a host, the best first."""

    HEALTHY = 0
    UNKNOWN = 1
    TRANSIENT_REJECT = 2
    TRANSPORT_ERROR = 3
    TOPOLOGY_REJECT = 4


class HostTracker:
    """
    The states of all hosts, and which of them this round has tried. Thread-safe; each loop that connects keeps for
    itself to which host it was connected.

    Attributes:
        last_failure: in words, which host failed last and why; empty as long as none did. Set by the loops.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._states = [HostState.UNKNOWN] * count
        self._attempted = [False] * count
        self._latest: int | None = None  # the host that answered last, as long as it is healthy
        self.last_failure = ""

    def states(self) -> tuple[HostState, ...]:
        """Return what is thought of each host."""
        with self._lock:
            return tuple(self._states)

    def pick_next(self) -> int | None:
        """Return the best host that this round has not tried, or None."""
        with self._lock:
            left = [index for index, attempted in enumerate(self._attempted) if not attempted]
            return min(left, key=lambda index: (self._states[index], index)) if left else None

    def begin_round(self, *, forget: bool) -> None:
        """Let every host be tried again. With *forget* nothing is thought of any but the one that answered last."""
        with self._lock:
            self._attempted = [False] * len(self._attempted)
            if forget:
                self._states = [
                    state if index == self._latest and state is HostState.HEALTHY else HostState.UNKNOWN
                    for index, state in enumerate(self._states)
                ]

    def record_success(self, index: int) -> None:
        """The host answered."""
        self._record(index, HostState.HEALTHY)

    def record_role_reject(self, index: int, *, transient: bool) -> None:
        """The host takes no writes: for now, or because of its place in the cluster."""
        self._record(index, HostState.TRANSIENT_REJECT if transient else HostState.TOPOLOGY_REJECT)

    def record_transport_error(self, index: int) -> None:
        """The host could not be reached, or did not speak the protocol."""
        self._record(index, HostState.TRANSPORT_ERROR)

    def record_mid_stream_failure(self, index: int) -> None:
        """A connection broke. Whether the host was tried in this round stays as it is."""
        with self._lock:
            if self._states[index] is HostState.HEALTHY:
                self._states[index] = HostState.TRANSPORT_ERROR

    def _record(self, index: int, state: HostState) -> None:
        with self._lock:
            self._states[index] = state
            self._attempted[index] = True
            if state is HostState.HEALTHY:
                self._latest = index


@dataclass(slots=True)
class Backoff:
    """
    The pauses of one outage.

    Attributes:
        first_s: the base of the first pause; it doubles from round to round.
        cap_s: where it stops doubling. What chance adds may go beyond.
        outage_s_max: the outage may last so long.
        random: where chance comes from.
        attempt: rounds so far.
        since: when the outage began, on the caller's clock.
    """

    first_s: float
    cap_s: float
    outage_s_max: float
    random: Random
    attempt: int = 0
    since: float = 0.0

    def base_s(self, attempt: int) -> float:
        """Return the pause after so many rounds, before chance."""
        base = min(self.first_s, self.cap_s)
        for _ in range(attempt):
            if base > self.cap_s / 2:
                return self.cap_s
            base *= 2
        return base

    def start(self, now: float) -> None:
        """Begin an outage: the first pause again, and all of the time."""
        self.attempt = 0
        self.since = now

    def remaining_s(self, now: float) -> float:
        """Return how much of the outage's time is left."""
        return self.outage_s_max - (now - self.since)

    def after_round(self, now: float, *, role_reject: bool) -> float | None:
        """
        Return the pause before the next round; None when the time is over.

        Between b and 2b, so that a crowd of senders spreads. When the last host of the round said that it takes no
        writes, the first pause and no doubling: it will, soon.
        """
        remaining = self.remaining_s(now)
        if remaining <= 0:
            return None
        if role_reject:
            self.attempt = 0
            return min(self.first_s, remaining)
        base = self.base_s(self.attempt)
        self.attempt += 1
        return min(base + self.random.random() * base, remaining)
