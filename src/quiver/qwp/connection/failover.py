"""
Reconnect policy: the choice of the next host and of the pause before it. This module neither sleeps nor connects.

Hosts are tried in rounds, each host at most once per round: the best state first, then in the order of the connect
string. There is a pause between rounds, but not between the hosts of a round.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum
from random import Random

__all__ = ["HostState", "HostTracker", "OutageBackoff"]


class HostState(IntEnum):
    """The assumed state of a host, best first."""

    HEALTHY = 0
    UNKNOWN = 1
    TRANSIENT_REJECT = 2
    TRANSPORT_ERROR = 3
    TOPOLOGY_REJECT = 4


class HostTracker:
    """
    The states of all hosts, and which of them this round has tried. Thread-safe. Each loop that connects remembers its
    own host.

    Attributes:
        last_failure: a description of the last failure, with its host; empty if there was none. Set by the loops.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._states = [HostState.UNKNOWN] * count
        self._attempted = [False] * count
        self._latest: int | None = None  # the host that answered last, while it is healthy
        self.last_failure = ""

    def states(self) -> tuple[HostState, ...]:
        """Return the state of each host."""
        with self._lock:
            return tuple(self._states)

    def pick_next(self) -> int | None:
        """Return the best host that this round has not tried, or None."""
        with self._lock:
            left = [index for index, attempted in enumerate(self._attempted) if not attempted]
            return min(left, key=lambda index: (self._states[index], index)) if left else None

    def begin_round(self, *, forget: bool) -> None:
        """Start a round. With *forget*, reset the state of all hosts except the one that answered last."""
        with self._lock:
            self._attempted = [False] * len(self._attempted)
            if forget:
                self._states = [
                    state if index == self._latest and state is HostState.HEALTHY else HostState.UNKNOWN
                    for index, state in enumerate(self._states)
                ]

    def record_success(self, index: int) -> None:
        """Record that the host answered."""
        self._record(index, HostState.HEALTHY)

    def record_role_reject(self, index: int, *, transient: bool) -> None:
        """Record that the host does not accept writes, for now or because of its role in the cluster."""
        self._record(index, HostState.TRANSIENT_REJECT if transient else HostState.TOPOLOGY_REJECT)

    def record_transport_error(self, index: int) -> None:
        """Record that the host could not be reached, or did not speak the protocol."""
        self._record(index, HostState.TRANSPORT_ERROR)

    def record_mid_stream_failure(self, index: int) -> None:
        """Record a broken connection. This does not change whether the host was tried in this round."""
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
class OutageBackoff:
    """
    The pauses of one outage.

    Attributes:
        first_s: the base of the first pause; it doubles with each round.
        cap_s: the maximum of the base. The random part may exceed it.
        outage_s_max: the maximum duration of the outage.
        random: the source of randomness.
        attempt: rounds so far.
        since: the start of the outage, on the caller's clock.
    """

    first_s: float
    cap_s: float
    outage_s_max: float
    random: Random
    attempt: int = 0
    since: float = 0.0

    def base_s(self, attempt: int) -> float:
        """Return the pause after *attempt* rounds, without the random part."""
        base = min(self.first_s, self.cap_s)
        for _ in range(attempt):
            if base > self.cap_s / 2:
                return self.cap_s
            base *= 2
        return base

    def start(self, now: float) -> None:
        """Start an outage: reset the pause and the time limit."""
        self.attempt = 0
        self.since = now

    def remaining_s(self, now: float) -> float:
        """Return the remaining time of the outage."""
        return self.outage_s_max - (now - self.since)

    def after_round(self, now: float, *, role_reject: bool) -> float | None:
        """
        Return the pause before the next round, or None when the time is over.

        The pause is between b and 2b, so that many senders spread out. If the last host of the round reported that it
        does not accept writes, the pause is the first one, not doubled: the host will soon accept writes.
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
