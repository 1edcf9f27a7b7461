"""Other engines query the buffer in place: DuckDB and Polars through the Arrow C stream interface, and the examples."""

from __future__ import annotations

import runpy
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from query_stores import LOGS, ROOT, filled, opened

import quiver
from quiver.bundle import Bundle
from quiver.errors import CorruptionError, StoreClosedError, UsageError
from quiver.store.reading.read import read

EXAMPLES = Path(__file__).parents[3] / "examples"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
PARTS = [
    [pa.record_batch({"id": pa.array([1, 2], pa.int8()), "word": pa.array(["a", "b"]).dictionary_encode()})],
    [
        pa.record_batch({"word": ["a", None], "id": pa.array([3, 4], pa.uint32())}),
        pa.record_batch({"seen": pa.array([NOON], pa.timestamp("ns", "UTC")), "id": pa.array([5], pa.int16())}),
    ],
    [pa.record_batch({"nested": [{"x": [1, 2]}], "id": pa.array([6], pa.int8()), "cost": [Decimal("1.25")]})],
]


@pytest.fixture
def store():
    store, _ = filled(PARTS)
    yield store
    store.close()


def test_duckdb_reads_it_as_a_table(store):
    """Any number of times, joined with itself; new bundles are visible only in a new scan."""
    logs = store.scan("logs")
    with duckdb.connect() as tables:
        tables.register("logs", logs)
        for _ in range(2):
            rows = tables.sql(
                "SELECT word, sum(id), count(*) FROM logs GROUP BY word ORDER BY word NULLS LAST"
            ).fetchall()
            assert rows == [("a", 4, 2), ("b", 2, 1), (None, 15, 3)]
        assert tables.sql("SELECT count(*) FROM logs a JOIN logs b USING (id)").fetchall() == [(6,)]
        assert tables.sql("SELECT nested.x[2], cost FROM logs WHERE cost > 1").fetchall() == [(2, Decimal("1.25"))]
        assert tables.sql("SELECT epoch_ns(seen) FROM logs WHERE seen IS NOT NULL").fetchall() == [
            (int(NOON.timestamp()) * 10**9,)
        ]
        store.ingest(Bundle({LOGS: PARTS[0][0]}))
        assert tables.sql("SELECT count(*) FROM logs").fetchall() == [(6,)]
        tables.register("logs", store.scan("logs"))
        assert tables.sql("SELECT count(*) FROM logs").fetchall() == [(8,)]


def test_duckdb_finds_it_by_the_name_of_a_variable(store):
    """As it finds frames and Arrow tables."""
    logs = store.scan("logs", ["id"])
    assert duckdb.sql("SELECT max(id) FROM logs").fetchall() == [(6,)]
    assert logs.schema.names == ["id"]


def test_polars_reads_it_as_a_frame(store):
    """With the types of the scan's schema."""
    frame = pl.DataFrame(store.scan("logs"))
    assert frame.columns == ["id", "word", "seen", "nested", "cost"]
    assert frame["id"].to_list() == [1, 2, 3, 4, 5, 6]
    assert frame["id"].dtype == pl.Int64
    assert frame["word"].to_list() == ["a", "b", "a", None, None, None]
    assert frame["nested"].to_list()[5] == {"x": [1, 2]}
    assert frame["seen"][4] == NOON
    lazy = pl.LazyFrame(store.scan("logs")).filter(pl.col("word") == "a").select(pl.col("id").sum())
    assert lazy.collect().item() == 4


def test_arrow_reads_it_through_the_interface(store):
    """`pa.table`, a reader, and a requested schema that narrows it."""
    scan = store.scan("logs", ["id", "word"])
    assert pa.table(scan) == scan.to_table() == scan.to_reader().read_all()
    wanted = pa.schema([("id", pa.int32()), ("word", pa.large_string())])
    assert pa.RecordBatchReader.from_stream(scan, schema=wanted).read_all() == scan.to_table().cast(wanted)


def test_large_batches_point_into_the_file(tmp_path):
    """An uncompressed batch is not copied, and stays valid after its segment is deleted and the store is closed."""
    rows = pa.record_batch({"id": list(range(100_000))})
    with quiver.open(tmp_path, background=False) as store:
        store.ingest(Bundle({LOGS: rows}))
        store.seal()
        before = pa.total_allocated_bytes()
        found = list(store.scan("logs"))
        assert pa.total_allocated_bytes() - before < rows.nbytes // 2
        for segment in (tmp_path / "segments").glob("*.qseg"):
            segment.unlink()
    assert found == [rows]


def test_small_batches_are_combined():
    """Other engines pay for each batch; a thousand bundles of one row become one."""
    store, _ = filled([[pa.record_batch({"id": [number]}) for number in range(1000)], []])
    (found,) = store.scan("logs")
    assert found.column("id").to_pylist() == list(range(1000))
    store.close()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compressed_segments_are_read(compression):
    """By bundles, by scans, by other engines."""
    parts = [[pa.record_batch({"id": list(range(500)), "word": ["the same"] * 500})] * 3, []]
    store, disk = filled(parts, segment_compression=compression)
    assert [bundle[LOGS] for _, bundle in read(ROOT, fs=disk).bundles()] == parts[0]
    with duckdb.connect() as tables:
        tables.register("logs", store.scan("logs"))
        assert tables.sql("SELECT sum(id), count(DISTINCT word) FROM logs").fetchall() == [(3 * 124_750, 1)]
    assert pl.DataFrame(store.scan("logs", ["id"]))["id"].sum() == 3 * 124_750
    store.close()


def test_only_damaged_rows_are_missing_and_damage_is_reported():
    """One of two segments is damaged; a strict reader raises, through Arrow's stream too."""
    store, disk = filled([[PARTS[0][0]], [PARTS[0][0]], []])
    path = f"{ROOT}/segments/0000000000000001.qseg"
    data = bytearray(disk.read_all(path, size_max=1 << 20))
    data[200] ^= 1
    disk.remove(path)
    file = disk.create(path)
    file.pwrite(bytes(data), 0)
    file.close()
    scan = store.scan("logs", ["id"])
    assert scan.problems == []
    assert scan.to_table()["id"].to_pylist() == [1, 2]
    assert [damage.path for damage in scan.problems] == [path]
    strict = read(ROOT, fs=disk, strict=True).scan("logs", ["id"])
    with pytest.raises(CorruptionError):
        strict.to_table()
    with pytest.raises(Exception, match="checksum mismatch"):
        pl.DataFrame(strict)
    store.close()


def test_a_closed_store_is_not_scanned():
    """An existing scan continues."""
    store, _ = filled(PARTS)
    scan = store.scan("logs")
    store.close()
    with pytest.raises(StoreClosedError):
        store.scan("logs")
    assert scan.to_table().num_rows == 6


def test_cores_are_scanned_as_one(tmp_path):
    """One core after the other, by the store itself and by a reader."""
    with quiver.open(tmp_path, cores=3, background=False) as store:
        for number in range(6):
            store.ingest(Bundle({LOGS: pa.record_batch({"id": [number], f"c{number % 2}": [True]})}), core=number % 3)
        store.core(1).seal()
        for source in (store, quiver.read(tmp_path)):
            scan = source.scan("logs")
            assert scan.to_table()["id"].to_pylist() == [0, 3, 1, 4, 2, 5]
            assert scan.schema.names == ["id", "c0", "c1"]
        reader = quiver.read(tmp_path)
        assert [bundle[LOGS].column(0)[0].as_py() for _, bundle in reader.bundles()] == [0, 3, 1, 4, 2, 5]
        assert [info.bundle_count for info in reader.segments()] == [2]


def test_a_directory_without_a_store_is_refused(tmp_path):
    """A directory with neither a store nor cores."""
    with pytest.raises(UsageError, match="holds no store"):
        quiver.read(tmp_path)


def test_example_duckdb(capsys):
    """The printed table matches the rows of the example."""
    runpy.run_path(str(EXAMPLES / "query_duckdb.py"))["main"]([])
    out = capsys.readouterr().out
    assert [line.split("│")[1:4] for line in out.splitlines() if "ERROR" in line] == [
        [" ERROR    ", "     2 ", "    12.0 "]
    ]
    assert out.endswith("errors since nine: 2\n")


def test_example_polars(capsys):
    """The means match the rows of the example."""
    runpy.run_path(str(EXAMPLES / "query_polars.py"))["main"]([])
    assert capsys.readouterr().out.endswith("freezer: -17.8\noven: 187.2\nhottest: 200.0\n")


def test_examples_read_a_given_directory(tmp_path, capsys):
    """As documented in their first lines."""
    with quiver.open(tmp_path, background=False) as store:
        runpy.run_path(str(EXAMPLES / "query_duckdb.py"))["fill"](store)
    runpy.run_path(str(EXAMPLES / "query_duckdb.py"))["main"]([str(tmp_path)])
    assert "errors since nine: 2" in capsys.readouterr().out


def test_an_empty_slot_in_other_engines():
    """Some engines refuse a table without columns; with selected columns the table is empty."""
    store, _, _ = opened()
    assert pl.DataFrame(store.scan("logs")).shape == (0, 0)
    with duckdb.connect() as tables:
        tables.register("logs", store.scan("logs", ["id"]))
        assert tables.sql("SELECT count(*) FROM logs").fetchall() == [(0,)]
    store.close()
