"""
The options of a catalog table, stored in its schema.

Spark creates a Python data source of a catalog table (``CREATE TABLE … USING quiver OPTIONS (…)``) without the table's
options: only `schema()` gets them, when the table is created. Spark does store the schema, and passes it to every
reader and writer. So `schema()` puts the options into the metadata of the first column, where readers find them. The
catalog stores that metadata with the table. A write repeats the options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quiver.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

__all__ = [
    "create_table",
    "given_options",
    "options_of_table",
    "refuse_write_without_options",
    "save_as_table",
    "schema_with_options",
]

_KEY = "quiver.options"
_SPARKS_OWN = frozenset({"location", "owner", "provider", "external", "comment", "collation", "is_managed_location"})
"""Options that Spark adds when a table is created. It also repeats ours as ``option.…``."""


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the user's options out of those that Spark passes. Names come in any case."""
    given = {key: value for key, value in options.items() if value is not None}
    if "provider" in given:  # a table is being created
        given = {key: value for key, value in given.items() if not _is_sparks_own(key)}
    for key, value in given.items():
        if key.lower() == "path":
            given[key] = _local_path(value)
    return given


def schema_with_options(schema: StructType, source: str, options: Mapping[str, str]) -> StructType:
    """
    Return *schema*, with *options* in the metadata of its first column if a table is being created.

    The schema of a plain read gets none: files written from that frame, such as Parquet, would contain them, too.

    Args:
        schema: the columns of the log.
        source: the name of the format.
        options: as Spark passed them.
    """
    return _noted(schema, source, given_options(options)) if "provider" in options else schema


def _noted(schema: StructType, source: str, options: Mapping[str, str]) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - the options of a sink need no pyspark

    if not schema.fields or not options:
        return schema
    first = schema.fields[0]
    kept = StructField(first.name, first.dataType, first.nullable, _with_note(first, source, options))
    return StructType([kept, *schema.fields[1:]])


def _with_note(column: StructField, source: str, options: Mapping[str, str]) -> dict[str, Any]:
    noted = json.dumps({"format": source, "options": dict(options)}, sort_keys=True)
    return {**(column.metadata or {}), _KEY: noted}


def options_of_table(given: Mapping[str, str], schema: StructType, source: str) -> dict[str, str]:
    """
    Return *given*, completed from the table's own options when it has no path.

    Args:
        given: the options of this read or write.
        schema: the schema that Spark passes with them.
        source: the name of the format.

    Raises:
        UsageError: there are no options at all.
    """
    known = {key.lower() for key in given}
    if "path" in known:
        return dict(given)
    noted = (schema.fields[0].metadata or {}).get(_KEY) if schema.fields else None
    if noted is not None:
        table = json.loads(noted)
        if table["format"] == source:
            return {**{key: value for key, value in table["options"].items() if key.lower() not in known}, **given}
    if not given:
        raise UsageError(
            f"Spark passed no options to the {source} format: repeat them, spark.read.option(…).table(…). "
            "It keeps them only for tables that were created with quiver.spark.save_as_table or create_table, or with "
            f"CREATE TABLE … USING {source} OPTIONS (…) and no list of columns"
        )
    return dict(given)


def refuse_write_without_options(given: Mapping[str, str], source: str) -> None:
    """
    Raise when Spark passed no options with a write, which is what it does for a catalog table.

    The table's own options do not help here: Spark passes the schema of the rows, not that of the table. When the rows
    were read from another table, they contain the options of that table, and the write would use the wrong log.

    Raises:
        UsageError: there are no options.
    """
    if not given:
        raise UsageError(
            f"Spark passed no options to the {source} format: repeat those of the table, as in INSERT INTO t WITH "
            "(`path` = '…', …) SELECT …, or in df.write.option(…).saveAsTable(…)"
        )


def create_table(
    spark: SparkSession,
    name: str,
    options: Mapping[str, str],
    *,
    source: str = "quiver",
    schema: StructType | None = None,
) -> None:
    """
    Create the catalog table *name* over a log. On return `spark.table` and SQL read it. A write repeats the options.

    With a schema the log need not exist yet. SQL's ``CREATE TABLE … USING quiver OPTIONS (…)`` does the same for a log
    that exists.

    Args:
        spark: a session in which the formats are registered.
        name: the table, as in SQL.
        options: the options of the format, `path` among them.
        source: ``quiver``, ``quiver-topic`` or ``quiver-aof``.
        schema: the columns; None takes those that the log has.

    Raises:
        UsageError: there is no `path`.
    """
    if "path" not in {key.lower() for key in options}:
        raise UsageError("create_table needs the directory of the log: {'path': 'buffer/', …}")
    if schema is None:
        schema = spark.read.format(source).options(**options).load().schema
    spark.catalog.createTable(name, source=source, schema=_noted(schema, source, options), **options)


def save_as_table(
    frame: DataFrame, name: str, options: Mapping[str, str], *, source: str = "quiver", mode: str = "error"
) -> None:
    """
    Write *frame* to a log and create the catalog table *name* over it. On return `spark.table` and SQL read it.

    It is ``frame.write.format(source).options(**options).mode(mode).saveAsTable(name)``, after which Spark would not
    know the options of the table any more. The table has the columns of *frame*.

    Args:
        frame: the rows, in a session in which the formats are registered.
        name: the table, as in SQL.
        options: the options of the format, `path` among them.
        source: ``quiver``, ``quiver-topic`` or ``quiver-aof``.
        mode: ``error`` where the table exists, ``append`` or ``ignore``; a log is never overwritten.

    Raises:
        UsageError: there is no `path`, or *frame* has no column.
    """
    if "path" not in {key.lower() for key in options}:
        raise UsageError("save_as_table needs the directory of the log: {'path': 'buffer/', …}")
    if not frame.schema.fields:
        raise UsageError("save_as_table needs a frame with a column")
    first = frame.schema.fields[0]
    noted = frame.withMetadata(first.name, _with_note(first, source, options))
    noted.write.format(source).options(**options).mode(mode).saveAsTable(name)


def _is_sparks_own(key: str) -> bool:
    lower = key.lower()
    return lower in _SPARKS_OWN or lower.startswith("option.")


def _local_path(path: str) -> str:
    """Return a local path for the forms that Spark's catalog makes of one: ``file:/data`` and ``file:///data``."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return path.removeprefix("file:")
