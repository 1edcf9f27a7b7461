"""The exporter to QuestDB: sends each table of a batch exactly once, through the sink `questdb`."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from quiver.bundle import BundleRef
from quiver.spark.exporters.exported import ExportedAmount, Observed
from quiver.spark.questdb.export_settings import QuestdbSinkSettings
from quiver.spark.questdb.sink import QuestdbDataSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from quiver.spark.exporters.table_exporter import BatchOf

__all__ = ["QuestdbExporter", "flat"]

_TIMES = {
    "logs": ("time_unix_nano", "observed_time_unix_nano"), "spans": ("start_time_unix_nano",),
    "metrics": ("time_unix_nano",),
}  # fmt: skip
"""View → candidate columns; the first one that exists is the designated timestamp."""

_AT = "_at"
_NESTED = ("map", "struct", "array")


class QuestdbExporter:
    """Sends every table. When `export` returns, the rows are in slots, whether the server answers or not."""

    def __init__(self, settings: QuestdbSinkSettings) -> None:
        self._settings = settings

    def has(self, batch: BatchOf) -> bool:  # noqa: ARG002 - the slots know, per table
        """Return False: the slots recognize a repeated batch."""
        return False

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:  # noqa: ARG002 - the slots know
        """Return none."""
        return set()

    def export(self, tables: Mapping[str, DataFrame], batch: BatchOf) -> ExportedAmount:
        """Send each table in turn."""
        settings = self._settings
        exported = ExportedAmount()
        for name, frame in tables.items():
            if settings.tables and name not in settings.tables:
                continue
            frame.sparkSession.dataSource.register(QuestdbDataSource)
            rows, at = flat(frame, name, at=settings.at)
            symbols = [column for column in settings.symbols if dict(rows.dtypes).get(column) == "string"]
            options = {
                "conf": settings.conf, "table": settings.table_of(name), "symbols": ",".join(symbols),
                "txnAppId": f"{batch.query}-{name}", "txnVersion": str(batch.number),
            } | ({} if at is None else {"at": at})  # fmt: skip
            observed = Observed(rows)
            observed.frame.write.format("questdb").mode("append").options(**options).save()
            exported += observed.exported()
        return exported


def flat(frame: DataFrame, name: str, *, at: str | None) -> tuple[DataFrame, str | None]:
    """Return the table with types that QuestDB has, and the name of its designated timestamp."""
    kinds = dict(frame.dtypes)
    times = [column for column in _TIMES.get(name, ()) if kinds.get(column) == "bigint"]
    dropped = {*times, *(column.removesuffix("_unix_nano") for column in times[:1])} if times else set()
    columns: list[Column] = []
    if kinds.get("resource_attributes", "").startswith("map<string,struct<string_value:"):
        columns.append(F.col("resource_attributes")["service.name"]["string_value"].alias("service_name"))
    for column, kind in kinds.items():
        if column not in dropped:
            columns.append(_flat(column, kind).alias(column))
    if times:
        return frame.select(*columns, F.coalesce(*(F.col(column) for column in times)).alias(_AT)), _AT
    return frame.select(*columns), at if at in kinds else None


def _flat(column: str, kind: str) -> Column:
    value = F.col(f"`{column}`")
    if not kind.startswith(_NESTED):
        return value
    as_json = F.to_json(value)
    # Most bodies are strings, and become that string.
    return F.coalesce(value["string_value"], as_json) if kind.startswith("struct<string_value:") else as_json
