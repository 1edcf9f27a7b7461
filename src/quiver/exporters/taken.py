"""
Bundles that were taken from a subscriber to be sent, and the small ones among them combined into larger requests.

Two OTLP requests of one signal, written one behind the other, are a request that holds the records of both. It is
confirmed or refused as a whole: each of its bundles is acknowledged when all of its own requests are confirmed.
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
        attempts: what was settled of it before.
        requests: signal and bytes of each of its requests; None until they are needed, or when it could not be read.
    """

    handle: ForwardedHandle
    attempts: Attempts
    requests: list[tuple[str, bytes]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its requests; 0 when they are not known."""
        return sum(len(request) for _, request in self.requests or ())


@dataclass(frozen=True, slots=True)
class CombinedRequest:
    """
    Requests of several bundles as one.

    Attributes:
        signal: of all of them.
        data: the request.
        members: the bundles, and the number of the request in each.
    """

    signal: str
    data: bytes
    members: tuple[tuple[TakenBundle, int], ...]

    @property
    def batch_id(self) -> str:
        """Return an id that only the same requests have, combined in the same way."""
        names = ",".join(f"{taken.handle.ref}/{number}" for taken, number in self.members)
        return f"combined/{blake3(names.encode()).hexdigest(16)}"


def combined(bundles: Sequence[TakenBundle], bytes_max: int) -> list[CombinedRequest]:
    """
    Return the requests of *bundles* that nothing was sent of, combined into requests of at most *bytes_max* bytes.

    Whatever would stand alone is left out. The order within a signal is kept.
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
