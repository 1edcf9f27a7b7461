"""An etcd with TLS, client certificates and users: access to it, and secrets that are never printed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback

import pytest
from typer.testing import CliRunner

from certificates import Authority, install
from etcd_server import SecureEtcd
from quiver.cli.main import build_app
from quiver.errors import AccessDeniedError, MetadataUnavailableError, SettingsError
from quiver.metadata import MetadataLocation, open_metadata
from quiver.metadata.etcd import EtcdMetadata
from quiver.metadata.location import EtcdAccess
from quiver.spark.topics.options import parse_topic_options
from quiver.topics import TopicSettings, TopicStore

PASSWORD = "hush-quiver-hush"
TOPIC = "default/orders"
EMPTY = '{"header": {"revision": "7"}}'


def opened(server: SecureEtcd, **changed):
    options = {**server.options, **changed}
    return open_metadata({"endpoint": server.url, **{key: value for key, value in options.items() if value}})


# ── a real etcd ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"password": PASSWORD}, AccessDeniedError, "invalid user ID or password"),
        ({"user": "nobody"}, AccessDeniedError, "invalid user ID or password"),
        ({"user": None, "password": None}, AccessDeniedError, "give it the options user and password"),
        ({"ca_file": None}, MetadataUnavailableError, "ca_file names the authorities"),
        ({"cert_file": None, "key_file": None}, MetadataUnavailableError, "give it the options cert_file and key_file"),
    ],
)
def test_errors_of_access_name_the_cause(secure_etcd: SecureEtcd, caplog, changed, error, says):
    """With the remedy, and without any secret."""
    caplog.set_level(logging.DEBUG)
    store = opened(secure_etcd, **changed)
    with pytest.raises(error, match=says) as raised:
        store.get("/test/k")
    shown = "".join(traceback.format_exception(raised.value)) + repr(store) + caplog.text
    assert PASSWORD not in shown
    assert secure_etcd.options["password"] not in shown
    store.close()


def test_another_certificate_authority_is_not_trusted(secure_etcd: SecureEtcd, tmp_path):
    """A server with its certificate gets no requests and no password."""
    store = opened(secure_etcd, ca_file=str(Authority(tmp_path, "others").cert))
    with pytest.raises(MetadataUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        store.get("/test/k")
    store.close()


def test_a_certificate_with_a_common_name(secure_etcd: SecureEtcd):
    """The JSON gateway accepts none if users are checked: the error names one that it accepts."""
    cert, key = secure_etcd.authority.issue("named")
    store = opened(secure_etcd, cert_file=str(cert), key_file=str(key))
    with pytest.raises(AccessDeniedError, match="without a common name"):
        store.get("/test/k")
    store.close()


def test_keys_without_permission(secure_etcd: SecureEtcd):
    """Reading and writing them is refused; the user's own keys work."""
    store = opened(secure_etcd)
    for call in (lambda: store.get("/other"), lambda: store.commit({"/other": b"v"})):
        with pytest.raises(AccessDeniedError, match="permission denied.*this user needs"):
            call()
    assert store.commit({"/test/mine": b"v"})
    store.close()


def test_a_restarted_server(secure_etcd: SecureEtcd):
    """It has forgotten its tokens: a new one is requested, and the call succeeds."""
    store = opened(secure_etcd)
    revision = store.commit({"/test/again": b"1"})
    secure_etcd.restart()
    assert store.commit({"/test/again": b"2"}, expect={"/test/again": revision or 0})
    assert store.get("/test/again").value == b"2"
    store.close()


def test_users_that_change(secure_etcd: SecureEtcd):
    """Every change invalidates other users' tokens, which is not an error. A changed password is one."""
    store = opened(secure_etcd)
    assert store.get("/test/none") is None
    user, password = secure_etcd.options["user"], secure_etcd.options["password"]
    root = secure_etcd.ask("auth/authenticate", name="root", password="root-password")["token"]
    secure_etcd.ask("auth/user/add", root, name="another", password="x")
    assert store.get("/test/none") is None
    secure_etcd.ask("auth/user/changepw", root, name=user, password=PASSWORD)
    try:
        with pytest.raises(AccessDeniedError):
            store.get("/test/none")
    finally:
        secure_etcd.ask("auth/user/changepw", root, name=user, password=password)
    assert store.get("/test/none") is None
    store.close()


def test_certificates_that_are_renewed(secure_etcd: SecureEtcd, tmp_path):
    """An expired one is refused; its replacement in the same file is used without reopening the store."""
    cert, key = (tmp_path / name for name in ("client.pem", "client.key"))
    install(secure_etcd.authority.issue("expired", organization="quiver", days=-1), (cert, key))
    store = opened(secure_etcd, cert_file=str(cert), key_file=str(key))
    with pytest.raises(MetadataUnavailableError, match="(?i)certificate"):
        store.get("/test/none")
    install(secure_etcd.authority.issue("renewed", organization="quiver"), (cert, key))
    with pytest.raises(MetadataUnavailableError):
        store.get("/test/none")  # notices the new files, for the next call
    assert store.get("/test/none") is None
    store.close()


def test_topics_on_it(secure_etcd: SecureEtcd, tmp_path):
    """With the location in the broker's file: append, upload, handover."""
    metadata = {"endpoint": secure_etcd.url, "namespace": "/test/topics", **secure_etcd.options}
    settings = {
        "storage": {
            "cloud": {"backend": "fs", "root": str(tmp_path / "cold")},
            "metadata": {**metadata, "password": "${ETCD_PASSWORD}"},
        }
    }
    environment = {"ETCD_PASSWORD": secure_etcd.options["password"]}
    for name, first in (("one", 0), ("two", 1)):
        chosen = TopicSettings.from_mapping(settings, environment)
        assert secure_etcd.options["password"] not in repr(chosen)
        with TopicStore.open(tmp_path / name, settings=chosen, background=False) as store:
            assert store.topic(TOPIC).append(b"x") == first
            store.unload(TOPIC)


def test_every_topic_command(secure_etcd: SecureEtcd, tmp_path, monkeypatch):
    """Each accepts the options of the etcd, with the password from the environment."""
    monkeypatch.setenv("ETCD_PASSWORD", secure_etcd.options["password"])
    options = {**secure_etcd.options, "password": "${ETCD_PASSWORD}"}
    words = [word for key, value in options.items() for word in ("--metadata-option", f"{key}={value}")]
    metadata = ["--metadata", secure_etcd.url, "--namespace", "/test/commands", *words]
    place = ["--objects", str(tmp_path / "cold"), *metadata]
    root = str(tmp_path / "topics")

    def run(*arguments):
        result = CliRunner().invoke(build_app(), ["topic", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("produce", root, TOPIC, "one", *place)
    assert TOPIC in run("list", root, *metadata)
    run("inspect", root, TOPIC, *metadata)
    run("verify", root, *place)
    run("repair", root, *place)
    assert json.loads(run("tail", root, TOPIC, "--json", *place))["payload"] == "one"
    run("rebuild-catalog", str(tmp_path / "cold"), *metadata)


# ── without one ──────────────────────────────────────────────────────────────────────────────────────────────


class Gateway:
    """An HTTP client that returns prepared answers, and records the requests."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def post(self, url, json, headers):
        httpx = pytest.importorskip("httpx")
        self.asked.append((url.rpartition("/v3/")[2], headers.get("Authorization"), json))
        status, text = self.answers.pop(0)
        return httpx.Response(status, text=text)

    def close(self):
        pass


def etcd_with(*answers):
    pytest.importorskip("httpx")
    store = EtcdMetadata(["http://a:1"], EtcdAccess(user="quiver", password=PASSWORD))
    store._client.close()
    store._client = Gateway(*answers)
    return store, store._client.asked


def test_a_token_is_requested_once():
    """Every request sends it; a token that is refused is replaced, once."""
    store, asked = etcd_with(
        (200, '{"token": "t1"}'), (200, EMPTY), (200, EMPTY), (401, "invalid auth token"),
        (200, '{"token": "t2"}'), (200, EMPTY),
    )  # fmt: skip
    for _ in range(3):
        assert store.get("k") is None
    assert [(path, token) for path, token, _ in asked] == [
        ("auth/authenticate", None), ("kv/range", "t1"), ("kv/range", "t1"), ("kv/range", "t1"),
        ("auth/authenticate", None), ("kv/range", "t2"),
    ]  # fmt: skip
    assert asked[0][2] == {"name": "quiver", "password": PASSWORD}


@pytest.mark.parametrize("refusal", [(401, "invalid auth token"), (400, "revision of auth store is old")])
def test_attempts_with_refused_tokens_are_limited(refusal):
    """One new token for each call."""
    store, asked = etcd_with((200, '{"token": "t1"}'), refusal, (200, '{"token": "t2"}'), refusal)
    with pytest.raises((AccessDeniedError, MetadataUnavailableError)):
        store.get("k")
    assert len(asked) == 4


def test_an_etcd_that_checks_no_users_yet():
    """It is used without a token; when it begins to check users, one is requested."""
    store, asked = etcd_with(
        (400, '{"code":9, "message":"etcdserver: authentication is not enabled"}'), (200, EMPTY), (200, EMPTY),
        (400, '{"code":3, "message":"etcdserver: user name is empty"}'), (200, '{"token": "t"}'), (200, EMPTY),
    )  # fmt: skip
    for _ in range(3):
        assert store.get("k") is None
    assert [token for _, token, _ in asked] == [None, None, None, None, None, "t"]


@pytest.mark.parametrize(
    "answers",
    [
        [(502, f"<html>you sent {{'password': '{PASSWORD}'}}</html>")],
        [(403, f"no {PASSWORD} here")],
        [(200, f'{{"tokens": "{PASSWORD}"}}')],
        [(200, '{"token": "hush-token"}'), (502, "Authorization: hush-token")],
    ],
)
def test_a_proxy_that_repeats_its_request(answers):
    """Neither password nor token is in an error or its cause."""
    store, _ = etcd_with(*answers)
    with pytest.raises((MetadataUnavailableError, AccessDeniedError)) as raised:
        store.get("k")
    shown = "".join(traceback.format_exception(raised.value))
    assert PASSWORD not in str(raised.value)
    assert "hush-token" not in str(raised.value)
    assert "hush-token" not in shown


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endpoint": "etcd://h:1", "passwort": PASSWORD}, "did you mean 'password'"),
        ({"endpoint": "etcd://h:1", "user": "u"}, "user and password belong together"),
        ({"endpoint": "etcds://h:1", "cert_file": "c"}, "cert_file and key_file belong together"),
        ({"endpoint": "etcd://h:1", "ca_file": "c"}, "write etcds://"),
        ({"endpoint": "sqlite:///x", "user": "u", "password": PASSWORD}, "only an etcd has options"),
        ({"endpoint": "etcd://h:1", "user": "u", "password": f"{PASSWORD}\n"}, "without a line break"),
        ({"endpoint": "etcd://h:1", "user": "u", "password": "${NONE}"}, r"\$\{NONE\}, which is not set"),
        ({"user": "u", "password": PASSWORD}, "endpoint is a URL"),
        ('{"endpoint": "etcd://h:1", "user": "u", "password": "' + PASSWORD, "neither a URL nor JSON"),
        (f"etcd://u:{PASSWORD}@h:1", "user and password are options"),
        ({"endpoint": "etcd://h:1", "timeout_s": "-1"}, "number of seconds"),
    ],
)
def test_wrong_options_are_refused(given, says):
    """With an explanation, and without a secret."""
    with pytest.raises(SettingsError, match=says) as raised:
        MetadataLocation.of(given)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


def test_certificate_files_are_checked_at_open(tmp_path):
    """The first request may be days later."""
    (tmp_path / "text").write_text("no certificate")
    pytest.importorskip("httpx")
    for path, says in ((tmp_path / "none", "cannot read"), (tmp_path / "text", "has no certificates")):
        with pytest.raises(SettingsError, match=f"metadata: ca_file: .*{says}|metadata: ca_file: {says}"):
            open_metadata({"endpoint": "etcds://h:1", "ca_file": str(path)})


def test_an_invalid_certificate_file_is_named(tmp_path):
    """Opening a pipe waited, and a device would be read forever; a link to a file is followed."""
    pytest.importorskip("httpx")
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("client", organization="quiver")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "link").symlink_to(authority.cert)
    (tmp_path / "link2").symlink_to("link")
    options = {"endpoint": "etcds://h:1", "ca_file": str(tmp_path / "link2")}
    open_metadata({**options, "cert_file": str(cert), "key_file": str(key)}).close()
    for changed, says in (
        ({"ca_file": str(tmp_path / "pipe")}, "ca_file: cannot read .*/pipe: not a regular file"),
        ({"ca_file": str(tmp_path / "zero")}, "ca_file: cannot read .*/zero: not a regular file"),
        ({"cert_file": str(tmp_path / "pipe"), "key_file": str(key)}, "cert_file: cannot read .*/pipe: not a regular"),
        ({"cert_file": str(key), "key_file": str(key)}, "unencrypted key: one is not PEM, or is encrypted"),
    ):
        with pytest.raises(SettingsError, match=f"metadata: .*{says}"):
            open_metadata({**options, **changed})


def test_a_location_is_pickled_without_showing_secrets():
    """Spark workers get it pickled; as an option it is JSON."""
    text = json.dumps({"endpoint": "etcd://h:1", "user": "u", "password": PASSWORD})
    location = MetadataLocation.of(text)
    assert location.access.password == PASSWORD
    assert pickle.loads(pickle.dumps(location)) == location
    place = parse_topic_options({"topic": TOPIC, "objects": "cold", "metadata": text}).place
    assert MetadataLocation.of(place.metadata) == location
    for shown in (repr(location), str(location), repr(place)):
        assert PASSWORD not in shown
        assert "h:1" in shown


def test_settings_without_an_endpoint_are_refused():
    """They would have no effect."""
    with pytest.raises(SettingsError, match="metadata.user has no effect without metadata.endpoint"):
        TopicSettings.from_mapping({"metadata": {"user": "u", "password": PASSWORD}})
