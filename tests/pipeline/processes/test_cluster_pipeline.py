"""A whole pipeline on a Spark cluster of three processes. Run by `make test-cluster`."""

import shutil
import subprocess
import sys
import venv

import pyarrow.dataset as ds
import pytest
from run_process import Run, request

from ports import free_port
from spark_cluster import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(900)]

NODES = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [store]}}}}
    config: {{protocols: {{http: {{listening_addr: "127.0.0.1:{port}"}}}}}}
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [parquet, named]}}}}
    config: {{path: {directory}/buffer}}
  parquet:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {{path: {directory}/parquet}}
  named:
    kind: processor
    plugin_urn: "urn:quiver:attributes:processor"
    out_ports: {{out_port: {{destinations: [files]}}}}
    config: {{actions: [{{action: insert, key: cluster, value: yes}}]}}
  files:
    kind: exporter
    plugin_urn: "urn:quiver:file:exporter"
    config: {{path: {directory}/files}}
spark:
  master: "{master}"
  config:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 600m
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a PATH whose Python has no packages."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place / "venv", symlinks=True)
    return f"{place}/venv/bin:/usr/bin:/bin"


@pytest.fixture
def cluster(tmp_path, bare):
    """Yield a cluster whose workers find the Python without packages."""
    (tmp_path / "cluster").mkdir()
    with running_cluster(tmp_path / "cluster", path=bare) as running:
        yield running


def exported(directory, kind):
    """Return the numbers of the records in the files of *kind*, in order."""
    place = directory / kind / "logs"
    if not place.is_dir():
        return []
    files = [str(path) for path in place.iterdir() if path.is_file() and path.name[0] not in "._"]
    rows = (
        ds.dataset(files, format="json" if kind == "files" else "parquet").to_table(columns=["body"]) if files else None
    )
    return [] if rows is None else sorted(int(body["string_value"].split()[1]) for body in rows["body"].to_pylist())


def test_a_pipeline_survives_the_loss_of_a_worker(cluster, tmp_path):
    """Tasks run on both workers. After the loss of one, the rest runs on the other. Each record is exported once."""
    port = free_port()
    file = tmp_path / "pipeline.yaml"
    file.write_text(NODES.format(port=port, directory=tmp_path, master=cluster.url))
    with Run(tmp_path, file) as run:
        run.post(port, request(*range(10)))
        for worker in cluster.workers:
            worker.await_line("Asked to launch executor")
        run.until(lambda: exported(tmp_path, "parquet") == exported(tmp_path, "files") == list(range(10)), 240)
        cluster.workers[0].stop()
        run.post(port, request(*range(10, 20)))
        run.until(lambda: exported(tmp_path, "parquet") == exported(tmp_path, "files") == list(range(20)), 240)
        pid = run.children()["ingest"]["pid"]

        # Another cluster would do as well: the queries continue from their checkpoints, and the port stays open.
        file.write_text(NODES.format(port=port, directory=tmp_path, master="local[2]"))
        assert run.reload() == "reloaded: spark changed"
        run.post(port, request(*range(20, 30)))
        run.until(lambda: exported(tmp_path, "parquet") == exported(tmp_path, "files") == list(range(30)), 240)
        assert run.children()["ingest"]["pid"] == pid
        run.stop(120)


def test_executors_import_from_the_packaged_archive(cluster, bare, tmp_path):
    """Their own Python has no packages: without the archive, tasks fail there."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    archive = tmp_path / "quiver-python.tar.gz"
    command = [sys.executable, "-m", "quiver.cli.main", "spark", "package", "-o", str(archive)]
    subprocess.run(command, check=True, capture_output=True)
    empty = [shutil.which(name, path=bare), "-c", "import importlib.util as u; print(u.find_spec('quiver'))"]
    assert subprocess.run(empty, env={}, capture_output=True, text=True, check=True).stdout == "None\n"
    port = free_port()
    text = NODES.format(port=port, directory=tmp_path, master=cluster.url) + f"  python_archive: {archive}\n"
    (tmp_path / "pipeline.yaml").write_text(text)
    with Run(tmp_path, tmp_path / "pipeline.yaml") as run:
        run.post(port, request(*range(10)))
        run.until(lambda: exported(tmp_path, "parquet") == exported(tmp_path, "files") == list(range(10)), 240)
        run.stop(120)
    unpacked = list((tmp_path / "cluster").glob("worker-*/app-*/*/quiver-python/quiver/__init__.py"))
    assert len(unpacked) == 2
