"""`quiver dead-letters`, and the retries that `quiver subscribers` shows."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle, BundleRef
from quiver.delivery.dead_letters import DeadLetters
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.store.subscribers.retry_set import RetrySet

EXAMPLE = Path(__file__).parents[2] / "examples" / "otlp-forward.yaml"


def bundle_of(data: bytes) -> Bundle:
    return Bundle({60: pa.record_batch([pa.array([data])], schema=OTLP_SCHEMA)})


@pytest.fixture
def directory(tmp_path):
    """A store whose exporter has three dead letters and two bundles in its retry set."""
    root = str(tmp_path / "buffer")
    with quiver.open(root) as store:
        store.register("out", start="earliest")
        store.ingest(bundle_of(b""))
    with DeadLetters(root, "out", background=False) as dead_letters:
        for index in range(3):
            dead_letters.add(BundleRef(2, index), bundle_of(b"x"), reason=f"HTTP 40{index}: [no]", attempts=index + 1)
    with RetrySet.open(REAL_FILES, root, "out") as retries:
        for _ in range(3):
            retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="UNAVAILABLE: down")
        retries.failed(BundleRef(0, 1), delay_s=7200.0, reason="later")
    return root


def bundles_of(result):
    return [one["bundle"] for one in json.loads(result.output)]


def test_dead_letters_are_listed_with_their_reasons(directory, call):
    shown = call("dead-letters", "list", directory)
    assert shown.exit_code == 0
    assert "HTTP 401: [no]" in shown.output
    listed = json.loads(call("dead-letters", "list", directory, "out", "--json").output)
    assert [(one["bundle"], one["attempts"], one["slots"]) for one in listed] == [
        (f"2:{index}", index + 1, {"otlp_logs": 1}) for index in range(3)
    ]
    assert "none" in call("dead-letters", "list", directory, "other").output


def test_show_prints_the_content(directory, call):
    """Content that cannot be decoded is reported as such."""
    (shown,) = json.loads(call("dead-letters", "show", directory, "out", "2:1", "--json").output)
    assert (shown["bundle"], shown["reason"]) == ("2:1", "HTTP 401: [no]")
    assert "cannot be decoded" in shown["content"]["logs"]
    shown = call("dead-letters", "show", directory, "out", "2:1").output
    assert "HTTP 401" in shown
    assert re.search(r"given_up_at +20\d\d-\d\d-\d\dT", shown), "times are human-readable"
    assert "other has no dead letters" in call("dead-letters", "show", directory, "other").output


def test_drop_removes_one_then_all(directory, call):
    assert json.loads(call("dead-letters", "drop", directory, "out", "2:1", "--json").output) == {"dropped": 1}
    assert bundles_of(call("dead-letters", "list", directory, "--json")) == ["2:0", "2:2"]
    assert "2 dead letters dropped" in call("dead-letters", "drop", directory, "out").output
    assert bundles_of(call("dead-letters", "list", directory, "--json")) == []


def test_replay_keeps_dead_letters_when_the_destination_is_unreachable(directory, call):
    replayed = call("dead-letters", "replay", directory, "out", "2:0", "--to", "http://127.0.0.1:1", "--json")
    assert replayed.exit_code == 1
    (one,) = json.loads(replayed.output)
    assert (one["bundle"], one["delivered"]) == ("2:0", False)
    assert "UNAVAILABLE" in one["why_not"]
    assert len(bundles_of(call("dead-letters", "list", directory, "--json"))) == 3


@pytest.mark.parametrize("way", ["--to", "--pipeline"])
def test_replay_delivers_and_drops(tmp_path, call, way):
    """To an endpoint, or as the pipeline file configures the exporter."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "late"
    root, far = str(tmp_path / "buffer"), tmp_path / "far"
    quiver.open(root).close()
    with DeadLetters(root, "otlp_exporter", background=False) as dead_letters:
        dead_letters.add(BundleRef(2, 0), bundle_of(request.SerializeToString()), reason="HTTP 403")
    settings = OtlpSettings(listening_addr="127.0.0.1:0")
    with quiver.open(far) as store, OtlpGrpcReceiver(store, settings) as receiver:
        endpoint = f"http://127.0.0.1:{receiver.port}"
        where = [endpoint] if way == "--to" else [str(EXAMPLE), "--set", f"endpoint={endpoint}"]
        replayed = call("dead-letters", "replay", root, "otlp_exporter", way, *where)
    assert "1 of 1 dead letters delivered" in replayed.output
    with quiver.read(far) as reader:
        arrived = [data for _, bundle in reader.bundles() for data in bundle["otlp_logs"].column(0).to_pylist()]
    assert arrived == [request.SerializeToString()]
    assert bundles_of(call("dead-letters", "list", root, "--json")) == []


@pytest.mark.parametrize(
    ("action", "arguments", "message"),
    [
        ("drop", [], "Missing argument 'EXPORTER'"),
        ("drop", ["out", "2:9"], "no dead letter 2:9"),
        ("show", ["out", "two"], "SEGMENT:INDEX"),
        ("replay", ["out"], "give either --pipeline FILE"),
        ("list", ["a/b"], "letters, digits"),
    ],
)
def test_usage_errors_exit_with_2(directory, call, action, arguments, message):
    result = call("dead-letters", action, directory, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("former", "today"),
    [
        (["DIR", "--json"], ["list", "DIR", "--json"]),
        (["--json", "DIR"], ["list", "DIR", "--json"]),
        (["DIR", "list", "out", "--json"], ["list", "DIR", "out", "--json"]),
        (["DIR", "show", "out", "2:1", "--json"], ["show", "DIR", "out", "2:1", "--json"]),
        (["--to", "http://127.0.0.1:1", "DIR", "--json", "replay", "out"],
         ["replay", "DIR", "out", "--to", "http://127.0.0.1:1", "--json"]),
        (["DIR", "drop", "out"], ["drop", "DIR", "out"]),
    ],
)  # fmt: skip
def test_the_former_order_of_arguments_still_works(directory, call, tmp_path, former, today):
    """For one release, with a deprecation line on stderr."""
    copy = shutil.copytree(directory, tmp_path / "copied")
    before = call("dead-letters", *[directory if word == "DIR" else word for word in former])
    after = call("dead-letters", *[copy if word == "DIR" else word for word in today])
    assert before.exit_code == after.exit_code
    assert before.stdout == after.stdout.replace(str(copy), directory)
    assert "deprecated: name the action before the directory" in before.stderr
    assert f"quiver dead-letters {today[0]} {directory} …" in before.stderr
    assert "deprecated" not in after.stderr


def test_subscribers_shows_attempts_and_the_next_retry(directory, call):
    """The number of bundles to retry, the maximum of their attempts, the next retry, the number of dead letters."""
    (one,) = json.loads(call("subscribers", directory, "--json").output)
    assert (one["subscriber"], one["retrying"], one["attempts"], one["dead_letters"]) == ("out", 2, 3, 3)
    assert 3000 < one["next_retry_s"] <= 3600
    assert one["last_failure"] == "UNAVAILABLE: down"
    assert "in 59 m" in call("subscribers", directory).output


def test_subscribers_shows_a_halted_exporter(directory, call):
    """No retry is due before the exporter is started again, even if other bundles are in the retry set."""
    with RetrySet.open(REAL_FILES, str(directory), "out") as retries:
        retries.failed(BundleRef(0, 4), delay_s=0.0, reason="HTTP 400: no", is_halted=True)
    (one,) = json.loads(call("subscribers", directory, "--json").output)
    assert (one["halted"], one["next_retry_s"], one["last_failure"]) == (True, None, "HTTP 400: no")
    assert "halted" in call("subscribers", directory).output


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["segment", "log"])
def test_damaged_dead_letters_are_reported(directory, call, where):
    """By every command that reads them, with exit code 1, until they are repaired; then the copy is named."""
    store = Path(directory) / "dead-letter" / "out"
    if where == "segment":
        (damaged,) = store.glob("segments/*.qseg")
    else:
        with DeadLetters(directory, "out", background=False) as dead_letters:
            dead_letters.add(BundleRef(3, 0), bundle_of(b"late"), reason="HTTP 410")
            damaged = Path(shutil.copytree(store, store.with_name("copy"))) / "wal" / "quiver.wal"
        shutil.rmtree(store)
        store.with_name("copy").rename(store)
        damaged = store / "wal" / "quiver.wal"
        damaged.write_bytes(damaged.read_bytes().rstrip(b"\0"))
    flip_a_byte(damaged)
    listed = call("dead-letters", "list", directory)
    assert (listed.exit_code, str(damaged) in listed.output.replace("\n", "")) == (1, True)
    assert "none" not in listed.output
    reported = [one for one in json.loads(call("dead-letters", "list", directory, "--json").output) if "damaged" in one]
    assert [(one["exporter"], one["path"]) for one in reported] == [("out", str(damaged))]
    assert call("dead-letters", "show", directory, "out").exit_code == 1

    verified = json.loads(call("verify", directory, "--json").output)
    assert verified["damaged"]
    assert str(damaged) in [one["path"] for one in verified["findings"]]
    assert call("repair", directory).exit_code == 0
    assert call("verify", directory).exit_code == 0
    listed = call("dead-letters", "list", directory)
    assert listed.exit_code == 0
    assert f"quarantined as damaged: {store}/quarantine/" in listed.output


def test_all_dead_letters_are_listed_when_their_progress_file_is_damaged(directory, call):
    """The file records which ones were dropped, so without it none is hidden."""
    call("dead-letters", "drop", directory, "out", "2:1")
    flip_a_byte(Path(directory) / "dead-letter" / "out" / "quiver.sub.letters")
    listed = call("dead-letters", "list", directory, "--json")
    assert listed.exit_code == 1
    assert sum("bundle" in one for one in json.loads(listed.output)) == 3
