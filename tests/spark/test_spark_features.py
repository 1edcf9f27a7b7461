"""The detected features of PySpark, and the streams of a PySpark without limits."""

import io
import re
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.util import handle_worker_exception

import quiver
from quiver.cli.main import main
from quiver.errors import DataLossError, UsageError
from quiver.pipeline.processes import run as pipeline_run
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.spark import bundle_query, log_source, run_exporter, spark_features
from quiver.spark.spark_features import EXPORTERS, FEATURES, STREAM_LIMITS, TIME_COLUMNS, from_arrow_schema, require
from quiver.spark.store.source import QuiverDataSource
from quiver.spark.topics.source import TopicDataSource
from quiver.store.subscribers.progress_store import load_progress
from quiver.topics import TopicStore
from quiver.topics.reading.message_rows import TOPIC_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ".".join(pyspark.__version__.split(".")[:2])
SCHEMA = from_arrow_schema(pa.schema([("id", pa.int64())]))


def missing(feature):
    return replace(feature, is_available=False)


def cells(line):
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def number(version):
    return tuple(map(int, version.split(".")))


def table():
    """The table of versions in the page about Spark: version → feature → whether it works."""
    section = (ROOT / "docs/howto/spark.md").read_text().partition("\n| PySpark |")[2].partition("\n\n")[0]
    header, _, *rows = f"| PySpark |{section}".splitlines()
    names = cells(header)[1:]
    return {cells(row)[0]: dict(zip(names, cells(row)[1:], strict=True)) for row in rows}


# ── the features ─────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_the_page_is_correct():
    """For each version by the first version of a feature, and for the installed one by what was detected."""
    for version, works in table().items():
        assert works == {
            name: "yes" if number(version) >= number(feature.since) else "no" for name, feature in FEATURES.items()
        }
    assert table()[INSTALLED] == {
        name: "yes" if feature.is_available else "no" for name, feature in FEATURES.items()
    }  # fmt: skip


def test_each_version_of_the_page_has_a_lane():
    """And the requirement allows exactly these versions."""
    lanes, pinned = locked("tests/spark/pyspark.lock"), locked("requirements.lock")
    versions = [re.match(r"\d+\.\d+", version)[0] for version in lanes]
    assert versions == list(table())
    low, high = re.search(r'"pyspark>=(\d+\.\d+),<(\d+\.\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
    newest = number(versions[-1])
    assert (low, number(high)) == (versions[0], (newest[0], newest[1] + 1))
    assert pinned.items() <= lanes.items()


def locked(path):
    """The releases of PySpark in a lock file: version → hash."""
    text = (ROOT / path).read_text()
    return dict(re.findall(r"^pyspark==(\S+) [\\\s]*--hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE))


def test_only_one_module_depends_on_the_version():
    """The others get from it what some versions lack or do otherwise."""
    differs = r"pyspark\.sql\.(streaming\.)?datasource|pyspark\.sql\.pandas\.types import .*_arrow_schema"
    found = [path.name for path in (ROOT / "src").rglob("*.py") if re.search(differs, path.read_text())]
    assert found == ["spark_features.py"]


def test_a_missing_feature_is_one_sentence():
    with pytest.raises(UsageError) as raised:
        require(missing(TIME_COLUMNS))
    assert str(raised.value) == (
        f"columns with a time of day need PySpark 4.1 or newer, but {pyspark.__version__} is installed"
    )
    require(replace(TIME_COLUMNS, is_available=True))


def test_a_process_of_spark_reports_no_traceback(monkeypatch):
    """It sends the sentence alone to the JVM; elsewhere, such as in a user's program, nothing changes."""

    def sent():
        data = io.BytesIO()
        try:
            require(missing(STREAM_LIMITS))
        except UsageError as error:
            handle_worker_exception(error, data)
        return data.getvalue()[8:].decode()

    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    assert sent().startswith("Traceback")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None), raising=False)
    assert sent() == f"quiver.errors.UsageError: {STREAM_LIMITS.missing}\n"


def test_a_pyspark_without_data_sources_is_reported():
    """Instead of the failed import of a module of PySpark."""
    script = "import sys; sys.modules['pyspark.sql.datasource'] = None; import quiver.spark; quiver.spark.register"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert "UsageError: the formats of Quiver need PySpark 4.0 or newer, but" in run.stderr.splitlines()[-1]


def test_exporters_are_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(bundle_query, "EXPORTERS", missing(EXPORTERS))
    with pytest.raises(UsageError, match=r"exporters and pipelines on Spark need PySpark 4\.2 or newer"):
        bundle_query.start_bundle_query(
            None, str(tmp_path), "s", print, checkpoint=str(tmp_path / "ck"), trigger=None, options={}
        )


def test_the_reason_is_empty_where_exporters_can_run(monkeypatch):
    monkeypatch.setattr(spark_features, "EXPORTERS", replace(EXPORTERS, is_available=True))
    assert spark_features.missing_for_exporters() == ""
    monkeypatch.setattr(spark_features, "EXPORTERS", missing(EXPORTERS))
    assert spark_features.missing_for_exporters() == EXPORTERS.missing


def without_exporters(monkeypatch):
    """Make the process that looks at PySpark answer that exporters cannot run on it."""
    monkeypatch.setattr(pipeline_run, "call_in_short_process", lambda _function: EXPORTERS.missing)


def test_a_pipeline_is_refused_before_its_processes_start(monkeypatch):
    without_exporters(monkeypatch)
    with pytest.raises(UsageError, match=r"exporters and pipelines on Spark need PySpark 4\.2 or newer"):
        pipeline_run._require_spark()


PIPELINE = str(ROOT / "examples/otlp-to-parquet.yaml")


@pytest.mark.parametrize("options", [["--check"], ["--check", "--json"], []])
def test_run_is_refused_in_one_sentence(monkeypatch, tmp_path, capsys, options):
    """Before any process starts, and by `--check`, which exits with 3; the diagram needs no Spark."""
    monkeypatch.chdir(tmp_path)
    without_exporters(monkeypatch)
    monkeypatch.setattr("sys.argv", ["quiver", "run", PIPELINE, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    found = ended.value.code, capsys.readouterr().err
    if options:
        assert found == (3, f"This machine cannot run it: {EXPORTERS.missing}\n")
    else:
        assert found == (2, f"quiver: {EXPORTERS.missing}\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("sys.argv", ["quiver", "run", PIPELINE, "--mermaid"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


@pytest.mark.parametrize(
    "kind", [pa.time32("s"), pa.time64("ns"), pa.list_(pa.time64("us")), pa.struct([("at", pa.time64("ns"))])]
)
def test_times_of_day_are_refused_where_spark_has_no_type(monkeypatch, kind):
    monkeypatch.setattr(spark_features, "TIME_COLUMNS", missing(TIME_COLUMNS))
    with pytest.raises(UsageError, match="columns with a time of day need"):
        from_arrow_schema(pa.schema([("id", pa.int64()), ("at", kind)]))
    assert from_arrow_schema(pa.schema([("at", pa.timestamp("us"))])).simpleString() == "struct<at:timestamp_ntz>"


# ── streams without limits ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def _no_limits(monkeypatch):
    """Behave as with a PySpark without limits."""
    monkeypatch.setattr(log_source, "STREAM_LIMITS", missing(STREAM_LIMITS))


def stream_reader(path, **options):
    return QuiverDataSource({"path": str(path), "slot": "30", **options}).streamReader(schema=SCHEMA)


def ingest(store, first):
    store.ingest(quiver.Bundle({30: pa.record_batch({"id": [first]})}))
    store.seal()


def read(reader, start, end):
    rows = [batch.to_pylist() for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [row["id"] for batch in rows for row in batch]


@pytest.mark.usefixtures("_no_limits")
def test_a_stream_without_limits_acknowledges_in_commit(tmp_path):
    """A batch ends at the end of the log; asking for it acknowledges nothing, also after a restart."""
    with quiver.open(tmp_path, Settings(delete_grace_s=0), background=False) as store:
        ingest(store, 0)
        reader = stream_reader(tmp_path, subscriber="s")
        start = reader.initialOffset()
        ingest(store, 1)
        first = reader.latestOffset()
        assert read(reader, start, first) == [0, 1]
        assert reader.latestOffset() == first
        reader.stop()

        reader = stream_reader(tmp_path, subscriber="s")
        # Spark asks for this after a restart, although the batch is not committed.
        assert reader.partitions(first, first) == []
        assert read(reader, start, first) == [0, 1]
        assert load_progress(REAL_FILES, str(tmp_path), "s").oldest_incomplete == 0
        ingest(store, 2)
        second = reader.latestOffset()
        reader.commit(first)
        assert load_progress(REAL_FILES, str(tmp_path), "s").oldest_incomplete == 2
        store.maintain()
        assert read(reader, first, second) == [2]
        assert reader.latestOffset() == second
        reader.stop()


@pytest.mark.usefixtures("_no_limits")
def test_all_cores_are_read_without_limits(tmp_path):
    """As one stream, whose offsets have a position for each core."""
    with quiver.open(tmp_path, cores=3, background=False) as store:
        reader = stream_reader(tmp_path, subscriber="s")
        start = reader.initialOffset()
        for first in (0, 6):
            for i in range(first, first + 6):
                store.ingest(quiver.Bundle({30: pa.record_batch({"id": [i]})}), core=i % 3)
            store.seal()
            end = reader.latestOffset()
            assert sorted(read(reader, start, end)) == list(range(first, first + 6))
            reader.commit(end)
            start = end
        reader.stop()


@pytest.mark.usefixtures("_no_limits")
def test_a_checkpoint_of_another_topic_is_refused_without_limits(tmp_path):
    """Its offset is after the end of the topic; the batch would be empty, and messages would be skipped."""
    with TopicStore.open(tmp_path, background=False) as topics:
        topics.topic("default/orders").append_batch([b"0", b"1", b"2"])
        made = TopicDataSource({"path": topics.root, "topic": "default/orders"})
        reader = made.streamReader(from_arrow_schema(TOPIC_SCHEMA))
        end = reader.latestOffset()
        [part] = reader.partitions(reader.initialOffset(), end)
        assert (part.spans[0].start, part.spans[0].stop) == (0, 3)
        with pytest.raises(DataLossError, match="asks for message 99, but the topic ends before 3"):
            reader.partitions({"v": 1, "topics": {"default/orders": 99}}, end)


@pytest.mark.usefixtures("_no_limits")
@pytest.mark.parametrize("option", ["maxBundlesPerTrigger", "maxRowsPerTrigger", "maxbytespertrigger"])
def test_a_limit_is_refused_where_spark_has_none(tmp_path, option):
    """As other wrong options are: when Spark first asks for an offset."""
    with pytest.raises(UsageError, match=r"limits on the size of a streaming batch need PySpark 4\.2 or newer, but"):
        stream_reader(tmp_path, subscriber="s", **{option: "5"}).initialOffset()


# ── in a session ─────────────────────────────────────────────────────────────────────────────────────


def reported(error):
    """The lines of Spark's *error*, without its codes and its description of the query."""
    text, _, _ = str(error.value).partition("=== Streaming Query ===")
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]


@pytest.mark.spark
@pytest.mark.skipif(TIME_COLUMNS.is_available, reason="this PySpark has columns with a time of day")
def test_a_time_of_day_is_refused_by_load_in_one_sentence(spark, store):
    store.seal([{30: pa.record_batch({"at": pa.array([1], pa.time64("us"))})}])
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="a time of day") as raised:
            reader.format("quiver").options(path=store.root, slot="30", subscriber="s").load()
        [line] = reported(raised)
        assert line.endswith(f": quiver.errors.UsageError: {TIME_COLUMNS.missing}")


@pytest.mark.spark
@pytest.mark.skipif(STREAM_LIMITS.is_available, reason="this PySpark has limits on the size of a streaming batch")
def test_a_limit_is_refused_in_one_sentence(spark, store, tmp_path):
    """By `load`; by the query if `load` was given the schema."""
    store.rows(1)
    reader = spark.readStream.format("quiver")
    reader = reader.options(path=store.root, slot="30", subscriber="s", maxRowsPerTrigger="5")
    with pytest.raises(Exception, match="limits on the size") as raised:
        reader.load()
    [line] = reported(raised)
    assert line.endswith(f": quiver.errors.UsageError: {STREAM_LIMITS.missing}")

    frame = reader.schema("id long, text string").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck")).start()
    with pytest.raises(Exception, match="limits on the size") as raised:
        query.awaitTermination(100)
    [line] = reported(raised)
    assert line.endswith(f": quiver.errors.UsageError: {STREAM_LIMITS.missing}")


@pytest.mark.spark
@pytest.mark.skipif(EXPORTERS.is_available, reason="this PySpark has what exporters need")
def test_an_exporter_is_refused_before_its_query(spark, store, tmp_path):
    with pytest.raises(UsageError) as raised:
        run_exporter(spark, store.root, "s", str(tmp_path / "out"), str(tmp_path / "ck"))
    assert str(raised.value) == EXPORTERS.missing
    assert spark.streams.active == []


@pytest.mark.spark
def test_a_stream_reads_each_bundle_once_in_every_version(spark, store, tmp_path):
    """Across a failed batch and restarts; bundles of committed batches are acknowledged while later ones are read."""
    batches = {}
    failing = []

    def sink(frame, batch_id):
        ids = [row["id"] for row in frame.select("id").collect()]
        if failing:
            raise ValueError("the sink fails here")
        batches[batch_id] = ids

    def run():
        reader = spark.readStream.format("quiver").option("path", store.root).option("slot", "30")
        writer = reader.option("subscriber", "s").load().writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(100)
        finally:
            query.stop()

    store.rows(2)
    run()
    store.rows(1)
    failing.append(True)
    with pytest.raises(Exception, match="the sink fails here"):
        run()
    store.rows(1)
    failing.clear()
    run()
    run()
    assert [i for batch in sorted(batches) for i in batches[batch]] == list(range(40))
    # Without limits, the last batch is acknowledged when there is another one.
    assert load_progress(REAL_FILES, store.root, "s").oldest_incomplete == (3 if STREAM_LIMITS.is_available else 2)
