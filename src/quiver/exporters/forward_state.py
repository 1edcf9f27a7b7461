"""What a forwarder tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ForwardState"]


@dataclass(frozen=True, slots=True)
class ForwardState:
    """
    What a forwarder is at, at one moment.

    Attributes:
        confirmed: requests that the far side has.
        refused: requests that it will never take.
        retrying: bundles that were tried and are not resolved, those being sent included.
        in_flight: bundles being sent.
        is_down: whether the far side counts as down.
        problem: the last failure, for people; empty when the last attempt succeeded.
        halted: why nothing is sent any more, until somebody has looked after it; empty otherwise.
        denied: requests that were refused for who sent them, or where to.
    """

    confirmed: int
    refused: int
    retrying: int
    in_flight: int
    is_down: bool
    problem: str
    halted: str = ""
    denied: int = 0
