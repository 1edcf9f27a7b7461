"""The state that a forwarder reports."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ForwardState"]


@dataclass(frozen=True, slots=True)
class ForwardState:
    """
    A snapshot of a forwarder's state.

    Attributes:
        confirmed: the number of confirmed requests.
        refused: the number of permanently refused requests.
        retrying: the number of bundles that were tried and are not resolved, including those being sent.
        in_flight: the number of bundles being sent.
        is_down: whether the destination counts as down.
        problem: the last failure, human-readable; empty if the last attempt succeeded.
        halted: why the forwarder sends nothing until an operator intervenes; empty otherwise.
        denied: the number of requests whose credentials or address were refused.
    """

    confirmed: int
    refused: int
    retrying: int
    in_flight: int
    is_down: bool
    problem: str
    halted: str = ""
    denied: int = 0
