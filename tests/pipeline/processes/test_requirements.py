"""`quiver run --check` reports what this machine lacks for a valid file."""

import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ports import free_port
from quiver.cli import main as entry
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.plugins import PLUGINS
from quiver.pipeline.processes import requirements
from quiver.pipeline.processes.requirements import is_running, unmet_requirements
from quiver.pipeline.processes.run import RUN_LOCK
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES

FORWARD = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [buffer]}}}}
    config:
      listening_addr: "{address}"
      {more}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [out]}}}}
    config: {{path: "{path}"}}
  out:
    kind: exporter
    plugin_urn: "{urn}"
    config: {exporter}
metrics: {{listen: "{metrics}"}}
"""


@pytest.fixture
def text(tmp_path):
    """Return a function that fills the file; its defaults can run here."""

    def fill(**values):
        known = {
            "address": f"127.0.0.1:{free_port()}",
            "metrics": f"127.0.0.1:{free_port()}",
            "more": "",
            "path": tmp_path / "buffer",
            "urn": "urn:otel:otlp:exporter",
            "exporter": '{grpc_endpoint: "http://127.0.0.1:1"}',
        }
        return FORWARD.format(**(known | values))

    return fill


@pytest.fixture
def unmet(tmp_path):
    def find(text, cores=None):
        pipeline, _ = load_pipeline(text, source="p.yaml", values={})
        return unmet_requirements(pipeline, cores=cores, run_dir=tmp_path / "run")

    return find


def test_nothing_is_missing_for_a_pipeline_that_runs(text, unmet, tmp_path):
    assert unmet(text()) == []
    assert list(tmp_path.iterdir()) == []


def test_ports_in_use_are_reported(text, unmet):
    """Of receivers, of metrics, and of the metrics of each core."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = f"127.0.0.1:{port}"
        assert unmet(text(address=address)) == [f"otlp cannot listen on {address}: Address already in use"]
        assert unmet(text(metrics=address)) == [f"metrics cannot listen on {address}: Address already in use"]
        first = f"127.0.0.1:{port - 1}"
        assert f"metrics cannot listen on {address}: Address already in use" in unmet(text(metrics=first), cores=2)


def test_a_running_pipeline_has_its_ports(text, unmet, tmp_path):
    """While it runs, its file can be checked before SIGHUP."""
    (tmp_path / "run").mkdir()
    lock = hold(REAL_FILES, str(tmp_path / "run" / RUN_LOCK), owner="quiver run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        value = text(address=f"127.0.0.1:{taken.getsockname()[1]}")
        assert is_running(tmp_path / "run")
        assert unmet(value) == []
        lock.release()
        assert len(unmet(value)) == 1


def test_unreadable_files_are_reported(text, unmet, tmp_path):
    """Certificates and tokens, with the key that names them."""
    found = unmet(text(more=f"tls: {{cert_file: {tmp_path}/c.pem, key_file: {tmp_path}/k.pem}}"))
    assert found == [
        f"otlp: tls.{key}: {tmp_path}/{name} cannot be read: No such file or directory"
        for key, name in (("cert_file", "c.pem"), ("key_file", "k.pem"))
    ]
    assert "auth.bearer.file" in unmet(text(more=f"auth: {{bearer: {{file: {tmp_path}/t}}}}"))[0]


def test_a_directory_below_a_file_is_reported(text, unmet, tmp_path):
    (tmp_path / "file").write_text("")
    assert f"buffer: {tmp_path}/file is not a directory" in unmet(text(path=tmp_path / "file" / "buffer"))


def test_missing_extras_and_java_are_reported(text, unmet, monkeypatch, tmp_path):
    """By the names to install; the file is still valid."""
    monkeypatch.setattr(
        requirements, "_is_installed", lambda name: name not in {"pyspark", "deltalake", "prometheus_client"}
    )
    monkeypatch.setenv("QUIVER_JAVA", str(tmp_path / "nowhere"))
    value = text(urn="urn:quiver:delta:exporter", exporter=f"{{path: {tmp_path}/delta}}")
    found = unmet(value)

    assert [one for one in found if one.startswith("the extra")] == [
        f'the extra {extra} is missing; run: pip install "arrow-quiver[{extra}]"'
        for extra in ("delta", "metrics", "spark")
    ]
    assert any("Java" in one or "java" in one for one in found)


def test_extras_of_plugins():
    """As the pages of the plugins say."""
    wanted = {
        "urn:quiver:qwp:receiver": {"otlp", "qwp"},
        "urn:otel:otlp:exporter": {"otlp"},
        "urn:quiver:iceberg:exporter": {"otlp", "spark", "iceberg"},
        "urn:quiver:questdb:exporter": {"otlp", "spark", "qwp"},
        "urn:quiver:store:receiver": set(),
        "urn:otap:processor:persistence": set(),
    }
    assert {urn: requirements._extras(PLUGINS[urn]) for urn in wanted} == wanted


def test_check_exits_with_three_for_a_valid_file(text, tmp_path):
    """Two is for an invalid one; JSON has the reasons, too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "p.yaml").write_text(text(address=f"127.0.0.1:{taken.getsockname()[1]}"))
        result = CliRunner().invoke(entry.build_app(), ["run", str(tmp_path / "p.yaml"), "--check", "--json"])
    assert result.exit_code == 3
    (reason,) = json.loads(result.stdout)["unmet"]
    assert f"This machine cannot run it: {reason}" in result.stderr
    (tmp_path / "p.yaml").write_text("nodes: {}\n")
    assert CliRunner().invoke(entry.build_app(), ["run", str(tmp_path / "p.yaml"), "--check"]).exit_code == 2


UNITS = ("B", "KiB", "MiB", "GiB", "bytes", "ms", "s", "min", "h", "days")


def quantities(value, key=""):
    """Yield texts that are a number and a unit, with the key that has them."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from quantities(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from quantities(one, key)
    elif isinstance(value, str) and key not in {"says", "sends", "does", "survives"}:
        words = value.replace(",", " ").split()
        yield from (f"{key}: {value}" for number, unit in pairwise(words) if number[0].isdigit() and unit in UNITS)


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[3] / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_json_has_numbers(file):
    """Sizes in bytes and times in seconds, without units; sentences are for people."""
    result = CliRunner().invoke(entry.build_app(), ["run", str(file), "--check", "--json"])
    if result.exit_code == 2:  # a processor of another package, which is not installed here
        pytest.skip(result.stderr)
    found = json.loads(result.stdout)
    assert list(quantities(found)) == []
    assert all(isinstance(buffer["seals_at_bytes"], int) for buffer in found["buffers"])
