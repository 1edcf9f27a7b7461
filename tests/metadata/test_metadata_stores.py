"""What is particular to each metadata store: processes, outages, damage, words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quiver.errors import AccessDeniedError, CorruptionError, MetadataUnavailableError, SettingsError, StoreClosedError
from quiver.metadata import open_metadata
from quiver.metadata.etcd import EtcdMetadata
from quiver.metadata.memory import MemoryMetadata
from quiver.metadata.port import end_of_prefix
from quiver.metadata.sqlite import SqliteMetadata

COUNT = """
import sys
from quiver.metadata.sqlite import SqliteMetadata
store = SqliteMetadata(sys.argv[1])
for _ in range(20):
    while True:
        found = store.get("count")
        if store.commit({"count": b"%d" % (int(found.value) + 1)}, expect={"count": found.revision}):
            break
store.close()
"""


def test_sqlite_is_safe_across_processes(tmp_path):
    """Two processes count up one number by compare-and-swap: every step is taken once."""
    path = str(tmp_path / "m.db")
    store = SqliteMetadata(path)
    store.commit({"count": b"0"})

    children = [subprocess.Popen([sys.executable, "-c", COUNT, path]) for _ in range(2)]

    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert store.get("count").value == b"40"
    store.close()


def test_sqlite_keeps_what_it_committed(tmp_path):
    """Opened again, also without having been closed; revisions go on."""
    path = str(tmp_path / "m.db")
    one = SqliteMetadata(path)
    first = one.commit({"k": b"v"})
    two = SqliteMetadata(path)

    assert two.get("k").value == b"v"
    assert two.commit({"k": b"w"}) > first
    one.close()
    two.close()
    one.close()  # twice is fine


def test_sqlite_that_is_locked_says_so(tmp_path):
    """After its patience; nothing of the commit happened, and later it does."""
    path = str(tmp_path / "m.db")
    one, two = SqliteMetadata(path), SqliteMetadata(path, busy_s=0.01)
    one._connection.execute("BEGIN IMMEDIATE")

    with pytest.raises(MetadataUnavailableError, match="locked"):
        two.commit({"k": b"v"})

    one._connection.execute("ROLLBACK")
    assert two.get("k") is None
    assert two.commit({"k": b"v"})
    one.close()
    two.close()


def test_a_file_that_is_no_database_is_damage(tmp_path):
    """With its path; it is not replaced."""
    path = tmp_path / "m.db"
    path.write_bytes(b"this is no database, it only has the name of one" * 100)

    with pytest.raises(CorruptionError) as raised:
        SqliteMetadata(str(path))

    assert raised.value.path == str(path)
    assert path.read_bytes().startswith(b"this is no database")


def test_a_database_that_cannot_be_made_says_so(tmp_path):
    """The directory is missing."""
    with pytest.raises(MetadataUnavailableError, match=r"m\.db"):
        SqliteMetadata(str(tmp_path / "none" / "m.db"))


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_a_closed_store_refuses(tmp_path, kind):
    """Everything."""
    store = open_metadata(f"sqlite://{tmp_path}/m.db" if kind == "sqlite" else "etcd://127.0.0.1:9")
    store.close()

    with pytest.raises(StoreClosedError):
        store.get("k")


class Answers:
    """An HTTP client that answers what the test says, and remembers who was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def post(self, url, json, headers):
        self.asked.append(url)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


EMPTY = '{"header": {"revision": "7"}}'


def etcd_with(*answers, endpoints=("http://a:1", "http://b:2")):
    httpx = pytest.importorskip("httpx")
    store = EtcdMetadata(endpoints)
    store._client.close()
    made = [
        answer if isinstance(answer, Exception) else httpx.Response(answer[0], text=answer[1]) for answer in answers
    ]
    store._client = Answers(*made)
    return store, store._client


def test_the_next_endpoint_is_asked():
    """When one does not answer, or answers that it cannot; and it is asked first from then on."""
    httpx = pytest.importorskip("httpx")
    store, client = etcd_with(httpx.ConnectError("refused"), (200, EMPTY), (200, EMPTY))

    assert store.get("k") is None
    assert store.get("k") is None
    assert client.asked == ["http://a:1/v3/kv/range", "http://b:2/v3/kv/range", "http://b:2/v3/kv/range"]


def test_no_endpoint_answers():
    """The last problem is the one that is told."""
    store, _ = etcd_with((503, "no leader"), (500, "etcdserver: request timed out"))

    with pytest.raises(MetadataUnavailableError, match="b:2: 500: etcdserver: request timed out"):
        store.get("k")


def test_refused_and_garbled_answers():
    """Credentials are not retried."""
    refused, _ = etcd_with((401, "invalid auth token"))

    with pytest.raises(AccessDeniedError, match="invalid auth token"):
        refused.get("k")


@pytest.mark.parametrize(
    "body",
    ["<html>", "[]", "{}", "7", '{"kvs": []}', '{"header": {}, "kvs": [{}]}', '{"header": {}, "kvs": [{"key": "&"}]}',
     '{"header": {}, "kvs": 7}', '{"header": {}, "kvs": [{"key": "/w==", "mod_revision": "1"}]}'],
)  # fmt: skip
def test_what_is_no_answer_of_an_etcd_is_not_believed(body):
    """A proxy that answers for it must neither fence an owner nor end the thread that renews."""
    with pytest.raises(MetadataUnavailableError, match="not an etcd answer"):
        etcd_with((200, body))[0].get("k")
    with pytest.raises(MetadataUnavailableError, match="not an etcd answer"):
        etcd_with((200, body.replace('"header": {}', '"header": {"revision": "x"}')))[0].commit({"k": b"v"})


@pytest.mark.parametrize(
    "url", ["", "etcd://", "etcd://user:pass@host:1", "etcd://host:1/path", "redis://x", "sqlite://"]
)
def test_what_is_no_metadata_store_is_refused(url):
    """With what to write instead."""
    with pytest.raises(SettingsError):
        open_metadata(url)


def test_urls(tmp_path):
    """Each scheme opens its store; an etcd is not asked yet."""
    sqlite = open_metadata(f"sqlite://{tmp_path}/with%20space.db")
    assert (tmp_path / "with space.db").exists()
    sqlite.close()
    assert isinstance(open_metadata("memory://"), MemoryMetadata)
    etcd = open_metadata("etcds://a:1,b:2")
    assert repr(etcd) == "EtcdMetadata(https://a:1, https://b:2)"
    etcd.close()


def test_the_end_of_a_prefix():
    """The first key behind all with it; there is none behind the highest."""
    assert end_of_prefix(b"a/") == b"a0"
    assert end_of_prefix(b"a\xff") == b"b"
    assert end_of_prefix(b"\xff\xff") == end_of_prefix(b"") == b""


@pytest.mark.parametrize("url", ["postgres://u:passw0rd@h/db", "etcd://u:passw0rd@h:1", "etcd://h:1?token=passw0rd"])
def test_a_url_that_is_refused_is_not_repeated(url):
    """Somebody may have written a password into it."""
    with pytest.raises(SettingsError) as raised:
        open_metadata(url)
    assert "passw0rd" not in str(raised.value)
