"""`quiver dead-letters` and what `quiver subscribers` says of retries."""

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
from quiver.store.reading.retry_set import RetrySet

EXAMPLE = Path(__file__).parents[2] / "examples" / "otlp-forward.yaml"


def bundle_of(data: bytes) -> Bundle:
    return Bundle({60: pa.record_batch([pa.array([data])], schema=OTLP_SCHEMA)})


@pytest.fixture
def directory(tmp_path):
    """A store whose exporter gave three bundles up, and waits with two."""
    root = str(tmp_path / "buffer")
    with quiver.open(root) as store:
        store.register("out", start="earliest")
        store.ingest(bundle_of(b""))
    with DeadLetters(root, "out", background=False) as letters:
        for index in range(3):
            letters.add(BundleRef(2, index), bundle_of(b"x"), reason=f"HTTP 40{index}: [no]", attempts=index + 1)
    with RetrySet.open(REAL_FILES, root, "out") as retries:
        for _ in range(3):
            retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="UNAVAILABLE: down")
        retries.failed(BundleRef(0, 1), delay_s=7200.0, reason="later")
    return root


def bundles_of(result):
    return [one["bundle"] for one in json.loads(result.output)]


def test_they_are_listed_with_their_reasons(directory, call):
    """For people and for programs, of all exporters or one."""
    shown = call("dead-letters", directory)
    assert shown.exit_code == 0
    assert "HTTP 401: [no]" in shown.output
    listed = json.loads(call("dead-letters", directory, "list", "out", "--json").output)
    assert [(one["bundle"], one["attempts"], one["slots"]) for one in listed] == [
        (f"2:{index}", index + 1, {"otlp_logs": 1}) for index in range(3)
    ]
    assert "none" in call("dead-letters", directory, "list", "other").output


def test_one_is_shown_whole(directory, call):
    """What cannot be decoded is said to be so."""
    (shown,) = json.loads(call("dead-letters", directory, "show", "out", "2:1", "--json").output)
    assert (shown["bundle"], shown["reason"]) == ("2:1", "HTTP 401: [no]")
    assert "cannot be decoded" in shown["content"]["logs"]
    shown = call("dead-letters", directory, "show", "out", "2:1").output
    assert "HTTP 401" in shown
    assert re.search(r"given_up_at +20\d\d-\d\d-\d\dT", shown), "people read no nanoseconds"
    assert "nobody has no dead letters" in call("dead-letters", directory, "show", "nobody").output


def test_dropping(directory, call):
    """Some, then all."""
    assert json.loads(call("dead-letters", directory, "drop", "out", "2:1", "--json").output) == {"dropped": 1}
    assert bundles_of(call("dead-letters", directory, "--json")) == ["2:0", "2:2"]
    assert "2 letters are gone" in call("dead-letters", directory, "drop", "out").output
    assert bundles_of(call("dead-letters", directory, "--json")) == []


def test_replaying_to_nobody_keeps_them(directory, call):
    """It fails, and says why; nothing is dropped."""
    replayed = call("dead-letters", directory, "replay", "out", "2:0", "--to", "http://127.0.0.1:1", "--json")
    assert replayed.exit_code == 1
    (one,) = json.loads(replayed.output)
    assert (one["bundle"], one["delivered"]) == ("2:0", False)
    assert "UNAVAILABLE" in one["why_not"]
    assert len(bundles_of(call("dead-letters", directory, "--json"))) == 3


@pytest.mark.parametrize("way", ["--to", "--pipeline"])
def test_replaying_delivers_and_drops(tmp_path, call, way):
    """To an endpoint, or as the pipeline file says; the far side has it, the letters do not."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "late"
    root, far = str(tmp_path / "buffer"), tmp_path / "far"
    quiver.open(root).close()
    with DeadLetters(root, "otlp_exporter", background=False) as letters:
        letters.add(BundleRef(2, 0), bundle_of(request.SerializeToString()), reason="HTTP 403")
    settings = OtlpSettings(listening_addr="127.0.0.1:0")
    with quiver.open(far) as store, OtlpGrpcReceiver(store, settings) as receiver:
        endpoint = f"http://127.0.0.1:{receiver.port}"
        where = [endpoint] if way == "--to" else [str(EXAMPLE), "--set", f"endpoint={endpoint}"]
        replayed = call("dead-letters", root, "replay", "otlp_exporter", way, *where)
    assert "1 of 1 letters are delivered" in replayed.output
    with quiver.read(far) as reader:
        arrived = [data for _, bundle in reader.bundles() for data in bundle["otlp_logs"].column(0).to_pylist()]
    assert arrived == [request.SerializeToString()]
    assert bundles_of(call("dead-letters", root, "--json")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drop"], "drop whose?"),
        (["drop", "out", "2:9"], "no letter 2:9"),
        (["show", "out", "two"], "SEGMENT:INDEX"),
        (["replay", "out"], "replay where to?"),
        (["list", "a/b"], "letters, digits"),
    ],
)
def test_wrong_use_is_said(directory, call, words, said):
    """With what to type instead."""
    result = call("dead-letters", directory, *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_subscribers_shows_attempts_and_the_next_retry(directory, call):
    """How many wait, the most attempts, when the next is due, and how many were given up."""
    (one,) = json.loads(call("subscribers", directory, "--json").output)
    assert (one["subscriber"], one["retrying"], one["attempts"], one["dead_letters"]) == ("out", 2, 3, 3)
    assert 3000 < one["next_retry_s"] <= 3600
    assert one["last_failure"] == "UNAVAILABLE: down"
    assert "in 59 m" in call("subscribers", directory).output


def test_subscribers_says_who_halted(directory, call):
    """Nothing is due before the exporter is started again, whatever waits beside the bundle that it halted at."""
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
def test_damaged_letters_are_reported(directory, call, where):
    """By every command that looks at them, with exit code 1, until they are repaired; then the copy is named."""
    store = Path(directory) / "dead-letter" / "out"
    if where == "segment":
        (damaged,) = store.glob("segments/*.qseg")
    else:
        with DeadLetters(directory, "out", background=False) as letters:
            letters.add(BundleRef(3, 0), bundle_of(b"late"), reason="HTTP 410")
            damaged = Path(shutil.copytree(store, store.with_name("copy"))) / "wal" / "quiver.wal"
        shutil.rmtree(store)
        store.with_name("copy").rename(store)
        damaged = store / "wal" / "quiver.wal"
        damaged.write_bytes(damaged.read_bytes().rstrip(b"\0"))
    flip_a_byte(damaged)
    listed = call("dead-letters", directory)
    assert (listed.exit_code, str(damaged) in listed.output.replace("\n", "")) == (1, True)
    assert "none" not in listed.output
    told = [one for one in json.loads(call("dead-letters", directory, "--json").output) if "damaged" in one]
    assert [(one["exporter"], one["path"]) for one in told] == [("out", str(damaged))]
    assert call("dead-letters", directory, "show", "out").exit_code == 1

    verified = json.loads(call("verify", directory, "--json").output)
    assert verified["damaged"]
    assert str(damaged) in [one["path"] for one in verified["findings"]]
    assert call("repair", directory).exit_code == 0
    assert call("verify", directory).exit_code == 0
    listed = call("dead-letters", directory)
    assert listed.exit_code == 0
    assert f"set aside as damaged: {store}/quarantine/" in listed.output


def test_letters_whose_progress_is_damaged_are_all_shown(directory, call):
    """Which were dropped is not known any more, so none is hidden."""
    call("dead-letters", directory, "drop", "out", "2:1")
    flip_a_byte(Path(directory) / "dead-letter" / "out" / "quiver.sub.letters")
    listed = call("dead-letters", directory, "--json")
    assert listed.exit_code == 1
    assert sum("bundle" in one for one in json.loads(listed.output)) == 3
