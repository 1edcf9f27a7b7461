"""The permissions of files that exporters write: by the umask, or by a setting. Tasks only, without a Spark session."""

import os
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.errors import PipelineError, SettingsError
from quiver.pipeline.graph import load_pipeline
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.parquet import ParquetExporter, PartWriter
from quiver.spark.exporters.parquet_commit import ExportCommitter, StagedFile
from quiver.spark.exporters.settings import FileSettings
from quiver.spark.exporters.tables import _FileTask
from quiver.spark.lake.layout import FileLayout
from quiver.spark.lake.staging import DirectoryStaging
from quiver.spark.lake.table_export import _Task

PIPELINE = """\
nodes:
  otlp: {kind: receiver, plugin_urn: "urn:otel:otlp:receiver", out_ports: {out_port: {destinations: [store]}},
         config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}}
  store: {kind: processor, plugin_urn: "urn:otap:processor:persistence", config: {path: buffer},
          out_ports: {out_port: {destinations: [files]}}}
  files: {kind: exporter, plugin_urn: "urn:quiver:KIND:exporter", config: {path: out, file_mode: MODE}}
"""


@pytest.fixture(autouse=True)
def _umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, str]:
    return {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in sorted(path.rglob("*"))}


@pytest.mark.parametrize(("mode", "files", "directories"), [(None, "0o644", "0o755"), (0o640, "0o640", "0o750")])
def test_tasks_write_files_with_the_configured_mode(store, tmp_path, mode, files, directories):
    """Parquet of complete bundles and of tables; readers of the files may enter the directories."""
    path = store.rows(1)
    out = tmp_path / "out"
    descriptors = pa.RecordBatch.from_pydict({"path": [path], "segment": [0], "index": pa.array([0], pa.int32())})
    writer = PartWriter(DirectoryStaging(str(out), "p", mode), FileLayout("none"), exported_through={})
    assert list(writer([descriptors]))
    for task in (
        _Task("parquet", DirectoryStaging(str(out), "p", mode), FileLayout("none")),
        _FileTask(output=str(out), table="jsonl", prefix="p", format="jsonl", compression="none", file_mode=mode),
    ):
        assert list(task([pa.record_batch({"line": ["x"]})]))
    found = modes(out)
    assert {found[name] for name in found if name.endswith(".part")} == {files}
    assert found["slots"] == found["jsonl"] == directories


def test_commit_records_have_the_mode_of_the_files(tmp_path):
    """Otherwise, other users could read the names of the files."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "p.part").write_bytes(b"")
    committer = ExportCommitter(REAL_FILES, str(tmp_path), query_id="q", stores=["s"], subscriber="x", file_mode=0o600)
    committer.recover()
    committer.commit(0, [StagedFile("logs", "p.part", 0, 0)], {})
    assert modes(tmp_path)["0000000000.json"] == "0o600"


@pytest.mark.parametrize("kind", ["parquet", "file"])
def test_the_mode_in_a_pipeline_file_is_a_string(kind):
    """In quotes: YAML would read another number."""
    text = PIPELINE.replace("KIND", kind)
    pipeline, _ = load_pipeline(text.replace("MODE", '"0640"'), source="p.yaml", values={})
    assert pipeline.routes["files"].config.file_mode == 0o640
    for wrong, reported in (
        ("0640", "in quotes"),
        ("640", "in quotes"),
        ('"0750"', "bits to execute"),
        ('"044"', "0600"),
    ):
        with pytest.raises(PipelineError, match=reported):
            load_pipeline(text.replace("MODE", wrong), source="p.yaml", values={})


def test_unusable_modes_are_refused(tmp_path):
    """The exporter could not write its own files, or the files would be executable."""
    for mode in (0o400, 0o755, 0o1644):
        with pytest.raises(SettingsError, match="file_mode"):
            FileSettings("out", file_mode=mode)
        with pytest.raises(SettingsError, match="file_mode"):
            ParquetExporter(str(tmp_path), "s", "out", file_mode=mode)
