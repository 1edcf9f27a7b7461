"""The location of objects: accepted inputs, and secrets that are never printed."""

from __future__ import annotations

import json
import logging
import os
import pickle

import pytest

import quiver
from quiver.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
    QuiverError,
    SettingsError,
    UsageError,
)
from quiver.objects import ObjectLocation, open_objects
from quiver.objects import location as location_module
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import masked
from quiver.objects.opening import prove
from quiver.objects.remote import connect
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import FaultObjects
from quiver.topics import TopicSettings, TopicStore
from s3_server import S3Server

SECRET = "a-very-secret-key"


@pytest.fixture(autouse=True)
def no_provider_environment(monkeypatch):
    """The client library has its own chain for credentials: keep this machine's credentials out of the tests."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("url", "backend", "container", "prefix"),
    [
        ("file:///cold", "fs", "", "/cold"),
        ("/cold/", "fs", "", "/cold"),
        ("cold/here", "fs", "", "cold/here"),
        ("file:///with%20space", "fs", "", "/with space"),
        ("memory://", "memory", "", ""),
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://my-bucket/danube", "s3", "my-bucket", "danube"),
        ("s3a://bucket/a/b/", "s3", "bucket", "a/b"),
        ("gs://bucket/p", "gcs", "bucket", "p"),
        ("az://container/p", "azblob", "container", "p"),
    ],
)
def test_urls(url, backend, container, prefix):
    """A URL or the path of a directory is enough."""
    found = ObjectLocation.from_url(url)

    assert (found.backend, found.container, found.prefix) == (backend, container, prefix)


def test_a_mapping_written_as_json():
    """Where only text is accepted, as in an option of Spark; text that is not JSON is rejected and not repeated."""
    text = json.dumps({"backend": "s3", "root": "s3://b/p", "options": {"secret_key": SECRET}})
    found = ObjectLocation.from_url(text)

    assert (found.container, found.prefix) == ("b", "p")
    assert found.secrets == {SECRET}
    with pytest.raises(SettingsError, match="neither a URL nor JSON") as raised:
        ObjectLocation.from_url(text[:-1])
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "s3:///prefix", "file://host/x", "file:///", "", "s3://key:secret@bucket/x", "s3://b/p?token=1"],
)
def test_an_invalid_location_is_rejected(url):
    """No other schemes, no bucket without a name, no credentials in a URL."""
    with pytest.raises(SettingsError):
        ObjectLocation.from_url(url)


def test_the_broker_file_as_printed():
    """``backend``, ``root`` and ``options``, with secrets from the environment that the caller passes."""
    mapping = {
        "backend": "s3",
        "root": "s3://my-bucket/danube",
        "options": {
            "region": "us-east-1",
            "endpoint": "https://s3.amazonaws.com",
            "access_key": "${AWS_ACCESS_KEY_ID}",
            "secret_key": "${AWS_SECRET_ACCESS_KEY}",
        },
    }
    environment = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": SECRET}

    found = ObjectLocation.from_mapping(mapping, environment=environment)

    assert str(found) == "s3://my-bucket/danube"
    assert found.options["secret_access_key"] == SECRET
    assert found.secrets == {"AKIATEST", SECRET}


def test_options_next_to_backend_and_root():
    """Later broker files have the options next to the two; flags are true or false, timeouts are seconds."""
    found = ObjectLocation.from_mapping(
        {"backend": "s3", "root": "s3://b", "anonymous": "true", "virtual_host_style": False, "timeout_s": "2.5"}
    )

    assert found.options == {"skip_signature": True, "virtual_hosted_style_request": False, "timeout_s": 2.5}


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"root": "s3://b"}, "backend is one of"),
        ({"backend": "s4", "root": "s3://b"}, "backend is one of"),
        ({"backend": "gcs", "root": "s3://b"}, "names a bucket"),
        ({"backend": "s3", "root": "s3://b", "options": {"secretkey": "x"}}, "did you mean 'secret_key'"),
        ({"backend": "s3", "root": "s3://b", "options": {"secret_key": "${NO}"}}, r"\$\{NO\}, which is not set"),
        ({"backend": "s3", "root": "s3://b", "options": {"anonymous": "maybe"}}, "true or false"),
        ({"backend": "s3", "root": "s3://b", "options": {"timeout_s": "-1"}}, "number of seconds"),
        ({"backend": "s3", "root": "s3://b", "options": "x"}, "options is a mapping"),
        ({"backend": "fs", "root": "/cold", "options": {"region": "x"}}, "fs has no option"),
    ],
)
def test_errors_of_invalid_mappings_name_the_key(mapping, says):
    """Each names the key and the remedy."""
    with pytest.raises(SettingsError, match=says):
        ObjectLocation.from_mapping(mapping)


def test_every_documented_gcs_and_azure_credential_is_applied():
    """Credentials reach the client library under its own names."""
    gcs = ObjectLocation.from_mapping({"backend": "gcs", "root": "gs://b", "options": {"credentials_path": "/k.json"}})
    azure = ObjectLocation.from_mapping(
        {"backend": "azblob", "root": "az://c", "options": {"account_name": "me", "account_key": "a2V5a2V5"}}
    )

    assert gcs.options == {"service_account": "/k.json"}
    assert azure.options == {"account_name": "me", "account_key": "a2V5a2V5"}
    assert "a2V5a2V5" in azure.secrets
    pytest.importorskip("obstore")
    assert repr(connect(azure)) == "RemoteObjects(az://c)"


@pytest.mark.parametrize("backend", ["s3", "gcs", "azblob"])
def test_every_option_reaches_the_client_library(backend):
    """It knows all the names; contradictory options are reported immediately, not as an outage."""
    pytest.importorskip("obstore")
    root = {"s3": "s3://bucket/x", "gcs": "gs://bucket/x", "azblob": "az://container/x"}[backend]
    needs = {
        "access_key": {"secret_key": "s"}, "access_key_id": {"secret_key": "s"}, "secret_key": {"access_key": "a"},
        "secret_access_key": {"access_key": "a"}, "sse_kms_key_id": {"server_side_encryption": "aws:kms"},
    }  # fmt: skip
    values = {
        "endpoint": "http://127.0.0.1:9", "endpoint_url": "http://127.0.0.1:9",
        "proxy_url": "http://127.0.0.1:9", "checksum_algorithm": "sha256",
        "copy_if_not_exists": "multipart", "server_side_encryption": "AES256", "account_key": "a2V5",
        "sas_key": "sv=1&sig=a",
    }  # fmt: skip
    files = {"credentials_path", "credential_file", "service_account", "application_credentials"}
    texts = {"credentials_json", "service_account_key"}
    tried = 0
    for name, known in location_module._OPTIONS[backend].items():
        if name in files | texts:
            continue
        value = values.get(name, "true" if known in location_module._FLAGS else "3")
        options = {"account_name": "me"} if backend == "azblob" else {}
        options |= {name: value, **needs.get(name, {})}
        connect(ObjectLocation.from_mapping({"backend": backend, "root": root, "options": options})).close()
        tried += 1
    assert tried > 5


@pytest.mark.parametrize(
    ("backend", "root", "options", "says"),
    [
        ("s3", "s3://b", {"access_key": "AKIATESTKEY"}, "SecretAccessKey"),
        ("gcs", "gs://b", {"credentials_path": "/nowhere.json"}, "service account"),
        (
            "gcs",
            "gs://b",
            {"credentials_json": '{"client_email":"a","private_key":"%s","private_key_id":"x"}'},
            "gs://b",
        ),
        ("azblob", "az://c", {}, "az://c"),
    ],
)
def test_options_that_cannot_work_are_rejected_immediately(backend, root, options, says):
    """They are not retried as an outage; values that cannot be parsed are not shown, not even as numbers."""
    pytest.importorskip("obstore")
    key = "-----BEGIN PRIVATE KEY-----hush"
    options = {name: value.replace("%s", key) for name, value in options.items()}

    with pytest.raises(SettingsError, match=says) as raised:
        open_objects(ObjectLocation.from_mapping({"backend": backend, "root": root, "options": options}))

    message = str(raised.value)
    assert "AKIATESTKEY" not in message
    assert "hush" not in message
    assert "45, 45" not in message


def test_no_secret_is_ever_printed(caplog):
    """Not by repr, not by the error of an unreachable server, not by its cause, not in a log."""
    caplog.set_level(logging.DEBUG)
    options = {"endpoint": "http://127.0.0.1:9", "access_key": "AKIATESTKEY", "secret_key": SECRET, "region": "r"}
    location = ObjectLocation.from_url("s3://bucket/p", options)
    pytest.importorskip("obstore")

    with pytest.raises(ObjectsUnavailableError) as raised:
        open_objects(location, clock=ManualClock())

    shown = [repr(location), str(location), str(raised.value), repr(raised.value), repr(connect(location)), caplog.text]
    for text in shown:
        assert SECRET not in text
        assert "AKIATESTKEY" not in text
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_messages_lose_secrets_and_queries():
    """A query of a URL may contain a token."""
    text = f"GET https://host/p?sig=abc&x=1 failed for {SECRET} (abc)"

    assert masked(text, [SECRET, "abc"]) == "GET https://host/p?*** failed for *** (abc)"


def test_a_location_travels_to_another_process():
    """Spark workers get it pickled, including secrets."""
    location = ObjectLocation.from_url("s3://b/p", {"secret_key": SECRET})

    assert pickle.loads(pickle.dumps(location)) == location


@pytest.mark.parametrize("changed", [{"secret_key": "not-the-key"}, {"access_key": "NOBODY"}])
@pytest.mark.parametrize("writable", [True, False])
def test_bad_credentials_are_found_at_open(s3_server: S3Server, changed, writable):
    """Not as a missing object, and not as a transient failure."""
    location = ObjectLocation.from_url(s3_server.url(), s3_server.options(**changed))

    with pytest.raises(AccessDeniedError) as raised:
        open_objects(location, writable=writable)

    assert s3_server.secret_key not in str(raised.value)


def test_a_store_that_loses_objects_is_found_at_open(tmp_path):
    """A store that accepted the probe and does not return it must not get data."""

    class Forgetful(DirectoryObjects):
        def get(self, key, *, size_max):
            self.delete([key])
            return super().get(key, size_max=size_max)

    with pytest.raises(AccessDeniedError, match="does not return it"):
        prove(Forgetful(REAL_FILES, str(tmp_path)), "here", writable=True)


def test_opening_leaves_no_objects(tmp_path):
    """The probe is removed; a directory of the local disk works as any other location."""
    tier = open_objects(f"file://{tmp_path}/cold")

    assert list(tier.list_below("")) == []
    tier.put("a/b", b"x")
    assert open_objects(str(tmp_path / "cold"), writable=False).get("a/b", size_max=1) == b"x"
    tier.close()


def test_a_reader_creates_no_directory(tmp_path):
    """A location with a typing error contains no objects, and appears nowhere."""
    tier = open_objects(str(tmp_path / "cold"), writable=False)
    assert list(tier.list_below("a")) == []
    with pytest.raises(ObjectNotFoundError):
        tier.get("a/b", size_max=1)
    with pytest.raises(UsageError, match="holds no fleet"):
        quiver.read(f"file://{tmp_path}/fleet")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_opening_writes_nothing(tmp_path):
    """A reader checks only read access."""
    faults = FaultObjects(DirectoryObjects(REAL_FILES, str(tmp_path)))

    prove(faults, "here", writable=False)

    assert set(faults.calls) == {"list"}


def test_errors_have_one_base_class():
    """A caller that retries transient errors needs one name."""
    assert issubclass(ObjectsUnavailableError, QuiverError)


@pytest.mark.parametrize("endpoint", ["http://user:${PART}@127.0.0.1:9", "http://127.0.0.1:9/${PART}"])
def test_values_from_the_environment_are_secret(tmp_path, endpoint):
    """In the broker's file, too, and in any option."""
    options = {"endpoint": endpoint, "access_key": "${PART}", "secret_key": "${PART}", "timeout_s": 1}
    settings = TopicSettings.from_mapping(
        {"storage": {"cloud": {"backend": "s3", "root": "s3://b", "options": options}}}, {"PART": SECRET}
    )
    assert settings.cloud is not None
    assert SECRET not in repr(dict(settings.cloud.options))
    with pytest.raises((ObjectsUnavailableError, SettingsError)) as raised:
        TopicStore.open(tmp_path, settings=settings, background=False, clock=ManualClock())
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("url", [f"file://user:{SECRET}@host/x", f"s3://key:{SECRET}@bucket/x"])
def test_a_refused_root_is_not_repeated(url):
    with pytest.raises(SettingsError) as raised:
        ObjectLocation.from_url(url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "endpoint", ["minio", "minio:9000", "http://h ost:1", "http://{x}", "http://[::1", "http://h:99999", "", "http://"]
)
def test_an_endpoint_that_is_not_a_url_is_rejected(endpoint):
    """The client library panics at the first request, which no error handler catches."""
    with pytest.raises(SettingsError, match="'endpoint' is a URL"):
        ObjectLocation.from_url("s3://bucket", {"endpoint": endpoint})
    assert ObjectLocation.from_url("s3://bucket", {"endpoint": "http://[::1]:9000/a"}).options


@pytest.mark.parametrize("key", ["access_key", "secret_key", "session_token", "region"])
def test_a_line_break_after_a_secret_is_reported(key):
    """Secret files end with one, and the client library panics at it, too."""
    with pytest.raises(SettingsError, match=f"'{key}' contains a line break"):
        ObjectLocation.from_url("s3://bucket", {key: f"{SECRET}\n"})


@pytest.mark.parametrize("url", ["s3://b ü/p", "s3://b:99999", "gs://b%2f/x"])
def test_a_bucket_name_with_other_characters_is_rejected(url):
    with pytest.raises(SettingsError, match="the name of a bucket"):
        ObjectLocation.from_url(url)


def test_a_secret_that_looks_like_a_placeholder_is_kept():
    """Placeholders are replaced once."""
    settings = TopicSettings.from_mapping(
        {"cloud": {"backend": "s3", "root": "s3://b", "options": {"secret_key": "${PART}"}}}, {"PART": "a${b}c"}
    )
    assert settings.cloud is not None
    found = ObjectLocation.from_mapping({"backend": "s3", "root": "s3://b", "options": settings.cloud.options})
    assert found.options["secret_access_key"] == "a${b}c"
    assert found.secrets == {"a${b}c"}
