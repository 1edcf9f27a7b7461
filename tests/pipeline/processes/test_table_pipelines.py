"""The pipelines of docs/howto/tables.md, run as they are written there."""

import re
from pathlib import Path

import grpc
import pytest
from deltalake import DeltaTable
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyiceberg.catalog import load_catalog
from run_process import Run, request
from spark_packages import is_delivered

from ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "tables.md"
FILES = re.findall(r"^```yaml\n(nodes:\n.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def delta(directory):
    return DeltaTable(directory / "lake" / "logs").to_pyarrow_table(columns=["time_day", "body"])


def iceberg(directory):
    catalog = load_catalog("quiver", type="sql", uri=f"sqlite:///{directory}/lake/_catalog.db")
    return catalog.load_table("telemetry.logs").scan(row_filter="severity_number >= 9").to_arrow()


@pytest.mark.parametrize(("file", "read"), list(zip(FILES, [delta, iceberg], strict=True)), ids=["delta", "iceberg"])
def test_a_pipeline_of_the_page_writes_each_record_once(tmp_path, monkeypatch, file, read):
    """With its partitions, over gRPC; the file of Iceberg with a directory instead of a bucket."""
    monkeypatch.chdir(tmp_path)  # its paths are relative
    port = free_port()
    text = file.replace("4317", str(port))
    if "s3://" in text:
        text = re.sub(r" +(options|catalog|catalog_options): .*\n", "", text).replace("s3://bucket/lake", "lake/")
    (tmp_path / "pipeline.yaml").write_text(text)
    with Run(tmp_path, tmp_path / "pipeline.yaml") as run:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            export = logs_service_pb2_grpc.LogsServiceStub(channel).Export
            for first in (0, 10):
                message = ExportLogsServiceRequest.FromString(request(*range(first, first + 10)))
                export(message, timeout=20, wait_for_ready=True)
        run.until(lambda: is_delivered(tmp_path / "buffer"), 120)
        run.stop(60)
    found = read(tmp_path)
    numbers = sorted(int(body["string_value"].split()[1]) for body in found["body"].to_pylist())
    assert numbers == list(range(20))
