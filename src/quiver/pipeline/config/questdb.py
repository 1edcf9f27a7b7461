"""The config of the exporter to QuestDB."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from quiver.errors import SettingsError
from quiver.pipeline.config.exporter import QueryExporterConfig
from quiver.spark.questdb.export_settings import SYMBOL_COLUMNS, QuestdbSinkSettings

__all__ = ["QuestdbExporterConfig"]


class QuestdbExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:questdb:exporter`: writes telemetry to QuestDB. Also accepts the keys of `QuestdbSinkSettings`.

    Attributes:
        conf: a connect string with ``sf_dir``.
        table: the name of the table in QuestDB; ``{table}`` is replaced by logs, spans or metrics.
        tables: the tables to send; all when empty.
        symbols: text columns that are sent as symbols.
        at: the designated timestamp column of tables other than the three views.
    """

    conf: Annotated[str, Field(min_length=1, repr=False)]
    table: str = "{table}"
    tables: tuple[str, ...] = ()
    symbols: tuple[str, ...] = SYMBOL_COLUMNS
    at: str | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse an invalid connect string or table name now rather than with the first row."""
        super().model_post_init(context)
        try:
            self.settings()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """The addresses of QuestDB, without credentials."""
        return f"QuestDB at {', '.join(self.settings().addresses)}"

    def settings(self) -> QuestdbSinkSettings:
        """
        Return the settings of the exporter.

        Raises:
            SettingsError: the connect string or the table name is invalid.
        """
        return QuestdbSinkSettings(self.conf, self.table, self.tables, self.symbols, self.at)
