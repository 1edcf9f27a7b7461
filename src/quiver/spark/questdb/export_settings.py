"""The settings of the exporter to QuestDB. Frozen, validated on creation, without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module

from quiver.errors import SettingsError, UsageError

__all__ = ["SYMBOL_COLUMNS", "QuestdbSinkSettings"]

SYMBOL_COLUMNS = (
    "service_name", "severity_text", "scope_name", "kind", "status_code", "type", "temporality", "unit",
)  # fmt: skip
"""String columns of the views with few distinct values."""

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True, slots=True)
class QuestdbSinkSettings:
    """
    Tables in QuestDB, or in another server with the QWP protocol, through store and forward.

    Logs, spans and metrics get the column `service_name`; attributes and other nested values become JSON strings. The
    designated timestamp is the time of the record, the start of the span or the time of the point, in nanoseconds.

    Attributes:
        conf: a connect string with ``sf_dir``.
        table: the name in QuestDB; ``{table}`` is replaced by the name of the table.
        tables: the tables to send; empty means all.
        symbols: string columns to send as symbols, in tables that have them.
        at: the designated timestamp of tables that are not one of the three views.
        addresses: the addresses of the servers in `conf`.

    Raises:
        SettingsError: the connect string is wrong or without ``sf_dir``, or a table name is invalid.
        ModuleNotFoundError: the extra `qwp` is not installed.
    """

    conf: str = field(repr=False)  # may hold a password
    table: str = "{table}"
    tables: tuple[str, ...] = ()
    symbols: tuple[str, ...] = SYMBOL_COLUMNS
    at: str | None = None
    addresses: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Imported by name: only users of this exporter need the extra `qwp`.
        check_name = import_module("quiver.qwp.rows").check_name
        from_conf = import_module("quiver.qwp.settings").SenderSettings.from_conf
        try:
            sender = from_conf(self.conf)
        except SettingsError as error:
            raise SettingsError(f"conf: {error}") from error
        if sender.sf_dir is None:
            raise SettingsError("conf: sf_dir is missing; unconfirmed data is stored below it")
        object.__setattr__(self, "addresses", tuple(map(str, sender.addresses)))
        unknown = [word for word in _PLACEHOLDER.findall(self.table) if word != "table"]
        if not self.table or unknown:
            raise SettingsError("table: expected a name, which may contain {table}")
        try:
            check_name("table", self.table_of("logs"), sender.name_bytes_max)
        except UsageError as error:
            raise SettingsError(f"table: {error}") from error

    def table_of(self, name: str) -> str:
        """Return the name of the table *name* in QuestDB."""
        return self.table.replace("{table}", name)
