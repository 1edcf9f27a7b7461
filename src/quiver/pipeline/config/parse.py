"""
Parse YAML into plain values whose line numbers are known.

Supports only what a pipeline needs: mappings with string keys, lists, scalars. Duplicate keys, files that expand too
far, and placeholders without a value are refused, each with its line.

Placeholders are part of a scalar:

====================================  =========================================================================
form                                  value
====================================  =========================================================================
`{{name}}`, `{{name:-default}}`       `--set name=…`, then the environment variable, then the default
`${NAME}`, `${NAME:-default}`         the same; also `${env:NAME}`
`${file:/path}`                       the text of the file, without line ends at its end
`$${`                                 the text `${`
====================================  =========================================================================

Any other `${` is refused: otherwise a misspelled placeholder for a token would be the token. Values are inserted after
the YAML is parsed, so a value can never change the structure of the file, and inserted text is not searched again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, Self

import yaml

from quiver.errors import PipelineError

__all__ = [
    "DOCUMENT_BYTES_MAX",
    "PLACEHOLDER_FILE_BYTES_MAX",
    "Document",
    "Path",
    "Problems",
    "load_document",
    "nearest",
]

DOCUMENT_BYTES_MAX = 1024 * 1024
NODES_MAX = 100_000
DEPTH_MAX = 32

PLACEHOLDER_FILE_BYTES_MAX = 64 * 1024

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the document to a value."""

_PLACEHOLDER = re.compile(
    r"\{\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*?)\s*(?::-(?P<default>.*?))?\}\}"
    r"|(?P<literal>\$)\$\{"
    r"|\$\{(?:env:)?(?P<variable>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<otherwise>[^}]*))?\}"
    r"|\$\{file:(?P<file>[^}]+)\}"
    r"|(?P<unknown>\$\{[^}]{0,40}\}?)"
)
_FORMS = "write ${NAME}, ${env:NAME} or ${file:/path}; $${ is the text ${"


@dataclass(frozen=True, slots=True)
class Document:
    """
    A parsed file.

    Attributes:
        source: the file's name, for messages.
        value: dicts, lists and scalars.
        placeholders: the names of all placeholders in the file.
    """

    source: str
    value: Any
    placeholders: frozenset[str] = frozenset()
    _lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """Return the line, counted from 1, of the key or item at *path*, or of its nearest parent that exists."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def invalid(self, path: Path, reason: str) -> PipelineError:
        """Return the error to raise for the value at *path*."""
        return PipelineError(self.source, self.line(path), reason)


class Problems:
    """
    Collects the errors of a file, so that all of them are reported at once.

    As a context, it adds a `PipelineError` that the block raises, and execution continues after the block.
    """

    def __init__(self) -> None:
        self._found: list[PipelineError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: PipelineError) -> None:
        """Add *error* and the others that it has."""
        self._found += [PipelineError(error.path, error.line, error.reason), *error.others]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, PipelineError):
            self.add(error)
        return isinstance(error, PipelineError)

    def raise_found(self) -> None:
        """
        Do nothing without errors.

        Raises:
            PipelineError: the first error of the file, with the others.
        """
        if self._found:
            first, *others = sorted(self._found, key=lambda error: error.line)
            raise PipelineError(first.path, first.line, first.reason, others)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known word closest to *word*, or the whole list when none is close."""
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known are {', '.join(words)}" if words else ""


def load_document(text: str, *, source: str, values: Mapping[str, str]) -> Document:
    """
    Parse *text*, filling placeholders from *values*.

    Raises:
        PipelineError: the text is not YAML or is too large; or keys are repeated, or placeholders have no value.
    """
    if len(text.encode()) > DOCUMENT_BYTES_MAX:
        raise PipelineError(source, 1, f"the file is larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise PipelineError(source, 1, "the file is empty; a pipeline has `nodes:`")
        reading = _Reading(source, loader, _Placeholders(values))
        value = reading.read(root, ())
        reading.problems.raise_found()
    except yaml.YAMLError as error:
        raise _syntax_error(source, text, error) from error
    except RecursionError as error:
        raise PipelineError(source, 1, "the file is nested deeper than any pipeline") from error
    return Document(source, value, frozenset(reading.placeholders.names), reading.lines)


def _syntax_error(source: str, text: str, error: yaml.YAMLError) -> PipelineError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    # PyYAML reports an illegal character without a mark.
    at = error.position if isinstance(error, yaml.reader.ReaderError) else 0
    line = mark.line + 1 if mark is not None else text.count("\n", 0, at) + 1
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    lines = text.splitlines()
    there = lines[line - 1] if line <= len(lines) else ""
    hint = '; write quotes around a placeholder: "{{name}}"' if re.search(r":\s*\{\{", there) else ""
    return PipelineError(source, line, f"not valid YAML: {problem}{hint}")


class _Reading:
    """One walk over the node tree. Aliases are expanded, bounded in depth and number."""

    def __init__(self, source: str, loader: yaml.SafeLoader, placeholders: _Placeholders) -> None:
        self.source = source
        self.loader = loader
        self.placeholders = placeholders
        self.problems = Problems()
        self.lines: dict[Path, int] = {}
        self.count = 0

    def read(self, node: yaml.Node, path: Path) -> Any:
        self.count += 1
        if self.count > NODES_MAX or len(path) > DEPTH_MAX:
            raise self._invalid(node, "the file expands too far; are there aliases in aliases?")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        with self.problems:
            return self._scalar(node)
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._invalid(key_node, 'a key must be a word; write quotes around a placeholder: "{{name}}"')
            key = str(key_node.value)
            if key in result:
                first = self.lines[(*path, key)]
                self.problems.add(self._invalid(key_node, f"duplicate key {key}, first on line {first}"))
                continue
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, (*path, key))
        return result

    def _scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self._invalid(node, "not a value, a list or a mapping")
        text = str(node.value)
        try:
            filled = self.placeholders.fill(text)
        except ValueError as error:
            raise self._invalid(node, str(error)) from error
        if filled == text:
            return self._constructed(node)
        if node.style is not None and "\0" not in filled:
            return filled
        # Parse a plain scalar as if the value had been written in the file.
        resolve: Any = self.loader.resolve
        tag = resolve(yaml.ScalarNode, filled, (True, False))
        return self._constructed(yaml.ScalarNode(tag, filled, node.start_mark, node.end_mark))

    def _constructed(self, node: yaml.ScalarNode) -> Any:
        if "\0" in node.value:
            raise self._invalid(node, "a value contains a zero byte, which no name may contain")
        try:
            return self.loader.construct_object(node)
        except PipelineError:
            raise
        except (ValueError, LookupError, AttributeError) as error:  # PyYAML, for a text that does not match its tag
            kind = str(node.tag).rpartition(":")[2]
            raise self._invalid(node, f"not valid YAML: not a valid {kind}; write quotes around a string") from error

    def _invalid(self, node: yaml.Node, reason: str) -> PipelineError:
        return PipelineError(self.source, node.start_mark.line + 1, reason)


class _Placeholders:
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
        with FilePath(path).open("rb") as file:
            data = file.read(PLACEHOLDER_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise ValueError(f"${{file:{path}}} cannot be read: {reason}") from error
    if len(data) > PLACEHOLDER_FILE_BYTES_MAX:
        raise ValueError(f"${{file:{path}}} is larger than {PLACEHOLDER_FILE_BYTES_MAX} bytes")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"${{file:{path}}} is not UTF-8 text") from error
