"""`quiver topic`: list, inspect, verify, tail, produce, subscriptions."""

from __future__ import annotations

import json
import threading

import pytest
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.topics.reading.read import TopicFiles
from quiver.topics.store import TopicStore

TOPIC = "default/orders"


@pytest.fixture
def root(tmp_path):
    with TopicStore.open(tmp_path / "topics", settings={"wal": {"rotate_max_bytes": 300}}, background=False) as store:
        log = store.topic(TOPIC)
        for number in range(8):
            log.append(b"%d" % number, key="k")
        subscription = store.subscribe(TOPIC, "billing", start="earliest")
        with subscription.consumer("a") as consumer:
            for _ in range(3):
                consumer.receive(0).ack()
        store.topic("default/empty")
    return tmp_path / "topics"


def run(*words: object, code: int = 0, text: str | None = None) -> str:
    done = CliRunner().invoke(build_app(), ["topic", *map(str, words)], input=text)
    assert done.exit_code == code, done.output
    return done.output


def test_list_prints_one_line_per_topic(root):
    """Including empty topics."""
    reported = {one["topic"]: one for one in json.loads(run("list", root, "--json"))}
    assert (reported[TOPIC]["start_offset"], reported[TOPIC]["next_offset"], reported[TOPIC]["intact"]) == (0, 8, True)
    assert reported["default/empty"]["next_offset"] == 0
    assert TOPIC in run("list", root)


def test_inspect_and_verify_report_files_and_damage(root):
    """Also subscriptions and the positions of damage; the exit code is 1 if there is damage."""
    result = json.loads(run("inspect", root, TOPIC, "--json"))
    assert sum(file["messages"] for file in result["files"]) == 8
    assert [one["name"] for one in result["subscriptions"]] == ["billing"]
    assert "intact, 8 messages" in run("verify", root)
    assert "billing" in run("inspect", root, TOPIC)
    path = root / TOPIC / "wal.1.log"
    data = bytearray(path.read_bytes())
    data[130] ^= 1
    path.write_bytes(data)
    assert "DAMAGED" in run("verify", root, TOPIC, code=1)
    (finding,) = json.loads(run("inspect", root, TOPIC, "--json", code=1))["findings"]
    assert (finding["path"], finding["kind"]) == (str(path), "damaged")
    assert len(run("tail", root, TOPIC).splitlines()) == 7


def test_repair_truncates_torn_tails_and_quarantines_damage(root):
    """Quarantined damage is not reported again, and an intact topic is unchanged."""
    assert json.loads(run("repair", root, "--json")) == [
        {"topic": "default/empty", "truncated_bytes": 0, "quarantined": 0, "next": 0, "intact": True},
        {"topic": TOPIC, "truncated_bytes": 0, "quarantined": 0, "next": 8, "intact": True},
    ]
    newest = max((root / TOPIC).glob("wal*.log"), key=lambda path: (len(path.name), path.name))
    with newest.open("ab") as file:
        file.write(b"torn")
    (result,) = json.loads(run("repair", root, TOPIC, "--json"))
    assert (result["truncated_bytes"], result["next"], result["intact"]) == (4, 8, True)
    data = bytearray((root / TOPIC / "wal.log").read_bytes())
    data[40] ^= 1
    (root / TOPIC / "wal.log").write_bytes(data)
    assert "DAMAGED" in run("verify", root, TOPIC, code=1)
    for _ in range(2):
        (result,) = json.loads(run("repair", root, TOPIC, "--json"))
        assert (result["truncated_bytes"], result["quarantined"], result["intact"]) == (0, 1, True)
    run("verify", root, TOPIC)
    in_file, in_quarantine = json.loads(run("inspect", root, TOPIC, "--json"))["findings"]
    assert in_file["kind"] == in_quarantine["kind"] == "quarantined"
    assert in_file["reason"].startswith("messages 0 to 0: ")
    assert in_quarantine["path"].endswith(in_file["reason"].rpartition(" ")[2])
    with TopicStore.open(root, background=False):
        run("repair", root, code=1)


def test_tail_prints_from_any_offset(root):
    """While a writer runs."""
    with TopicStore.open(root, background=False) as store:
        store.topic(TOPIC).append(b"live")
        assert run("tail", root, TOPIC, "--from", 6).splitlines() == ["6\t6", "7\t7", "8\tlive"]
        assert run("tail", root, TOPIC, "-n", 2).splitlines() == ["0\t0", "1\t1"]
        assert run("tail", root, TOPIC, "--from", "latest") == ""
        assert run("tail", root, TOPIC, "--from", 3, "-n", 1, "--follow") == "3\t3\n"
        result = json.loads(run("tail", root, TOPIC, "-n", 1, "--json"))
        assert (result["offset"], result["payload"], result["key"]) == (0, "0", "k")
    run("tail", root, TOPIC, "--from", "yesterday", code=2)
    run("tail", root, "default/none", code=2)


def test_produce_appends_arguments_or_input_lines(root):
    """It is refused while another process has the directory."""
    result = json.loads(run("produce", root, TOPIC, "x", "y", "--attribute", "a=b", "--json"))
    assert result["offsets"] == [8, 9]
    assert "offsets 10 to 11" in run("produce", root, TOPIC, text="one\ntwo\n")
    found = list(TopicFiles(str(root), TOPIC).read(8))
    assert [message.payload for message in found] == [b"x", b"y", b"one", b"two"]
    assert found[0].attributes == {"a": "b"}
    run("produce", root, TOPIC, "x", "--attribute", "a", code=2)
    with TopicStore.open(root, background=False):
        run("produce", root, TOPIC, "x", code=1)


def test_subscriptions_prints_the_lag_of_each(root):
    """One line per subscription."""
    assert json.loads(run("subscriptions", root, TOPIC, "--json")) == [
        {"subscription": "billing", "kind": "shared", "next_offset": 3, "lag_messages": 5, "acked_above": 0}
    ]
    run("subscriptions", root, "a/b/c", code=2)


def test_produced_messages_need_not_be_text(root):
    """Bytes are stored unchanged, from the input and from arguments, and printed escaped."""
    done = CliRunner().invoke(build_app(), ["topic", "produce", str(root), "default/raw"], input=b"ok\n\xff\xfe\n")
    assert done.exit_code == 0, done.output
    run("produce", root, "default/raw", "\udcff")
    assert [one.payload for one in TopicFiles(str(root), "default/raw").read()] == [b"ok", b"\xff\xfe", b"\xff"]
    assert "\\xff\\xfe" in run("tail", root, "default/raw")


def test_commands_find_files_with_a_configured_name(tmp_path):
    """Configured by `wal.file_name`: readers find the files, and writers have an option."""
    with TopicStore.open(tmp_path, settings={"wal": {"file_name": "events.log"}}, background=False) as store:
        store.topic(TOPIC).append(b"0")
    assert json.loads(run("list", tmp_path, "--json"))[0]["next_offset"] == 1
    assert "events.log" in run("produce", tmp_path, TOPIC, "1", code=2)
    run("produce", tmp_path, TOPIC, "1", "--file-name", "events.log")
    run("repair", tmp_path, "--file-name", "events.log")
    assert "intact, 2 messages" in run("verify", tmp_path)


def test_produce_waits_for_the_directory(root):
    """It is refused if the other process keeps it for the given time, and succeeds when that process has ended."""
    store = TopicStore.open(root, background=False)
    assert "in use" in run("produce", root, TOPIC, "x", "--wait", "0.01", code=1)
    closing = threading.Timer(0.05, store.close)
    closing.start()
    run("produce", root, TOPIC, "x", "--wait", "60")
    run("repair", root, "--wait", "60")
    closing.join()
