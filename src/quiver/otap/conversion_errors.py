"""How the conversion between OTLP and OTAP gives up: one exception inside the package, one answer outside of it."""

from __future__ import annotations

from typing import TypeVar

from quiver.errors import InvalidBundleError
from quiver.primitives.scan import Damage

__all__ = ["ConversionError", "or_raise"]

_T = TypeVar("_T")


class ConversionError(Exception):
    """These bytes or tables are not what they should be; the text says why. Never leaves this package."""


def or_raise(found: _T | Damage) -> _T:
    """
    Return *found*. The public functions of this package raise where the inner ones answer with a `Damage`.

    Raises:
        InvalidBundleError: *found* is a `Damage`.
    """
    if isinstance(found, Damage):
        raise InvalidBundleError(found.reason)
    return found
