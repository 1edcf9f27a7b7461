"""Complete pipelines: those of the documents, in memory, on several cores, and changed while they run."""

import contextlib
import json
import os
import signal
import urllib.request

import grpc
import pyarrow.parquet as pq
import pytest
from run_process import EXAMPLES, Run, bodies, request, with_processor

import quiver
from ports import free_ports
from quiver.otap import view
from quiver.pipeline.model import memory_directory
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings

LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


@contextlib.contextmanager
def otlp_server(directory, port, receiver=OtlpGrpcReceiver):
    """Return a receiver with a store, as the endpoint of an exporter."""
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{port}", workers=2)
    with quiver.open(directory) as store, receiver(store, settings):
        yield


def call(port, data):
    """Send a request over gRPC."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary(LOGS)(data, timeout=20)


def records(*numbers):
    return sorted(f"record {number}" for number in numbers)


def test_the_file_of_the_architecture_document_runs(tmp_path):
    """Unchanged except for ports and the path: both receivers accept data, and each exporter sends all of it."""
    otlp_in, otap_in, otap_out, otlp_out = free_ports(4)
    text = (EXAMPLES / "otap-dataflow.yaml").read_text()
    for old, new in {
        "127.0.0.1:4317": f"127.0.0.1:{otlp_in}",
        "127.0.0.1:4318": f"127.0.0.1:{otap_in}",
        "127.0.0.1:14317": f"127.0.0.1:{otlp_out}",
        "}}:1235": f"}}}}:{otap_out}",
        "./quiver_data": str(tmp_path / "buffer"),
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)

    with (
        otlp_server(tmp_path / "otap", otap_out, OtapGrpcReceiver),
        otlp_server(tmp_path / "otlp", otlp_out),
        Run(tmp_path, file, {"backend_hostname": "127.0.0.1"}) as run,
    ):
        for number in range(3):
            call(otlp_in, request(number))
        call(otap_in, request(3))
        for directory in ("otap", "otlp"):
            run.until(lambda where=tmp_path / directory: bodies(where) == records(0, 1, 2, 3))
        output = run.stop()

    assert "Each of the 2 exporters receives everything" in output
    assert "remain" not in output
    with quiver.open(tmp_path / "buffer") as store:
        assert [store.register(name).lag().pending_bundles for name in ("otap_exporter", "otlp_exporter")] == [0, 0]


@pytest.mark.slow
def test_the_file_of_the_newer_structure_runs(tmp_path):
    """Undelivered data are reported at the end, and sent by the next run."""
    http_in, grpc_in, out = free_ports(3)
    values = {
        "DIRECTORY": tmp_path,
        "GRPC_ADDR": f"127.0.0.1:{grpc_in}",
        "HTTP_ADDR": f"127.0.0.1:{http_in}",
        "ENDPOINT": f"http://127.0.0.1:{out}",
        "FIRST_RETRY": "50ms",
    }
    with Run(tmp_path, EXAMPLES / "otel-dataflow-v1.yaml", values, "--drain", "200ms") as run:
        run.post(http_in, request(0))
        run.post(http_in, request(1))
        output = run.stop()
    assert f"exporter: 2 bundles left in {tmp_path}/buffer, for the next start" in output

    with otlp_server(tmp_path / "far", out), Run(tmp_path, EXAMPLES / "otel-dataflow-v1.yaml", values) as run:
        run.until(lambda: bodies(tmp_path / "far") == records(0, 1))


@pytest.mark.slow
def test_a_pipeline_in_memory_delivers_while_it_runs(tmp_path):
    """Undelivered data are reported at the end, and no file is left."""
    http_in, grpc_in, out = free_ports(3)
    values = {
        "grpc_addr": f"127.0.0.1:{grpc_in}",
        "http_addr": f"127.0.0.1:{http_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "first_retry": "50ms",
    }
    memory = memory_directory(tmp_path / "run")
    with Run(tmp_path, EXAMPLES / "in-memory.yaml", values, "--drain", "200ms") as run:
        with otlp_server(tmp_path / "far", out):
            run.post(http_in, request(0))
            run.until(lambda: bodies(tmp_path / "far") == records(0))
        assert memory.is_dir()
        run.post(http_in, request(1))
        output = run.stop()

    assert "There is no persistence node: up to 256 MiB wait in memory" in output
    assert "otlp_exporter: 1 bundle left in" in output
    assert "which is in memory, and are lost" in output
    assert not memory.exists()


RELOADED = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [persistence]}}}}
    config: {{protocols: {{http: {{listening_addr: "127.0.0.1:{port}"}}}}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [{destinations}]}}}}
    config: {{path: "{directory}/buffer", segment: {{max_open_duration: 100ms}}}}
"""

REMOTE = """\
  {name}:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {{grpc_endpoint: "http://127.0.0.1:{port}", initial_retry_interval: 50ms}}
"""


def test_a_changed_file_is_applied_while_the_pipeline_runs(tmp_path):
    """
    Another endpoint and another exporter; an invalid change, or one that needs a restart, is reported and not
    applied.
    """
    port, other_port, first, second = free_ports(4)
    file = tmp_path / "p.yaml"

    def write(*exporters, port=port):
        text = RELOADED.format(port=port, directory=tmp_path, destinations=", ".join(name for name, _ in exporters))
        file.write_text(text + "".join(REMOTE.format(name=name, port=there) for name, there in exporters))

    write(("one", first))
    with otlp_server(tmp_path / "far", second), Run(tmp_path, file) as run:
        pid = run.children()["ingest"]["pid"]
        run.post(port, request(0))
        write(("one", first), ("two", second))
        assert run.reload() == "reloaded: two comes"
        run.until(lambda: bodies(tmp_path / "far") == records(0))  # it receives the data that one has not sent

        write(("one", second), ("two", second))
        assert run.reload() == "reloaded: one changed"
        run.until(lambda: bodies(tmp_path / "far") == records(0, 0))

        file.write_text("nodes: []")
        assert "nodes must be a mapping" in run.reload()
        write(("one", second), port=other_port)
        assert run.reload() == "not reloaded, this needs a restart: receiver otlp: protocols changed"
        run.post(port, request(1))
        run.until(lambda: bodies(tmp_path / "far") == records(0, 0, 1, 1))
        assert run.children()["ingest"]["pid"] == pid


@pytest.mark.slow
def test_the_newest_data_is_sent_first_after_an_outage(tmp_path):
    """Also after the ingest process was killed during the outage; then the backlog follows, and nothing is lost."""
    port, out = free_ports(2)
    file = tmp_path / "p.yaml"
    text = RELOADED.format(port=port, directory=tmp_path, destinations="one") + REMOTE.format(name="one", port=out)
    file.write_text(f"{text.rstrip()[:-1]}, order: newest, max_in_flight: 1}}\n")
    with Run(tmp_path, file) as run:
        for number in range(20):
            run.post(port, request(number))
        os.kill(run.children()["ingest"]["pid"], signal.SIGKILL)
        run.until(lambda: "ingest died" in run.said)
        run.until(run.is_listening)
        with otlp_server(tmp_path / "far", out):
            run.until(lambda: len(set(bodies(tmp_path / "far"))) == 20)
    with quiver.read(tmp_path / "far") as reader:
        came = [view(bundle, "logs")["body"][0].as_py()["string_value"] for _, bundle in reader.bundles()]
    order = [int(body.removeprefix("record ")) for body in dict.fromkeys(came)]
    assert sorted(order) == list(range(20))
    # Some were tried during the outage and are due later, so the order is not exact.
    assert len([number for number in order[:8] if number >= 12]) >= 4, order


def test_pipelines_of_one_file_run_side_by_side(tmp_path):
    """
    Each delivers its own data, an outage of one destination does not concern the other, metrics name the buffers, and
    a killed ingest process loses nothing of either.
    """
    app_in, host_in, app_out, host_out, metrics = free_ports(5)
    values = {
        "directory": tmp_path,
        "app_addr": f"127.0.0.1:{app_in}",
        "host_addr": f"127.0.0.1:{host_in}",
        "app_endpoint": f"http://127.0.0.1:{app_out}",
        "host_endpoint": f"http://127.0.0.1:{host_out}",
        "metrics_addr": f"127.0.0.1:{metrics}",
        "first_retry": "50ms",
    }

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
            return answer.read().decode()

    with (
        otlp_server(tmp_path / "far", app_out),
        Run(tmp_path, EXAMPLES / "several-pipelines.yaml", values) as run,
    ):
        for number in range(3):
            run.post(app_in, request(number))
            run.post(host_in, request(10 + number))
        run.until(lambda: set(bodies(tmp_path / "far")) == set(records(0, 1, 2)))
        assert 'quiver_subscriber_lag_bundles{buffer="host_buffer",subscriber="host_exporter"}' in scrape()
        labels = 'buffer="app_buffer",outcome="stored",receiver="receiver",signal="logs"'
        assert f"quiver_receiver_requests_total{{{labels}}} 3.0" in scrape()
        os.kill(run.children()["ingest"]["pid"], signal.SIGKILL)
        with otlp_server(tmp_path / "far-host", host_out):
            run.until(lambda: set(bodies(tmp_path / "far-host")) == set(records(10, 11, 12)))
    assert set(bodies(tmp_path / "far")) == set(records(0, 1, 2))


@pytest.mark.slow
def test_several_cores_share_the_ports(tmp_path):
    """Each accepts requests, a killed one restarts, no confirmed data are lost, and all data are delivered."""
    http_in, grpc_in, out = free_ports(3)
    values = {
        "directory": tmp_path,
        "grpc_addr": f"127.0.0.1:{grpc_in}",
        "http_addr": f"127.0.0.1:{http_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "first_retry": "50ms",
    }
    with Run(tmp_path, EXAMPLES / "otlp-forward.yaml", values, "--cores", "2") as run:
        for number in range(40):
            run.post(http_in, request(number))
        for number in range(40, 50):
            call(grpc_in, request(number))
        per_core = [len(bodies(tmp_path / "buffer" / f"core_{core}")) for core in range(2)]
        os.kill(run.children()["ingest-1"]["pid"], signal.SIGKILL)
        run.until(lambda: "ingest-1 died" in run.said)
        with otlp_server(tmp_path / "far", out):
            run.until(lambda: set(bodies(tmp_path / "far")) == set(records(*range(50))))

    assert sum(per_core) == 50
    assert min(per_core) >= 5, per_core


@pytest.mark.slow
def test_fewer_cores_deliver_the_data_of_removed_ones(tmp_path):
    """The directory of a removed core is drained, and then deleted."""
    http_in, grpc_in, out = free_ports(3)
    values = {
        "directory": tmp_path,
        "grpc_addr": f"127.0.0.1:{grpc_in}",
        "http_addr": f"127.0.0.1:{http_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "first_retry": "50ms",
    }
    with Run(tmp_path, EXAMPLES / "otlp-forward.yaml", values, "--cores", "2", "--drain", "100ms") as run:
        for number in range(20):
            run.post(http_in, request(number))
    with (
        otlp_server(tmp_path / "far", out),
        Run(tmp_path, EXAMPLES / "otlp-forward.yaml", values, "--cores", "1") as run,
    ):
        run.until(lambda: set(bodies(tmp_path / "far")) == set(records(*range(20))))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_query_between_buffer_and_files_exports_once(tmp_path):
    """The example runs: selected rows are in files, once each, also after a kill of Spark."""
    (http_in,) = free_ports(1)
    values = {"directory": tmp_path, "http_addr": f"127.0.0.1:{http_in}", "open": "100ms", "trigger": "200ms"}

    def found():
        return sorted(
            line for path in (tmp_path / "errors").glob("*/*.jsonl") for line in path.read_text().splitlines()
        )

    with Run(tmp_path, EXAMPLES / "sql-processor.yaml", values) as run:
        run.post(http_in, request(0))
        run.post(http_in, request(1, severity=17))
        run.until(lambda: len(found()) == 1, 150)
        os.kill(run.children()["spark"]["pid"], signal.SIGKILL)
        run.post(http_in, request(2, severity=18))
        run.until(lambda: len(found()) == 2, 150)
        output = run.stop()

    assert ["record 1" in found()[0] or "record 1" in found()[1], len(found())] == [True, 2]
    assert "spark died (signal 9)" in output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_late_persistence_redacts_before_it_buffers(tmp_path):
    """The destination and the buffer after the processor contain only processed data."""
    http_in, out = free_ports(2)
    values = {
        "directory": tmp_path,
        "http_addr": f"127.0.0.1:{http_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "open": "100ms",
        "first_retry": "50ms",
    }
    with Run(tmp_path, EXAMPLES / "late-persistence.yaml", values) as run:
        run.post(http_in, request("1111-2222-3333-4444"))
        run.post(http_in, request(7))
        run.until(lambda: bodies(tmp_path / "buffer") == ["record ****", "record 7"], 150)
        with otlp_server(tmp_path / "far", out):
            run.until(lambda: bodies(tmp_path / "far") == ["record ****", "record 7"], 150)


LATE_FILES = """\
  late_files:
    kind: exporter
    plugin_urn: "urn:quiver:file:exporter"
    config: {path: "{{directory}}/files", trigger: 200ms}
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stop_drains_in_the_order_of_the_graph(tmp_path):
    """
    Nothing was sealed before the stop.

    Nevertheless, the exporters after the second buffer deliver everything: the one that sends, and the one on
    Spark.
    """
    http_in, out = free_ports(2)
    values = {
        "directory": tmp_path,
        "http_addr": f"127.0.0.1:{http_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "open": "1h",
    }
    text = (EXAMPLES / "late-persistence.yaml").read_text()
    text = text.replace("          - otlp_exporter\n", "          - otlp_exporter\n          - late_files\n")
    file = tmp_path / "p.yaml"
    file.write_text(text + LATE_FILES)
    with otlp_server(tmp_path / "far", out), Run(tmp_path, file, values, "--drain", "150s") as run:
        run.until(lambda: "ready: listens" in run.said, 150)
        for number in range(3):
            run.post(http_in, request(number))
        output = run.stop(200)

    assert bodies(tmp_path / "far") == records(0, 1, 2)
    lines = [line for path in (tmp_path / "files").glob("*/*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == 3
    assert "remain" not in output


def parquet_bodies(directory):
    """Return the bodies of all log records in the Parquet files below *directory*."""
    files = sorted((directory / "logs").glob("*.parquet"))
    return sorted(body["string_value"] for file in files for body in pq.read_table(file).column("body").to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_processor_of_another_package_runs(tmp_path):
    """The example runs: the rows of one tenant after the processor, all rows on the other route."""
    (http_in,) = free_ports(1)
    values = {"directory": tmp_path, "http_addr": f"127.0.0.1:{http_in}", "open": "100ms", "trigger": "200ms"}

    def found():
        files = (tmp_path / "tenant").glob("*/*.jsonl")
        return sorted(json.loads(line)["tenant"] for file in files for line in file.read_text().splitlines())

    site = with_processor(tmp_path / "site")
    with Run(tmp_path, EXAMPLES / "custom-processor.yaml", values, site=site) as run:
        run.post(http_in, request(0, 1, tenant="acme"))
        run.post(http_in, request(2, tenant="other"))
        run.until(lambda: found() == ["acme", "acme"], 150)
        run.until(lambda: parquet_bodies(tmp_path / "parquet") == records(0, 1, 2), 150)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_exporter_without_a_destination_does_not_block_another(tmp_path):
    """Files are complete during the outage, on two cores; then all data are delivered. Spark may be killed."""
    http_in, grpc_in, out = free_ports(3)
    values = {
        "directory": tmp_path,
        "http_addr": f"127.0.0.1:{http_in}",
        "grpc_addr": f"127.0.0.1:{grpc_in}",
        "endpoint": f"http://127.0.0.1:{out}",
        "first_retry": "50ms",
    }
    parquet = tmp_path / "parquet"
    with Run(tmp_path, EXAMPLES / "dual-exporters.yaml", values, "--cores", "2") as run:
        for number in range(10):
            run.post(http_in, request(number))
        run.until(lambda: parquet_bodies(parquet) == records(*range(10)), 150)
        os.kill(run.children()["spark"]["pid"], signal.SIGKILL)
        run.post(http_in, request(10))
        with otlp_server(tmp_path / "far", out):
            run.until(lambda: set(bodies(tmp_path / "far")) == set(records(*range(11))), 150)
        run.until(lambda: parquet_bodies(parquet) == records(*range(11)), 150)
        output = run.stop()

    assert "spark died (signal 9)" in output
    assert "remain" not in output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_changed_query_is_applied_while_the_pipeline_runs(tmp_path):
    """Only the Spark process restarts; it continues at its position."""
    (http_in,) = free_ports(1)
    values = {"directory": tmp_path, "http_addr": f"127.0.0.1:{http_in}", "open": "100ms", "trigger": "200ms"}
    file = tmp_path / "p.yaml"
    text = (EXAMPLES / "sql-processor.yaml").read_text()
    file.write_text(text)

    def found():
        files = (tmp_path / "errors").glob("*/*.jsonl")
        return sorted(json.loads(line)["body"] for file in files for line in file.read_text().splitlines())

    with Run(tmp_path, file, values) as run:
        ingest = run.children()["ingest"]["pid"]
        run.post(http_in, request(0))
        run.post(http_in, request(1, severity=17))
        run.until(lambda: found() == records(1), 150)
        file.write_text(text.replace("severity_number >= 17", "severity_number >= 9"))
        assert run.reload() == "reloaded: error_files changed"
        run.until(lambda: run.children()["spark"]["starts"] == 2, 150)
        run.post(http_in, request(2))
        run.until(lambda: found() == records(1, 2), 150)
        assert run.children()["ingest"]["pid"] == ingest
