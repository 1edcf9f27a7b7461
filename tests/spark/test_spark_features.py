"""The detected features of PySpark, and the streams of a PySpark without limits."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import quiver
from quiver.errors import UsageError
from quiver.pipeline.processes import run as pipeline_run
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.spark import bundle_query, log_source, spark_features
from quiver.spark.spark_features import EXPORTERS, FEATURES, STREAM_LIMITS, TIME_COLUMNS, from_arrow_schema, require
from quiver.spark.store.source import QuiverDataSource
from quiver.store.subscribers.progress_store import load_progress

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
    section = (ROOT / "docs/howto/spark.md").read_text().partition("## Versions")[2].partition("\n## ")[0]
    header, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
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


def test_a_pipeline_is_refused_before_its_processes_start(monkeypatch):
    monkeypatch.setattr(spark_features, "EXPORTERS", missing(EXPORTERS))
    with pytest.raises(UsageError, match=r"exporters and pipelines on Spark need PySpark 4\.2 or newer"):
        pipeline_run._require_spark()


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
@pytest.mark.parametrize("option", ["maxBundlesPerTrigger", "maxRowsPerTrigger", "maxbytespertrigger"])
def test_a_limit_is_refused_where_spark_has_none(tmp_path, option):
    """As other wrong options are: when Spark first asks for an offset."""
    with pytest.raises(UsageError, match=r"limits on the size of a streaming batch need PySpark 4\.2 or newer, but"):
        stream_reader(tmp_path, subscriber="s", **{option: "5"}).initialOffset()


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
    assert load_progress(REAL_FILES, store.root, "s").oldest_incomplete >= 3
