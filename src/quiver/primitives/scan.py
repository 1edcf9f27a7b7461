"""
The three answers of every decoder, for every format.

A decoder takes bytes and returns one of: a value (`Frame`), the bytes end too early (`NeedMore`), or
these bytes can never become a value (`Damage`). It raises nothing and does no I/O. The caller decides what an answer
means: the same `NeedMore` is a torn tail at the end of the newest log file and damage
in the middle of an older one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Answer", "Damage", "Frame", "NeedMore", "as_damage", "is_zero"]

_ZEROS = bytes(64 * 1024)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Frame(Generic[T]):
    """A complete, checked value, and the offset of the first byte after it."""

    value: T
    end: int


@dataclass(frozen=True, slots=True)
class NeedMore:
    """Everything so far is valid, but at least `missing` more bytes are needed (1 if the number is unknown)."""

    missing: int


@dataclass(frozen=True, slots=True)
class Damage:
    """No further bytes can make this valid: `offset` is where the problem was found, `reason` what it is."""

    offset: int
    reason: str


Answer = Frame[T] | NeedMore | Damage
"""The result of a decoder of `T`: ``Answer[WalHeader]``."""


def as_damage(answer: NeedMore | Damage, size_bytes: int) -> Damage:
    """Return *answer* as the damage of a file of *size_bytes*: a file that ends too early is cut short."""
    if isinstance(answer, NeedMore):
        return Damage(size_bytes, f"cut short: at least {answer.missing} bytes are missing")
    return answer


def is_zero(view: memoryview, offset: int = 0) -> bool:
    """Return whether everything from *offset* on is zero: space that was prepared for a writer, and nothing else."""
    for start in range(offset, len(view), len(_ZEROS)):
        piece = view[start : start + len(_ZEROS)]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True
