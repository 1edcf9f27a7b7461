"""Tables received over QWP: one slot contains all of them, and a query reads one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from query_stores import ROOT, opened

from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY, Bundle
from quiver.errors import UsageError
from quiver.store.reading.read import read


def rows(table: str, **columns: list[object]) -> Bundle:
    batch = pa.RecordBatch.from_pydict(columns)
    return Bundle({QWP_SLOT: batch.replace_schema_metadata({QWP_TABLE_KEY: table.encode()})})


def ingest_both(store, *, flush: bool) -> None:
    """Two tables with different types for a column, one of which grows; half of it in a segment, half in the log."""
    store.ingest(rows("trades", price=[1.5, 2.5]))
    store.ingest(rows("venues", price=["high"]))
    store.ingest(rows("same", price=[9.0]))
    if flush:
        store.seal()
    store.ingest(rows("Trades", price=[3.5], size=[7]))
    store.ingest(rows("venues", price=["low"]))
    store.ingest(rows("logged", n=[1]))


@pytest.mark.parametrize("flush", [True, False])
def test_a_table_is_read_alone(flush):
    """Its rows in order with its own schema, from segments and log; its name is case-insensitive."""
    store, disk, _ = opened()
    with store:
        ingest_both(store, flush=flush)
        assert store.scan(QWP_SLOT, table="TRADES").to_table().to_pydict() == {
            "price": [1.5, 2.5, 3.5],
            "size": [None, None, 7],
        }
        assert store.scan(QWP_SLOT, ["price"], table="venues").to_table().to_pydict() == {"price": ["high", "low"]}
        assert store.scan(QWP_SLOT, table="none").to_table().num_rows == 0
        with pytest.raises(UsageError, match="price"):
            store.scan(QWP_SLOT)
        assert read(ROOT, fs=disk).tables() == ["logged", "same", "trades", "venues"]


@pytest.mark.parametrize(("slot", "table"), [(30, "trades"), (60, "trades"), (QWP_SLOT, ""), (QWP_SLOT, 7)])
def test_an_impossible_table_is_refused(slot, table):
    """One of another slot, an empty name and another type are errors, not results without rows."""
    store, _, _ = opened()
    with store:
        ingest_both(store, flush=True)
        with pytest.raises(UsageError, match="table="):
            store.scan(slot, table=table)
