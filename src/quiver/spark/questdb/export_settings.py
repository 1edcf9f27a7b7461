"""What the exporter to QuestDB is told. Frozen, checked when made, without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module

from quiver.errors import SettingsError, UsageError

__all__ = ["SYMBOL_COLUMNS", "QuestdbSinkSettings"]

SYMBOL_COLUMNS = (
    "service_name", "severity_text", "scope_name", "kind", "status_code", "type", "temporality", "unit",
)  # fmt: skip
"""Texts of the views that say the same again and again."""

_PLACEHOLDER = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True, slots=True)
class QuestdbSinkSettings:
    """
    Tables of QuestDB, or of anything that speaks QWP, through store and forward.

    Logs, spans and metrics get the column `service_name`; attributes and other nested values become JSON texts. Their
    designated timestamp is when the record was made, the span began, the point was taken, in nanoseconds.

    Attributes:
        conf: a connect string with ``sf_dir``.
        table: the name over there; ``{table}`` is the name here.
        tables: which are sent; all when empty.
        symbols: text columns that are sent as symbols; those of a table that has them.
        at: the designated timestamp of tables that are none of the three views.
        addresses: of the servers, as `conf` says.

    Raises:
        SettingsError: the connect string is wrong or without ``sf_dir``, or a table cannot be called so.
        ModuleNotFoundError: the extra `qwp` is not installed.
    """

    conf: str = field(repr=False)  # may hold a password
    table: str = "{table}"
    tables: tuple[str, ...] = ()
    symbols: tuple[str, ...] = SYMBOL_COLUMNS
    at: str | None = None
    addresses: tuple[str, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # By name: only who uses this exporter needs the extra `qwp`.
        check_name = import_module("quiver.qwp.rows").check_name
        from_conf = import_module("quiver.qwp.settings").SenderSettings.from_conf
        try:
            sender = from_conf(self.conf)
        except SettingsError as error:
            raise SettingsError(f"conf: {error}") from error
        if sender.sf_dir is None:
            raise SettingsError("conf: sf_dir is missing; what the server has not confirmed is kept below it")
        object.__setattr__(self, "addresses", tuple(map(str, sender.addresses)))
        unknown = [word for word in _PLACEHOLDER.findall(self.table) if word != "table"]
        if not self.table or unknown:
            raise SettingsError("table: a name, in which {table} may stand for the name here")
        try:
            check_name("table", self.table_of("logs"), sender.name_bytes_max)
        except UsageError as error:
            raise SettingsError(f"table: {error}") from error

    def table_of(self, name: str) -> str:
        """Return what the table *name* is called over there."""
        return self.table.replace("{table}", name)
