"""Administration with and without a process that has the topics open."""

from __future__ import annotations

import json
import threading

import pytest
from topic_disks import ROOT, TOPIC, open_topics, payloads
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.errors import DirectoryInUseError, QuiverError, StoreClosedError, TransientError, UsageError
from quiver.primitives.disk.lock import hold
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.format.names import LOCK_NAME
from quiver.topics.format.request import TopicRequest
from quiver.topics.requests import RequestQueue, ask
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")


def fill(store, count=8):
    log = store.topic(TOPIC)
    for number in range(count):
        log.append(b"%d" % number)
    log.flush()
    return log


class Owner(ManualClock):
    """A clock whose waits let the owner of the topics run its maintenance."""

    def __init__(self, upkeep):
        super().__init__()
        self.upkeep = upkeep

    def wait(self, condition, timeout):
        self.upkeep()
        return super().wait(condition, timeout)


def asked(fs, store, command, *, wait_s=5.0, **arguments):
    return ask(fs, ROOT, TopicRequest(command, arguments), wait_s=wait_s, clock=Owner(store.maintain))


def test_the_owner_runs_requested_commands():
    """Open subscriptions continue at their new position; errors are returned with their class."""
    fs = CrashFileSystem()
    with open_topics(fs, rotate_max_bytes=300) as store:
        fill(store)
        billing = store.subscribe(TOPIC, "billing", start=0)
        with billing.consumer("c") as consumer:
            assert consumer.receive(0).offset == 0
            assert asked(fs, store, "seek", topic=TOPIC, subscription="billing", start=5) == {"offset": 5}
            assert consumer.receive(0).offset == 5
            answer = asked(fs, store, "seek", topic=TOPIC, subscription="billing", start="2023-11-14T22:13:20+00:00")
            assert answer == {"offset": 0}
            assert asked(fs, store, "unsubscribe", topic=TOPIC, subscription="billing") == {}
            with pytest.raises(StoreClosedError):
                consumer.receive(0)
        assert store.subscriptions(TOPIC) == []
        start = asked(fs, store, "truncate", topic=TOPIC, before=7)["start_offset"]
        assert 0 < start <= 7
        assert payloads(store.topic(TOPIC))[0] == b"%d" % start
        assert asked(fs, store, "unload", topic=None) == {"topics": [{"topic": TOPIC, "next_offset": 8}]}
        (row,) = asked(fs, store, "upload", topic=None)["topics"]
        assert "open its directory with objects" in row["problem"]
        assert asked(fs, store, "delete", topic=TOPIC) == {}
        assert store.topics() == []
        for arguments, words in (
            ({"command": "seek", "topic": "a/b", "subscription": "x", "start": 1}, "there is no topic a/b"),
            ({"command": "seek", "topic": "a/b", "subscription": "x", "start": "soon"}, "'soon' is not a start"),
            ({"command": "seek", "topic": "a/b"}, "missing 2 required"),
            ({"command": "explode"}, "not a command; known are seek"),
        ):
            with pytest.raises(UsageError, match=words):
                asked(fs, store, **arguments)
        assert fs.list_dir(f"{ROOT}/.requests") == []


def test_errors_of_a_command_are_returned():
    """As a transient error, a usage error, or another error; an unexpected error ends no thread."""
    fs = CrashFileSystem()
    fs.make_dirs(ROOT)
    lock = hold(fs, f"{ROOT}/{LOCK_NAME}", owner="topics")
    queue = RequestQueue(fs, ROOT)
    for error, kind in (
        (DirectoryInUseError("a", "b"), TransientError),
        (UsageError("no"), UsageError),
        (StoreClosedError("no"), QuiverError),
        (OSError(28, "full"), QuiverError),
        (ZeroDivisionError("odd"), QuiverError),
    ):

        def fail(_request, error=error):
            raise error

        with pytest.raises(kind, match=str(error.args[-1])):
            ask(fs, ROOT, TopicRequest("x", {}), wait_s=5, clock=Owner(lambda fail=fail: queue.serve(fail)))
    lock.release()


def test_an_unanswered_request_is_withdrawn():
    """Unless the owner has taken it: then it continues. Damaged requests are rejected."""
    fs = CrashFileSystem()
    fs.make_dirs(ROOT)
    lock = hold(fs, f"{ROOT}/{LOCK_NAME}", owner="topics")
    queue = RequestQueue(fs, ROOT)
    with pytest.raises(DirectoryInUseError, match="did not take the request within 5 s"):
        ask(fs, ROOT, TopicRequest("x", {}), wait_s=5, clock=ManualClock())
    assert queue.serve(lambda _: {}) == 0

    def taken():
        for name in fs.list_dir(f"{ROOT}/.requests"):
            fs.rename(f"{ROOT}/.requests/{name}", f"{ROOT}/.requests/{name.partition('.')[0]}.taken")

    with pytest.raises(DirectoryInUseError, match="has begun and not finished within 5 s"):
        ask(fs, ROOT, TopicRequest("x", {}), wait_s=5, clock=Owner(taken))

    def damaged():
        for name in fs.list_dir(f"{ROOT}/.requests"):
            file = fs.open_write(f"{ROOT}/.requests/{name}")
            file.pwrite(b"?", 3)
            file.close()
        queue.serve(lambda _: {})

    with pytest.raises(UsageError, match="checksum of the note differs"):
        ask(fs, ROOT, TopicRequest("x", {}), wait_s=5, clock=Owner(damaged))
    lock.release()


def test_a_new_owner_removes_requests_to_the_previous_one():
    """The requester has to repeat its request."""
    fs = CrashFileSystem()
    first = open_topics(fs)

    def restart():
        first.close()
        open_topics(fs).close()

    assert ask(fs, ROOT, TopicRequest("x", {}), wait_s=5, clock=Owner(restart)) is None
    assert fs.list_dir(f"{ROOT}/.requests") == []


@pytest.fixture
def root(tmp_path):
    with TopicStore.open(tmp_path / "topics", settings={"wal": {"rotate_max_bytes": 300}}, background=False) as store:
        fill(store)
        store.subscribe(TOPIC, "billing", start="earliest").close()
    return tmp_path / "topics"


def run(*arguments, code=0, text=None):
    done = CliRunner().invoke(build_app(), ["topic", *map(str, arguments)], input=text)
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr


@pytest.mark.parametrize("live", [False, True])
def test_commands_give_the_same_result_with_and_without_an_owner(root, live):
    """Whether or not a process has the topics open."""
    owner = TopicStore.open(root, settings={"wal": {"fsync_interval_ms": 20}}) if live else None  # polls every 5 ms
    assert "billing of default/orders continues at offset 5" in run("seek", root, TOPIC, "billing", "--to", 5)
    assert json.loads(run("seek", root, TOPIC, "billing", "--to", "latest", "--json"))["offset"] == 8
    assert "its end, 8, is the furthest" in run("seek", root, TOPIC, "billing", "--to", 9, code=2)
    assert "2026" in run("seek", root, TOPIC, "billing", "--to", "soon", code=2)
    assert json.loads(run("subscriptions", root, TOPIC, "--json"))[0]["next_offset"] == 8
    run("unsubscribe", root, TOPIC, "billing")
    assert "has no subscription billing" in run("unsubscribe", root, TOPIC, "billing", code=2)
    assert "now starts at offset" in run("truncate", root, TOPIC, "--before", 5)
    assert json.loads(run("truncate", root, TOPIC, "--before", "latest", "--json"))["start_offset"] == 8
    assert json.loads(run("unload", root, "--json")) == [{"topic": TOPIC, "next_offset": 8}]
    assert "with objects" in run("upload", root, code=1)
    assert "none" in run("reappend", root)
    assert "permanently?" in run("delete", root, TOPIC, text="n\n", code=1)
    assert "is deleted" in run("delete", root, TOPIC, "--yes")
    assert "there is no topic" in run("delete", root, TOPIC, "--yes", code=2)
    assert json.loads(run("list", root, "--json")) == []
    if owner is not None:
        owner.close()


def test_a_command_runs_itself_when_the_owner_ends(root):
    """The owner closed before it took the request: the directory is free, and the command does the work."""
    owner = TopicStore.open(root, background=False)
    closing = threading.Timer(0.05, owner.close)
    closing.start()
    run("seek", root, TOPIC, "billing", "--to", 5)
    closing.join()
    with TopicStore.open(root, background=False) as store:
        assert store.subscribe(TOPIC, "billing").next_offset == 5


def test_the_error_for_an_owner_without_maintenance_has_the_remedy(root):
    """It names the owner."""
    with TopicStore.open(root, background=False):
        reported = run("seek", root, TOPIC, "billing", "--to", 5, "--wait", 0.01, code=1)
    assert "did not take the request within 0.01 s: stop it, or let it call TopicStore.maintain" in reported
