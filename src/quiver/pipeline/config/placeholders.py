"""
Placeholders in the scalars of a pipeline file.

====================================  =========================================================================
form                                  value
====================================  =========================================================================
`{{name}}`, `{{name:-default}}`       `--set name=…`, then the environment variable, then the default
`${NAME}`, `${NAME:-default}`         the same
`${env:NAME}`                         the same
`${file:/path}`                       the text of the file, without line ends at its end
`$${…}`                               the text `${…}`, which is not replaced
====================================  =========================================================================

Any other `${` is refused. Otherwise a misspelled placeholder for a token would be the token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FILE_BYTES_MAX", "Placeholders"]

FILE_BYTES_MAX = 64 * 1024

_PLACEHOLDER = re.compile(
    r"\{\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*?)\s*(?::-(?P<default>.*?))?\}\}"
    r"|(?P<literal>\$)\$\{"
    r"|\$\{(?:env:)?(?P<variable>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<otherwise>[^}]*))?\}"
    r"|\$\{file:(?P<file>[^}]+)\}"
    r"|(?P<unknown>\$\{[^}]{0,40}\}?)"
)
_FORMS = "write ${NAME}, ${env:NAME} or ${file:/path}; $${ is the text ${"


class Placeholders:
    """
    The values of the placeholders of one file.

    Args:
        values: name → value.

    Attributes:
        names: the names of the placeholders that were filled; files are not among them.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.names: set[str] = set()

    def fill(self, text: str) -> str:
        """
        Return *text* with values in place of its placeholders. Inserted text is not searched again.

        Raises:
            ValueError: a placeholder has no value or an unknown form, or its file cannot be read.
        """
        return _PLACEHOLDER.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        if match["literal"]:
            return "${"
        if match["unknown"]:
            raise ValueError(f"{match['unknown']} is not a placeholder; {_FORMS}")
        if match["file"]:
            return _text_of(match["file"])
        name: str = match["name"] or match["variable"]
        default: str | None = match["default"] if match["name"] else match["otherwise"]
        self.names.add(name)
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{match[0]} has no value; give --set {name}=… or set the environment variable")
        return value


def _text_of(path: str) -> str:
    """
    Return the text of a file that a placeholder names, without line ends at its end: editors add one to a token.

    Raises:
        ValueError: it cannot be read, is too large, or is not UTF-8 text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ValueError(f"${{file:{path}}} cannot be read: {reason}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"${{file:{path}}} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"${{file:{path}}} is not UTF-8 text") from error
