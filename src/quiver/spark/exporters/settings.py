"""
What each exporter on Spark is told. Frozen, checked when made, without Spark.

=======================  ===================================================================================
`ConsoleSettings`        rows printed
`FileSettings`           JSON lines, or OTLP/JSON as OpenTelemetry's file exporter writes it: each batch once
`SparkSinkSettings`      any format Spark can write, with its options
`QuiverSinkSettings`     processed data in a store again
=======================  ===================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from quiver.errors import SettingsError
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.topics.export_settings import TopicSinkSettings

__all__ = [
    "OPTION_NAMES",
    "ConsoleSettings",
    "FileCompression",
    "FileFormat",
    "FileSettings",
    "QuiverSinkSettings",
    "SparkExporterSettings",
    "SparkSinkSettings",
    "check_file_mode",
    "directory_mode",
]

FileFormat = Literal["jsonl", "otlp"]
FileCompression = Literal["none", "gzip", "zstd"]

OPTION_NAMES = ("table", "batch", "query")
"""What may stand in braces in an option of a Spark sink: the table, the number of the batch, the id of the query."""

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


def check_file_mode(mode: int | None) -> None:
    """
    Return when files can have the permission bits *mode*, or it is None.

    Raises:
        SettingsError: it is out of range, or lacks what the exporter itself needs.
    """
    if mode is not None and (mode & ~0o666 or mode & 0o600 != 0o600):
        raise SettingsError(f"file_mode must be 0600 to 0666, without bits to execute, not {mode:04o}")


def directory_mode(file_mode: int | None) -> int:
    """Return the permission bits of new directories for files of *file_mode*: whoever may read those may enter."""
    return 0o755 if file_mode is None else file_mode | (file_mode & 0o444) >> 2


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """
    Prints rows, table by table.

    Attributes:
        rows_max: of each table in a batch; how many there were in all is said.
        truncate: characters shown of a value; 0 shows all.
        format: `table` or `jsonl`, one object a line.

    Raises:
        SettingsError: out of range.
    """

    rows_max: int = 20
    truncate: int = 60
    format: Literal["table", "jsonl"] = "table"

    def __post_init__(self) -> None:
        if not 1 <= self.rows_max <= 10_000:
            raise SettingsError(f"rows_max must be 1 to 10000, not {self.rows_max}")
        if not 0 <= self.truncate <= 1_000_000:
            raise SettingsError(f"truncate must be 0 to 1000000, not {self.truncate}")
        if self.format not in {"table", "jsonl"}:
            raise SettingsError(f"format: {self.format!r} is not table or jsonl")


@dataclass(frozen=True, slots=True)
class FileSettings:
    """
    Files below a directory, whole and each batch exactly once; what goes where is `<path>/<table>/`.

    Attributes:
        path: the directory.
        format: `jsonl`, one row a line; `otlp`, one export request a line, as OpenTelemetry's file exporter has it.
        compression: of the files.
        file_mode: permission bits of the files, such as 0o640; None leaves them to the umask of the process.

    Raises:
        SettingsError: a word that is none of those, or a mode with which the files could not be written.
    """

    path: str
    format: FileFormat = "jsonl"
    compression: FileCompression = "none"
    file_mode: int | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory")
        check_file_mode(self.file_mode)
        for name, word, known in (
            ("format", self.format, FileFormat),
            ("compression", self.compression, FileCompression),
        ):
            if word not in get_args(known):
                raise SettingsError(f"{name}: {word!r} is not {' or '.join(get_args(known))}")


@dataclass(frozen=True, slots=True)
class SparkSinkSettings:
    """
    Any format that Spark can write, with whatever jars it needs: kafka, delta, jdbc, csv, …

    ``{table}``, ``{batch}`` and ``{query}`` in an option become the table, the number of the batch and the id of the
    query: a format that remembers batches (Delta: ``txnAppId``, ``txnVersion``) then writes each once. Without that a
    batch that is tried again is written again.

    Attributes:
        format: Spark's name of it.
        options: handed to it.
        path: where to, for formats that have a path; may hold the same placeholders.
        mode: append, or overwrite: what a batch writes replaces what is there, so path and options must name a place
            of its own for each query, batch and table: numbers of batches begin at 0 again with a new checkpoint, and
            a bundle that is exported by itself is batch 0 of a query that it is alone in.
        tables: which are written; all when empty.

    Raises:
        SettingsError: an unknown placeholder, or overwriting without telling queries, batches and tables apart.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold passwords
    path: str | None = None
    mode: Literal["append", "overwrite"] = "append"
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.format:
            raise SettingsError("format: name one, such as kafka")
        if self.mode not in {"append", "overwrite"}:
            raise SettingsError(f"mode: {self.mode!r} is not append or overwrite")
        used = set()
        for name, text in (("path", self.path or ""), *self.options.items()):
            for word in _PLACEHOLDER.findall(str(text)):
                if word not in OPTION_NAMES:
                    known = ", ".join(f"{{{known}}}" for known in OPTION_NAMES)
                    raise SettingsError(f"{name}: {{{word}}} is not known; there are {known}")
                used.add(word)
        apart = ("query", "batch") if len(self.tables) == 1 else ("query", "batch", "table")
        missing = [f"{{{word}}}" for word in apart if word not in used]
        if self.mode == "overwrite" and missing:
            raise SettingsError(
                f"mode: overwrite without {' and '.join(missing)} in the path would replace what others wrote"
            )
        object.__setattr__(self, "options", MappingProxyType({key: str(text) for key, text in self.options.items()}))

    def filled(self, *, table: str, batch: int, query: str) -> tuple[str | None, dict[str, str]]:
        """Return path and options with the placeholders filled in."""
        values = {"table": table, "batch": str(batch), "query": query}

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: values[match.group(1)], text)

        return (None if self.path is None else fill(self.path)), {key: fill(text) for key, text in self.options.items()}


@dataclass(frozen=True, slots=True)
class QuiverSinkSettings:
    """
    Processed data buffered again: a store of its own below *path*, each batch in it exactly once.

    Logs, spans and metrics become OTLP requests again, so that everything that reads a store reads this one. A table of
    any other shape (the result of a query) is kept as it is, in *slot*.

    Attributes:
        path: the directory of the other store; never the one that is read.
        slot: for tables of another shape; number or name. Without it such a table is refused.

    Raises:
        SettingsError: no path.
    """

    path: str
    slot: int | str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory")


SparkExporterSettings = (
    ConsoleSettings | FileSettings | SparkSinkSettings | QuiverSinkSettings | TopicSinkSettings | QuestdbSinkSettings
)
