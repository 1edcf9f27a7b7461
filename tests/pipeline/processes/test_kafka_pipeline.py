"""Kafka as a destination and as a source, on a real broker. Run by `make test-kafka`."""

import os
import subprocess

import pytest
from run_process import EXAMPLES, Run, request
from spark_packages import from_maven_central, is_delivered

import quiver
from kafka_broker import KAFKA, kafka_broker
from ports import free_port
from quiver.otap import from_otlp, view

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(900)]

CONNECTOR = "4.0.0"
"""The version in tests/kafka_build/connector.xml. The pinned PySpark can write with it; streams are read with 4.0."""

PYTHON = KAFKA.parent / "spark-4.0" / "bin" / "python"


@pytest.fixture
def broker(tmp_path):
    (tmp_path / "kafka").mkdir()
    with kafka_broker(tmp_path / "kafka") as running:
        yield running


def import_from_kafka(broker, tmp_path):
    """Run the example that writes a store from Kafka, with jars of `spark-defaults.conf`, and return its last line."""
    (tmp_path / "conf").mkdir(exist_ok=True)
    jars = ",".join(map(str, (KAFKA / "connector").glob("*.jar")))
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.jars {jars}\n")
    argv = [str(PYTHON), str(EXAMPLES / "kafka_spark.py"), str(tmp_path / "buffer"), broker.address]
    argv += [str(tmp_path / "from-kafka"), str(tmp_path / "checkpoint"), ""]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def rows(bundles):
    """Return the distinct log records in *bundles*, with all columns."""
    return sorted({repr(sorted(row.items())) for bundle in bundles for row in view(bundle, "logs").to_pylist()})


def test_records_reach_kafka_and_return_although_the_broker_is_killed(broker, tmp_path):
    """In Kafka each record is at least once. From there, each message is stored once, with the columns it had."""
    port = free_port()
    text = (EXAMPLES / "kafka-export.yaml").read_text()
    # Without a broker, a batch fails after seconds instead of two minutes.
    limits = {"max.block.ms": 3000, "request.timeout.ms": 2000, "delivery.timeout.ms": 4000}
    lines = "".join(f"        kafka.{key}: {value}\n" for key, value in limits.items())
    text = text.replace("        topic:", f"{lines}        topic:")
    text += f"  config:\n{from_maven_central(tmp_path)}"
    (tmp_path / "pipeline.yaml").write_text(text)
    values = {
        "brokers": broker.address,
        "connector": CONNECTOR,
        "directory": str(tmp_path),
        "http_addr": f"127.0.0.1:{port}",
    }
    sent = [request(*range(first, first + 10), **{"service.name": "shop"}) for first in (0, 10, 20)]
    with Run(tmp_path, tmp_path / "pipeline.yaml", values) as run:
        run.post(port, sent[0])
        run.until(lambda: any((tmp_path / "kafka" / "data").glob("telemetry-logs-*")), 240)
        run.until(lambda: is_delivered(tmp_path / "buffer"), 120)
        broker.kill()
        run.post(port, sent[1])
        run.until(lambda: "kafka failed" in run.logs(), 240)
        broker.start()
        run.post(port, sent[2])
        run.until(lambda: is_delivered(tmp_path / "buffer"), 240)
        assert "remain" not in run.stop(200)

    first = import_from_kafka(broker, tmp_path)
    with quiver.read(tmp_path / "from-kafka") as reader:
        assert rows(bundle for _, bundle in reader.bundles()) == rows(from_otlp(data, "logs") for data in sent)
    # Everything is imported: a second run adds nothing.
    assert import_from_kafka(broker, tmp_path) == first
