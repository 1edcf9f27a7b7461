"""
Bundles claimed from a subscriber, and combination of small requests into larger ones.

The concatenation of two OTLP requests of one signal is a request with the records of both. It is confirmed or refused
as one. Each of its bundles is acknowledged when all of the bundle's own requests are confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from quiver.bundle import OTLP_SLOTS
from quiver.exporters.attempts import Attempts
from quiver.exporters.ports import ForwardedHandle

__all__ = ["CombinedRequest", "TakenBundle", "combined"]


@dataclass(slots=True, eq=False)
class TakenBundle:
    """
    A claimed bundle.

    Attributes:
        handle: the claim.
        attempts: its earlier attempts.
        requests: signal and bytes of each of its requests; None before they are needed, or if it could not be read.
    """

    handle: ForwardedHandle
    attempts: Attempts
    requests: list[tuple[str, bytes]] | None = None

    @property
    def nbytes(self) -> int:
        """The size of its requests; 0 if unknown."""
        return sum(len(request) for _, request in self.requests or ())


@dataclass(frozen=True, slots=True)
class CombinedRequest:
    """
    The requests of several bundles, combined.

    Attributes:
        signal: the signal of all requests.
        data: the combined request.
        members: the bundles, each with the number of its request.
    """

    signal: str
    data: bytes
    members: tuple[tuple[TakenBundle, int], ...]

    @property
    def batch_id(self) -> str:
        """An id that depends only on the combined requests and their order."""
        names = ",".join(f"{taken.handle.ref}/{number}" for taken, number in self.members)
        return f"combined/{blake3(names.encode()).hexdigest(16)}"


def combined(bundles: Sequence[TakenBundle], bytes_max: int) -> list[CombinedRequest]:
    """
    Combine the unsent requests of *bundles* into requests of at most *bytes_max* bytes.

    Requests that cannot be combined with another one are left out. The order within a signal is kept.
    """
    found: list[CombinedRequest] = []

    def close(signal: str, parts: list[bytes], members: list[tuple[TakenBundle, int]]) -> None:
        if len(members) > 1:
            found.append(CombinedRequest(signal, b"".join(parts), tuple(members)))

    for wanted in OTLP_SLOTS:
        parts: list[bytes] = []
        members: list[tuple[TakenBundle, int]] = []
        size = 0
        for taken in bundles:
            for number, (signal, request) in enumerate(taken.requests or ()):
                if signal != wanted or not taken.attempts.of(number).is_untouched:
                    continue
                if size + len(request) > bytes_max:
                    close(wanted, parts, members)
                    parts, members, size = [], [], 0
                parts.append(request)
                members.append((taken, number))
                size += len(request)
        close(wanted, parts, members)
    return found
