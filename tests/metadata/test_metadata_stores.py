"""Behavior of single metadata stores: processes, outages, damage, errors."""

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
    """Two processes increment one number by compare-and-swap: no increment is lost."""
    path = str(tmp_path / "m.db")
    store = SqliteMetadata(path)
    store.commit({"count": b"0"})

    children = [subprocess.Popen([sys.executable, "-c", COUNT, path]) for _ in range(2)]

    assert [child.wait(timeout=60) for child in children] == [0, 0]
    assert store.get("count").value == b"40"
    store.close()


def test_sqlite_keeps_what_it_committed(tmp_path):
    """After reopening, even without a close; revisions continue."""
    path = str(tmp_path / "m.db")
    one = SqliteMetadata(path)
    first = one.commit({"k": b"v"})
    two = SqliteMetadata(path)

    assert two.get("k").value == b"v"
    assert two.commit({"k": b"w"}) > first
    one.close()
    two.close()
    one.close()  # idempotent


def test_a_locked_sqlite_file_is_reported(tmp_path):
    """After a time limit; the commit had no effect, and succeeds later."""
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


def test_a_file_that_is_not_a_database_is_reported_as_corruption(tmp_path):
    """With its path; it is not replaced."""
    path = tmp_path / "m.db"
    path.write_bytes(b"this is no database, it only has the name of one" * 100)

    with pytest.raises(CorruptionError) as raised:
        SqliteMetadata(str(path))

    assert raised.value.path == str(path)
    assert path.read_bytes().startswith(b"this is no database")


def test_a_database_that_cannot_be_created_is_reported(tmp_path):
    """The directory is missing."""
    with pytest.raises(MetadataUnavailableError, match=r"m\.db"):
        SqliteMetadata(str(tmp_path / "none" / "m.db"))


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_a_closed_store_refuses_every_call(tmp_path, kind):
    """Everything."""
    store = open_metadata(f"sqlite://{tmp_path}/m.db" if kind == "sqlite" else "etcd://127.0.0.1:9")
    store.close()

    with pytest.raises(StoreClosedError):
        store.get("k")


class Answers:
    """An HTTP client that returns prepared answers, and records the endpoints."""

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


def test_the_next_endpoint_is_tried():
    """If an endpoint does not answer or fails; the next one is tried first from then on."""
    httpx = pytest.importorskip("httpx")
    store, client = etcd_with(httpx.ConnectError("refused"), (200, EMPTY), (200, EMPTY))

    assert store.get("k") is None
    assert store.get("k") is None
    assert client.asked == ["http://a:1/v3/kv/range", "http://b:2/v3/kv/range", "http://b:2/v3/kv/range"]


def test_no_endpoint_answers():
    """The error has the last problem."""
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
def test_an_answer_that_is_not_from_an_etcd_is_an_outage(body):
    """A proxy that answers instead must neither fence an owner nor end the thread that renews its lease."""
    with pytest.raises(MetadataUnavailableError, match="not an etcd answer"):
        etcd_with((200, body))[0].get("k")
    with pytest.raises(MetadataUnavailableError, match="not an etcd answer"):
        etcd_with((200, body.replace('"header": {}', '"header": {"revision": "x"}')))[0].commit({"k": b"v"})


@pytest.mark.parametrize(
    "url", ["", "etcd://", "etcd://user:pass@host:1", "etcd://host:1/path", "redis://x", "sqlite://"]
)
def test_an_unknown_location_is_refused(url):
    """With valid examples."""
    with pytest.raises(SettingsError):
        open_metadata(url)


def test_urls(tmp_path):
    """Each scheme opens its store; an etcd gets no request yet."""
    sqlite = open_metadata(f"sqlite://{tmp_path}/with%20space.db")
    assert (tmp_path / "with space.db").exists()
    sqlite.close()
    assert isinstance(open_metadata("memory://"), MemoryMetadata)
    etcd = open_metadata("etcds://a:1,b:2")
    assert repr(etcd) == "EtcdMetadata(https://a:1, https://b:2)"
    etcd.close()


def test_the_end_of_a_prefix():
    """The first key after all keys with the prefix; the highest prefix has none."""
    assert end_of_prefix(b"a/") == b"a0"
    assert end_of_prefix(b"a\xff") == b"b"
    assert end_of_prefix(b"\xff\xff") == end_of_prefix(b"") == b""


@pytest.mark.parametrize("url", ["postgres://u:passw0rd@h/db", "etcd://u:passw0rd@h:1", "etcd://h:1?token=passw0rd"])
def test_a_url_that_is_refused_is_not_repeated(url):
    """It may contain a password."""
    with pytest.raises(SettingsError) as raised:
        open_metadata(url)
    assert "passw0rd" not in str(raised.value)
