"""From a store through processors to an exporter: every row once, after restarts, and in the right directory."""

import gzip
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from needed import needs
from stores import StoreMaker

import quiver
from quiver.errors import UsageError
from quiver.spark.exporters.query import TableBatches, start_export
from quiver.spark.exporters.settings import ConsoleSettings, FileSettings, QuiverSinkSettings, SparkSinkSettings
from quiver.spark.exporters.tables import ConsoleExporter, ParquetTables, exporter_of
from quiver.spark.processors.settings import FilterSettings, SqlSettings
from quiver.spark.spark_features import EXPORTERS

pytestmark = pytest.mark.spark

QUERY = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
OTHER = "d5026f74-7f8b-4a17-8beb-a452f78be02a"


def run(spark, store, tmp_path, settings, chain=()):
    """Export everything that is there, like a query after a restart."""
    query = start_export(
        spark, store.root, "exp", settings, checkpoint=str(tmp_path / "checkpoint"), chain=chain,
        trigger={"availableNow": True}, query_name="exp",
    )  # fmt: skip
    query.awaitTermination()
    assert query.exception() is None


def batches(spark, store, settings, chain=(), number=0, query=QUERY):
    """Export everything as one batch."""
    frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
    TableBatches(store.root, exporter_of(settings, subscriber="exp"), chain=chain).export(frame, number, query=query)


def lines(directory):
    found = []
    for path in sorted(Path(directory).glob("[!._]*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
    return found


@needs(EXPORTERS)
@pytest.mark.slow
def test_json_lines_are_written_once_across_restarts(spark, store, tmp_path):
    """There is one file per batch and task; a lost checkpoint repeats nothing."""
    store.otlp(7)
    out = tmp_path / "out"
    settings = FileSettings(str(out))
    run(spark, store, tmp_path, settings)
    store.otlp(3)
    run(spark, store, tmp_path, settings)
    assert sorted(row["body"]["int_value"] for row in lines(out / "logs")) == [
        0,
        1,
        2,
        3,
        4,
        *range(15, 20),
        *range(30, 40),
    ]
    assert len(lines(out / "spans")) == 15
    assert len(lines(out / "metrics")) == 15
    assert "1970-01-01T00:00:00.000000Z" in {row.get("time") for row in lines(out / "logs")}
    assert not list(out.glob("*/.*"))
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    run(spark, store, tmp_path, settings)
    assert len(lines(out / "spans")) == 15


def test_otlp_files_can_be_read_by_a_collector(spark, store, tmp_path):
    """One request per line; a table with other columns is refused."""
    store.otlp(3)
    settings = FileSettings(str(tmp_path), format="otlp", compression="gzip")
    batches(spark, store, settings, [FilterSettings(keep="body.int_value > 2", signals=("logs",))])
    [request] = lines(tmp_path / "logs")
    records = request["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [record["body"]["intValue"] for record in records] == ["3", "4"]
    assert lines(tmp_path / "spans")[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] == "span 5"
    store.otlp(1)
    with pytest.raises(UsageError, match="cannot become OTLP"):
        batches(spark, store, settings, [SqlSettings("SELECT count(*) AS n FROM logs")], number=1)


def test_parquet_has_the_columns_of_the_query(spark, store, tmp_path):
    """In a directory with the name of its output."""
    store.otlp(3)
    chain = [SqlSettings("SELECT count(*) AS n, max(time_unix_nano) AS last FROM logs", output="summary")]
    batches(spark, store, ParquetTables(str(tmp_path / "out")), chain)
    batches(spark, store, ParquetTables(str(tmp_path / "out")), chain)
    assert pq.read_table(tmp_path / "out" / "summary").to_pylist() == [{"n": 5, "last": 4}]
    assert pq.read_table(tmp_path / "out" / "logs").num_rows == 5


@pytest.mark.slow
def test_processed_data_are_written_to_another_store(spark, store, tmp_path):
    """As OTLP, each batch once, so any reader can read it."""
    store.otlp(6)
    target = tmp_path / "second"
    settings = QuiverSinkSettings(str(target), slot="logs")
    chain = [
        FilterSettings(keep="time_unix_nano < 3", signals=("logs",)),
        SqlSettings("SELECT name, count(*) AS n FROM spans GROUP BY name", output="names"),
    ]
    for _ in range(2):
        batches(spark, store, settings, chain)
    again = spark.read.format("quiver")
    seen = again.option("view", "logs").load(str(target)).select("body.int_value").collect()
    assert sorted(row[0] for row in seen) == [0, 1, 2]
    assert again.option("view", "spans").load(str(target)).count() == 10
    assert sum(bundle[30].num_rows for _, bundle in quiver.read(target).bundles() if 30 in bundle.slots) == 10
    with pytest.raises(UsageError, match="set the slot for it"):
        batches(spark, store, QuiverSinkSettings(str(tmp_path / "third")), chain)


def test_formats_of_spark_have_placeholders(spark, store, tmp_path):
    """For the table and the batch, in path and options; only the selected tables are written."""
    store.otlp(3)
    settings = SparkSinkSettings(
        "json", path=str(tmp_path / "{table}" / "{query}" / "{batch}"), mode="overwrite", tables=("spans",)
    )
    for _ in range(2):
        batches(spark, store, settings, number=5)
    assert spark.read.json(str(tmp_path / "spans" / QUERY / "5")).count() == 5
    assert not (tmp_path / "logs").exists()
    batches(spark, store, SparkSinkSettings("noop", {"x": "{query}"}))


@pytest.mark.parametrize("shape", ["table", "jsonl"])
def test_the_console_prints_the_first_rows(spark, store, shape):
    """And the number of all rows."""
    store.otlp(2)
    frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
    out = io.StringIO()
    exporter = ConsoleExporter(ConsoleSettings(rows_max=2, truncate=30, format=shape), out)
    query = "SELECT time_unix_nano, repeat('ä', 40) AS a, array('b', repeat('c', 31)) AS d FROM input"
    TableBatches(store.root, exporter, chain=[SqlSettings(query, signals=("logs",))]).export(frame, 3, query=QUERY)
    text = out.getvalue().splitlines()
    first = f'{{"time_unix_nano":0,"a":"{"ä" * 29}…","d":["b","{"c" * 29}…"]}}'
    if shape == "jsonl":
        assert text[0] == first
        # A row is an object with all of its columns, even if values are truncated.
        assert all("name" in json.loads(line) for line in text[2:])
    else:
        assert text[0] == "batch 3, logs: 2 rows, the first 2 of 5"
        assert text[1] == f"  {first}"


@needs(EXPORTERS)
@pytest.mark.slow
def test_cores_are_exported_together(spark, tmp_path):
    """A batch has data of all cores; a query with a new checkpoint does not repeat exported positions."""
    root = tmp_path / "buffer"
    cores = [StoreMaker(root / f"core_{core}", identity=f"id-{core}") for core in range(2)]
    for core in cores:
        core.otlp(2)

    class AllCores:
        root = str(tmp_path / "buffer")

    settings = FileSettings(str(tmp_path / "out"))
    run(spark, AllCores, tmp_path, settings)
    assert len(lines(tmp_path / "out" / "logs")) == 10
    cores[1].otlp(1)
    batches(spark, AllCores, settings, query=OTHER)
    assert len(lines(tmp_path / "out" / "logs")) == 15
    assert len(lines(tmp_path / "out" / "spans")) == 10


def test_a_batch_without_a_signal_writes_no_file(spark, store, tmp_path):
    """Its slots belong to no signal."""
    store.rows(2)
    batches(spark, store, FileSettings(str(tmp_path / "out")))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_quiver"]
