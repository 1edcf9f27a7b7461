"""Errors of the conversion between OTLP and OTAP: one exception inside the package, `Damage` outside of it."""

from __future__ import annotations

from typing import TypeVar

from quiver.errors import InvalidBundleError
from quiver.primitives.scan import Damage

__all__ = ["ConversionError", "or_raise"]

_T = TypeVar("_T")


class ConversionError(Exception):
    """The bytes or tables are invalid, for the reason in the message. Not raised outside of this package."""


def or_raise(found: _T | Damage) -> _T:
    """
    Return *found*, or raise if it is a `Damage`, for public functions that raise.

    Raises:
        InvalidBundleError: *found* is a `Damage`.
    """
    if isinstance(found, Damage):
        raise InvalidBundleError(found.reason)
    return found
