"""`quiver export --table`: the rows of one table that a QuestDB client sent."""

import json

import pyarrow as pa

import quiver
from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY


def rows(table, **columns):
    batch = pa.RecordBatch.from_pydict(columns)
    return quiver.Bundle({QWP_SLOT: batch.replace_schema_metadata({QWP_TABLE_KEY: table.encode()})})


def test_one_table_is_written(tmp_path, call):
    """An unknown name is an error that lists the known tables."""
    with quiver.open(tmp_path / "buffer") as store:
        store.ingest(rows("trades", price=[1.5, 2.5]))
        store.ingest(rows("venues", price=["high"]))
        store.seal()
        store.ingest(rows("Trades", price=[3.5]))
    to = tmp_path / "out.jsonl"
    assert call("export", tmp_path / "buffer", "--table", "trades", "--to", to).exit_code == 0
    assert [json.loads(line)["price"] for line in to.read_text().splitlines()] == [1.5, 2.5, 3.5]
    wrong = call("export", tmp_path / "buffer", "--table", "traders", "--to", tmp_path / "no.jsonl")
    assert (wrong.exit_code, "there are trades, venues" in wrong.output) == (2, True)
    both = call("export", tmp_path / "buffer", "--table", "trades", "--slot", "50", "--to", tmp_path / "no.jsonl")
    assert both.exit_code == 2
