"""The Parquet exporter in a real Spark session; its output is read with pyarrow."""

import pathlib
import shutil

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from needed import needs

from quiver.spark import run_exporter, stop_query
from quiver.spark.exporters.parquet import ParquetExporter, UsageError
from quiver.spark.exporters.parquet_commit import ExportCommitter
from quiver.spark.spark_features import EXPORTERS

pytestmark = pytest.mark.spark


def export(spark, store, tmp_path, **options):
    query = run_exporter(
        spark, store.root, "exp", str(tmp_path / "out"), str(tmp_path / "ck"),
        trigger={"availableNow": True}, options=options,
    )  # fmt: skip
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def column(tmp_path, table, name):
    directory = tmp_path / "out" / table
    if not list(directory.glob("*.parquet")):
        return []
    return sorted(ds.dataset(str(directory), format="parquet").to_table(columns=[name])[name].to_pylist())


def exported(tmp_path):
    """Return every number in the output, over all signals."""
    return sorted(
        column(tmp_path, "logs", "time_unix_nano")
        + column(tmp_path, "spans", "start_time_unix_nano")
        + column(tmp_path, "metrics", "int_value")
    )


def hidden(tmp_path):
    return [path.name for path in (tmp_path / "out").rglob("*.part")]


@needs(EXPORTERS)
def test_signals_and_other_slots_have_their_own_directories(spark, store, tmp_path):
    """Each batch adds files with its number; nothing is exported twice after restarts; Spark can read them, too."""
    store.otlp(6)
    export(spark, store, tmp_path)
    store.rows(2)
    store.otlp(3)
    export(spark, store, tmp_path)
    export(spark, store, tmp_path)
    assert exported(tmp_path) == [*range(30), *range(50, 65)]
    assert column(tmp_path, "slots/logs", "id") == list(range(30, 50))
    names = sorted(path.name for path in (tmp_path / "out" / "logs").iterdir())
    assert [name[8:20] for name in names] == ["-0000000000-", "-0000000001-"]
    assert hidden(tmp_path) == []
    assert spark.read.parquet(str(tmp_path / "out" / "logs")).count() == 15


class DriverCrash(Exception):
    """The driver dies in a callback of Spark. Only an `Exception` reaches Java; with another one the query hangs."""


CUTS = {
    "before the record": ("quiver.spark.exporters.parquet_commit.replace_file", None),
    "behind the record": (None, 0),
    "behind the first rename": (None, 1),
    "behind all renames": (None, 3),
}


def die(patch, cut):
    """Make the driver die at this point of the next commit."""
    name, renames = CUTS[cut]
    if name is not None:

        def refuse(*args, **kwargs):
            raise DriverCrash(cut)

        patch.setattr(name, refuse)
        return

    def stop_after(self, record):
        for part, final in record.files[:renames]:
            base = pathlib.Path(self._output, part.table)
            (base / part.name).rename(base / final)
        raise DriverCrash(cut)

    patch.setattr(ExportCommitter, "roll_forward", stop_after)


@pytest.mark.parametrize("cut", CUTS)
def test_a_crash_of_the_driver_during_a_commit_duplicates_nothing(spark, store, tmp_path, monkeypatch, cut):
    """No reader ever sees a row twice, and after the batch is repeated every row is there once."""
    query_id = "c5026f74-7f8b-4a17-8beb-a452f78be02a"
    store.otlp(6)

    def batch(number):
        frame = spark.read.format("quiver").option("mode", "bundles").load(store.root)
        exporter = ParquetExporter(store.root, "exp", str(tmp_path / "out"))
        return exporter.export(frame, number, query_id=query_id)

    with monkeypatch.context() as patch:
        die(patch, cut)
        with pytest.raises(DriverCrash):
            batch(0)
    seen = exported(tmp_path)
    assert len(seen) == len(set(seen))
    assert len(batch(0)) == (3 if cut == "before the record" else 0)
    assert exported(tmp_path) == list(range(30))
    assert batch(0) == ()
    assert exported(tmp_path) == list(range(30))
    assert hidden(tmp_path) == []


@needs(EXPORTERS)
def test_a_query_continues_after_a_crash_during_a_commit(spark, store, tmp_path, monkeypatch):
    """Spark repeats the batch with the same number."""
    store.otlp(3)
    with monkeypatch.context() as patch:
        die(patch, "behind the first rename")
        with pytest.raises(Exception, match="behind the first rename"):
            export(spark, store, tmp_path)
    assert len(exported(tmp_path)) == 5
    store.otlp(3)
    export(spark, store, tmp_path)
    assert exported(tmp_path) == list(range(30))
    assert hidden(tmp_path) == []


@needs(EXPORTERS)
def test_a_lost_checkpoint_exports_nothing_twice(spark, store, tmp_path):
    """Batches that were committed here but not yet acknowledged in the store are skipped."""
    store.otlp(6)
    export(spark, store, tmp_path)
    shutil.rmtree(tmp_path / "ck")
    pathlib.Path(store.root, "quiver.sub.exp").unlink()
    store.otlp(3)
    export(spark, store, tmp_path)
    assert exported(tmp_path) == list(range(45))


@needs(EXPORTERS)
def test_types_without_a_parquet_equivalent_are_decoded(spark, store, tmp_path):
    """Dictionaries are kept."""
    run_ends = pa.RunEndEncodedArray.from_arrays([2], ["x"])
    store.seal([{7: pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode(), "r": run_ends})}])
    export(spark, store, tmp_path)
    assert column(tmp_path, "slots/7", "d") == ["a", "b"]
    assert column(tmp_path, "slots/7", "r") == ["x", "x"]


@needs(EXPORTERS)
def test_stop_waits_for_the_end_of_a_batch(spark, store, tmp_path):
    """An idle query is stopped immediately."""
    store.otlp(3)
    query = run_exporter(
        spark, store.root, "exp", str(tmp_path / "out"), str(tmp_path / "ck"), trigger={"processingTime": "0 seconds"}
    )
    query.processAllAvailable()
    assert stop_query(query)
    assert not query.isActive
    assert exported(tmp_path) == list(range(15))
    assert stop_query(query)


def test_an_unknown_compression_is_refused():
    """Before the exporter starts."""
    with pytest.raises(UsageError, match="zstd, snappy, none"):
        ParquetExporter("b", "exp", "out", compression="lzo")
