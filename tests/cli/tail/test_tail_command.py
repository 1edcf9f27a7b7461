"""`quiver tail`: rows of live stores, conditions, and text that a terminal must not interpret."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import OTLP_SCHEMA
from quiver.cli.tail.conditions import holds_all, parse_condition
from quiver.cli.tail.rows import as_line, plain_rows, printable
from quiver.errors import UsageError
from quiver.otap import view_schema

LOGS = view_schema("logs").names


def otlp(*texts, severity=9, service="shop"):
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.add(key="service.name").value.string_value = service
    scope = group.scope_logs.add()
    for number, text in enumerate(texts):
        record = scope.log_records.add(time_unix_nano=1_700_000_000_000_000_000 + number, severity_number=severity)
        record.body.string_value = text
        record.attributes.add(key="http.status").value.int_value = 500 + number
    return quiver.Bundle({60: pa.record_batch([pa.array([request.SerializeToString()])], schema=OTLP_SCHEMA)})


def rows_of(call, *arguments):
    result = call("tail", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


@pytest.fixture
def logs_dir(tmp_path):
    with quiver.open(tmp_path / "buffer", background=False) as store:
        store.ingest(otlp("started", "ready"))
        store.ingest(otlp("it failed", severity=17, service="cart"))
    return tmp_path / "buffer"


def test_rows_of_a_view_have_plain_values(logs_dir, call):
    rows = rows_of(call, logs_dir, "--view", "logs", "--from", "log", "-n", 3)
    assert [row["body"] for row in rows] == ["started", "ready", "it failed"]
    assert rows[1]["attributes"] == {"http.status": 501}
    assert rows[2]["resource_attributes"] == {"service.name": "cart"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("severity_number >= 17", ["it failed"]),
        ("severity_number<17", ["started", "ready"]),
        ("body ~ FAIL", ["it failed"]),
        ("body !~ fail", ["started", "ready"]),
        ("body = 'started'", ["started"]),
        ("http.status > 500", ["ready"]),
        ("attributes.http.status == 500", ["started", "it failed"]),
        ("service.name != shop", ["it failed"]),
        ("resource_attributes.service.name=shop", ["started", "ready"]),
        ("missing.key = 1", []),
        ("trace_id = abc", []),
    ],
)
def test_conditions_select_rows(logs_dir, condition, expected):
    """A row without the value fulfills no condition on it."""
    rows = [
        row for _, bundle in quiver.read(logs_dir).bundles() for row in plain_rows(quiver.otap.view(bundle, "logs"))
    ]
    assert [row["body"] for row in rows if holds_all(row, [parse_condition(condition, LOGS)])] == expected


def test_several_conditions_must_all_hold(logs_dir, call):
    where = ["--where", "severity_number < 17", "--where", "body ~ read", "--columns", "body"]
    assert rows_of(call, logs_dir, "--view", "logs", "--from", "log", "-n", 1, *where) == [{"body": "ready"}]


def test_numbers_are_compared_as_numbers():
    """A text in the place of a number is never smaller or larger."""
    assert holds_all({"n": 10}, [parse_condition("n > 9", ["n"])])
    assert holds_all({"n": 1.5}, [parse_condition("n = 1.5", ["n"])])
    assert not holds_all({"n": 10}, [parse_condition("n > x", ["n"])])
    assert holds_all({"n": 10}, [parse_condition("n != x", ["n"])])
    assert holds_all({"is": True}, [parse_condition("is = TRUE", ["is"])])


@pytest.mark.parametrize("text", ["", "body", "= 3", "body like x", "1x = 2"])
def test_a_text_that_is_no_condition_is_refused(text):
    with pytest.raises(UsageError, match="--where"):
        parse_condition(text, LOGS)


def test_wrong_use_is_refused(logs_dir, call):
    for arguments in (
        [],
        ["--view", "logs", "--slot", "logs"],
        ["--view", "logz"],
        ["--view", "logs", "--from", "start"],
    ):
        assert call("tail", logs_dir, *arguments).exit_code == 2
    with pytest.raises(UsageError, match="there is no column x"):
        parse_condition("x = 1", ["n"])


def test_control_characters_are_escaped():
    """A log record must not move the cursor, change colors or forge a line."""
    assert printable("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    line = as_line({"time": "t", "severity_text": "INFO", "body": "x\r\ny", "attributes": {"k": "\x07"}})
    assert line == "t  INFO  x\\r\\ny  k=\\x07"


def test_a_directory_without_a_store_is_refused(tmp_path, call):
    assert call("tail", tmp_path, "--view", "logs").exit_code == 2


def test_live_rows_are_printed_as_they_are_ingested(logs_dir):
    """From another process, without those before it started."""
    argv = [
        sys.executable,
        "-u",
        "-m",
        "quiver",
        "tail",
        str(logs_dir),
        "--view",
        "logs",
        "--where",
        "body ~ live",
        "-n",
        "3",
    ]
    with (
        quiver.open(logs_dir, background=False) as store,
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process,
    ):
        number = 0
        while process.poll() is None:  # until it has started, rows are before its start
            store.ingest(otlp(f"live {number}", f"other {number}"))
            number += 1
            store.maintain()
        found = process.stdout.read().splitlines()
    assert process.returncode == 0
    numbers = [int(line.partition("live ")[2].split()[0]) for line in found]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_rows_of_a_store_without_a_log_are_printed_when_they_are_sealed(tmp_path, call):
    """It keeps none of them in a file before that."""
    with quiver.open(tmp_path / "buffer", quiver.Settings(durability="segment_only"), background=False) as store:
        store.ingest(otlp("sealed"), durable=True)
        store.ingest(otlp("open"))
        store.seal()
    rows = rows_of(call, tmp_path / "buffer", "--view", "logs", "--from", "log", "-n", 2)
    assert [row["body"] for row in rows] == ["sealed", "open"]


def test_live_rows_of_a_store_without_a_log(tmp_path):
    """From another process, without those before it started."""
    settings = quiver.Settings(durability="segment_only")
    argv = [sys.executable, "-u", "-m", "quiver", "tail", str(tmp_path / "b"), "--view", "logs", "-n", "2"]
    with quiver.open(tmp_path / "b", settings, background=False) as store:
        store.ingest(otlp("before"), durable=True)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            number = 0
            while process.poll() is None:
                store.ingest(otlp(f"live {number}"), durable=True)
                number += 1
            found = process.stdout.read().splitlines()
    assert process.returncode == 0
    numbers = [int(line.partition("live ")[2].split()[0]) for line in found]
    assert numbers == [numbers[0], numbers[0] + 1]
