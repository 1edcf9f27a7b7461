"""
Checks that are always on: a condition that only a bug in Quiver can break.

Each check precedes the step that would lose or repeat data if the condition were false. ARCHITECTURE.md lists
the invariants and the places.
"""

from __future__ import annotations

from quiver.errors import InvariantError

__all__ = ["invariant"]


def invariant(condition: object, what: str) -> None:
    """
    Check that *condition* is true. *what* states the rule that must hold.

    Raises:
        InvariantError: it is not. The caller must not take the step that the rule protects.
    """
    if not condition:
        raise InvariantError(what)
