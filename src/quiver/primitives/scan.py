"""
The three answers every decoder gives, whatever the format.

A decoder takes bytes and says one of: here is a value (`Frame`), the bytes end too early (`NeedMore`), or
these bytes can never become a value (`Damage`). It raises nothing and reads nothing. What an answer means
is the caller's business: the same `NeedMore` is a torn tail at the end of the newest log file and damage
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
    """A whole, checked value, and the offset of the first byte behind it."""

    value: T
    end: int


@dataclass(frozen=True, slots=True)
class NeedMore:
    """Everything so far is lawful, but at least `missing` more bytes are needed (1 when nobody can know)."""

    missing: int


@dataclass(frozen=True, slots=True)
class Damage:
    """No further byte can make this right: `offset` is where the trouble was seen, `reason` what it is."""

    offset: int
    reason: str


Answer = Frame[T] | NeedMore | Damage
"""What a decoder of `T` returns: ``Answer[WalHeader]``."""


def as_damage(answer: NeedMore | Damage, size_bytes: int) -> Damage:
    """Return *answer* as the damage of a file of *size_bytes*: a file that ends too early is cut short."""
    if isinstance(answer, NeedMore):
        return Damage(size_bytes, f"cut short: at least {answer.missing} bytes are missing")
    return answer


def is_zero(view: memoryview, offset: int = 0) -> bool:
    """Say whether everything from *offset* on is zero: room that was made ahead of a writer, and nothing else."""
    for start in range(offset, len(view), len(_ZEROS)):
        piece = view[start : start + len(_ZEROS)]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True
