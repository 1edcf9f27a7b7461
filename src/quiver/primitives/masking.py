"""Secrets in settings: placeholders that name an environment variable, and texts that must not be printed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from quiver.errors import SettingsError

__all__ = ["MASK", "Secret", "hint", "masked", "substitute"]

MASK = "***"

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_CHARS_MIN = 4
"""A shorter text is not treated as a secret: removing it from messages would make them unreadable."""


class Secret(str):
    """A text from an environment: it appears in no error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"'{MASK}'"


def masked(text: str, secrets: Iterable[str]) -> str:
    """
    Return *text* without *secrets*, without the queries of URLs, which may have tokens, and without lists of
    bytes.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_CHARS_MIN:
            text = text.replace(secret, MASK)
    # A parser may show a key that it cannot parse, byte by byte.
    text = re.sub(r"\[\d+(?:, ?\d+){3,}(?:, ?)?\]?", f"[{MASK}]", text)
    text = re.sub(r"(https?://)[^/\s@]+@", rf"\1{MASK}@", text)
    return re.sub(r"(https?://[^\s?]+)\?\S+", rf"\1?{MASK}", text)


def substitute(what: str, given: object, environment: Mapping[str, str]) -> tuple[object, bool]:
    """
    Return *given* with each ``${NAME}`` replaced by that variable of *environment*, and whether that makes it a secret.

    Raises:
        SettingsError: *what* names a variable that is not set.
    """
    if not isinstance(given, str) or isinstance(given, Secret):
        return given, isinstance(given, Secret)
    missing = [name for name in _PLACEHOLDER.findall(given) if name not in environment]
    if missing:
        raise SettingsError(f"{what} names ${{{missing[0]}}}, which is not set")
    return _PLACEHOLDER.sub(lambda match: environment[match[1]], given), _PLACEHOLDER.search(given) is not None


def hint(key: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that names the known key nearest to *key*; empty if none is near."""
    close = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
