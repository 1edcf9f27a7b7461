"""
The settings of the exporters on Spark. Frozen, validated on creation, without Spark.

=======================  ===================================================================================
`ConsoleSettings`        printed rows
`FileSettings`           JSON lines, or OTLP/JSON as OpenTelemetry's file exporter writes it: each batch once
`SparkSinkSettings`      any format that Spark can write, with its options
`QuiverSinkSettings`     processed data, in another store
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
from quiver.spark.table_formats.settings import DeltaSettings, IcebergSettings
from quiver.spark.topics.export_settings import TopicSinkSettings

__all__ = [
    "OPTION_NAMES",
    "ConsoleSettings",
    "FileCompression",
    "FileSettings",
    "OutputFormat",
    "QuiverSinkSettings",
    "SparkExporterSettings",
    "SparkSinkSettings",
    "check_file_mode",
    "directory_mode",
]

OutputFormat = Literal["jsonl", "otlp"]
FileCompression = Literal["none", "gzip", "zstd"]

OPTION_NAMES = ("table", "batch", "query")
"""Placeholders in options of a Spark sink: the table, the number of the batch, the id of the query."""

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


def check_file_mode(mode: int | None) -> None:
    """
    Check the permission bits *mode* of files; None is valid.

    Raises:
        SettingsError: the mode is out of range, or the exporter itself could not use such files.
    """
    if mode is not None and (mode & ~0o666 or mode & 0o600 != 0o600):
        raise SettingsError(f"file_mode must be 0600 to 0666, without bits to execute, not {mode:04o}")


def directory_mode(file_mode: int | None) -> int:
    """Return the permission bits of new directories: users that may read files of *file_mode* may enter them."""
    return 0o755 if file_mode is None else file_mode | (file_mode & 0o444) >> 2


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """
    Prints rows, table by table.

    Attributes:
        rows_max: maximum rows of each table in a batch; the total is printed, too.
        truncate: maximum characters of a value; 0 means no limit.
        format: `table` or `jsonl`, one object per line.

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
    Complete files in `<path>/<table>/`, each batch exactly once.

    Attributes:
        path: the directory.
        format: `jsonl`, one row per line; `otlp`, one export request per line, like OpenTelemetry's file exporter.
        compression: of the files.
        file_mode: permission bits of the files, such as 0o640; None leaves them to the umask of the process.

    Raises:
        SettingsError: a value is unknown, or the files could not be written with this mode.
    """

    path: str
    format: OutputFormat = "jsonl"
    compression: FileCompression = "none"
    file_mode: int | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory")
        check_file_mode(self.file_mode)
        for name, word, known in (
            ("format", self.format, OutputFormat),
            ("compression", self.compression, FileCompression),
        ):
            if word not in get_args(known):
                raise SettingsError(f"{name}: {word!r} is not {' or '.join(get_args(known))}")


@dataclass(frozen=True, slots=True)
class SparkSinkSettings:
    """
    Any format that Spark can write, with the jars that it needs: kafka, delta, jdbc, csv, …

    ``{table}``, ``{batch}`` and ``{query}`` in an option are replaced by the table, the number of the batch and the id
    of the query: with them, a format that records batches (Delta: ``txnAppId``, ``txnVersion``) writes each once.
    Otherwise a repeated batch is written again.

    Attributes:
        format: its name in Spark.
        options: passed to it.
        path: the destination, for formats that have a path; may contain the same placeholders.
        mode: append or overwrite. With overwrite a batch replaces existing data, so path and options must be
            different for each query, batch and table: batch numbers start at 0 again with a new checkpoint, and a
            bundle that is exported individually is batch 0 of its own query.
        tables: the tables to write; empty means all.

    Raises:
        SettingsError: a placeholder is unknown, or overwrite is set and queries, batches and tables share a place.
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
                    raise SettingsError(f"{name}: {{{word}}} is unknown; known are {known}")
                used.add(word)
        apart = ("query", "batch") if len(self.tables) == 1 else ("query", "batch", "table")
        missing = [f"{{{word}}}" for word in apart if word not in used]
        if self.mode == "overwrite" and missing:
            raise SettingsError(
                f"mode: overwrite without {' and '.join(missing)} in the path would replace the data of others"
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
    Processed data in another store at *path*, each batch exactly once.

    Logs, spans and metrics become OTLP requests again, so every reader of stores can read them. A table with other
    columns (the result of a query) is stored as it is, in *slot*.

    Attributes:
        path: the directory of the other store, which must not be the source.
        slot: the slot for tables with other columns; number or name. Without it such a table is rejected.

    Raises:
        SettingsError: the path is missing.
    """

    path: str
    slot: int | str | None = None

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingsError("path must name a directory")


SparkExporterSettings = (
    ConsoleSettings
    | FileSettings
    | SparkSinkSettings
    | QuiverSinkSettings
    | TopicSinkSettings
    | QuestdbSinkSettings
    | DeltaSettings
    | IcebergSettings
)
