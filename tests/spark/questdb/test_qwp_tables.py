"""Spark reads tables that were received over QWP, by name."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

import quiver
from quiver.errors import UsageError
from quiver.qwp.rows import RowTable
from quiver.qwp.wire.message import encode_message
from quiver.receivers.qwp.intake import QwpIntake
from quiver.receivers.qwp.settings import QwpSettings
from quiver.store.reading.stream_options import parse_options

pytestmark = pytest.mark.spark

AT_NS = 1_700_000_000_000_000_000


def message(table, *rows):
    made = RowTable(table)
    for number, (symbols, columns) in enumerate(rows):
        made.append(symbols, columns, AT_NS + number * 1000, bytes_max=10_000)
    return encode_message([made.pack()])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a store with three tables, one of which gained a column, and one table of another kind."""
    path = str(tmp_path_factory.mktemp("qwp") / "buffer")
    with quiver.open(path) as store:
        taker = QwpIntake(store, QwpSettings()).open()
        sent = [
            message("trades", ({"sym": "ETH"}, {"price": 1.5}), ({"sym": "BTC"}, {"price": 2.5})),
            message("other", ({}, {"x": 1})),
            message("Trades", ({"sym": "SOL"}, {"price": 3.5, "side": "buy"})),
            message("all", ({"s": "é"}, {
                "i": 1, "t": "text", "b": True, "d": Decimal("1.25"), "u": UUID(int=7), "n": None,
                "raw": b"\x00\x01", "m": datetime(2026, 1, 2, tzinfo=UTC),
            })),
        ]  # fmt: skip
        assert taker.take(sent).confirmed == 4
        taker.close()
    return path


def load(spark, path, **options):
    reader = spark.read.format("quiver").option("path", path)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def test_a_table_is_read_by_name(spark, path):
    """With its own columns, over all of its messages; upper and lower case are equal, and other data are ignored."""
    found = load(spark, path, table="TRADES")

    assert sorted(found.columns) == ["price", "side", "sym", "timestamp"]
    rows = {row["sym"]: (row["price"], row["side"]) for row in found.collect()}
    assert rows == {"ETH": (1.5, None), "BTC": (2.5, None), "SOL": (3.5, "buy")}
    assert [row.asDict() for row in load(spark, path, table="other", columns="x").collect()] == [{"x": 1}]


def test_all_types_have_a_spark_type(spark, path):
    """The values are converted, not only their bytes."""
    (row,) = load(spark, path, table="all").collect()

    assert (row["i"], row["t"], row["b"], row["s"], row["d"]) == (1, "text", True, "é", Decimal("1.25"))
    assert UUID(bytes=bytes(row["u"])) == UUID(int=7)
    assert (bytes(row["raw"]), row["m"].year) == (b"\x00\x01", 2026)


def test_an_unknown_table_is_refused(spark, path):
    """Immediately, with a message."""
    with pytest.raises(Exception, match="no sealed segment of .* holds rows of a table 'nothing'"):
        load(spark, path, table="nothing")


def test_a_table_cannot_be_combined_with_other_options():
    """Neither with a view nor with the modes for complete bundles."""
    for other in ({"view": "logs"}, {"mode": "bundles"}):
        with pytest.raises(UsageError):
            parse_options({"path": "p", "table": "t", **other})
    assert parse_options({"path": "p", "table": "t"}).slot == 50
    assert parse_options({"path": "p", "table": "t", "slot": "7"}).slot == 7
