"""TLS, client certificates, tokens and users; credentials are checked before a message is read."""

import base64
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from flight_calls import rows, ticket

import quiver
from certificates import install
from http2_client import Http2Client, message
from quiver.errors import SettingsError
from quiver.receivers.flight.messages import SERVICE
from quiver.receivers.flight.settings import FlightSettings
from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings

TOKEN = [(b"authorization", b"Bearer secret")]


@contextmanager
def connected(port, ca, client_files=None):
    chain, key = (None, None) if client_files is None else (path.read_bytes() for path in client_files)
    options = {"tls_root_certs": ca.cert.read_bytes(), "cert_chain": chain, "private_key": key}
    with fl.connect(f"grpc+tls://localhost:{port}", **{k: v for k, v in options.items() if v is not None}) as client:
        yield client


def count(client, headers=()):
    options = fl.FlightCallOptions(timeout=20, headers=list(headers))
    return client.do_get(ticket(slot="logs"), options).read_all().num_rows


@pytest.fixture
def filled(store):
    store.ingest(quiver.Bundle({"logs": rows(0)}))
    return store


def test_tokens_and_users_are_required(filled, serve, tmp_path, observer):
    """For every method. A token file may change while the server runs."""
    (tmp_path / "tokens").write_text("secret\n")
    auth = AuthSettings(token_file=str(tmp_path / "tokens"), users={"ann": "pass"})
    client = serve(security=SecuritySettings(auth=auth))
    basic = b"Basic " + base64.b64encode(b"ann:pass")
    assert [count(client, TOKEN), count(client, [(b"authorization", basic)])] == [3, 3]
    for headers in ([], [(b"authorization", b"Bearer other")], TOKEN * 2):
        with pytest.raises(fl.FlightUnauthenticatedError, match="missing or unknown"):
            count(client, headers)
    calls = [
        lambda: list(client.list_flights()),
        lambda: client.get_schema(fl.FlightDescriptor.for_path("logs")),
        lambda: client.get_flight_info(fl.FlightDescriptor.for_path("logs")),
        lambda: list(client.do_action("maintain")),
        lambda: _read_put(client),
        lambda: _read_exchange(client),
    ]
    for call in calls:
        with pytest.raises((OSError, pa.ArrowException), match="missing or unknown"):
            call()
    assert observer.total("quiver.receiver.unauthorized_total") == 3 + len(calls)
    (tmp_path / "tokens").write_text("another\n")
    with pytest.raises(fl.FlightUnauthenticatedError):
        count(client, TOKEN)


def _read_put(client):
    """One of the three calls reports the end of the stream, depending on when it arrives."""
    writer, reader = client.do_put(fl.FlightDescriptor.for_path("logs"), rows(0).schema)
    reader.read()
    writer.close()


def _read_exchange(client):
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_path("logs"))
    reader.read_chunk()
    writer.close()


def test_a_message_without_credentials_is_not_read(filled, serve):
    """The call ends although most of its message is missing."""
    serve(security=SecuritySettings(auth=AuthSettings(tokens=("secret",))))
    with Http2Client(serve.port) as client:
        client.call(f"/{SERVICE}/DoGet", message(bytes(10_000_000))[:100])
        assert client.status()[0] == 16


def test_tls_with_client_certificates(filled, serve, authority, other_authority, server_files, client_files):
    cert, key = map(str, server_files)
    serve(security=SecuritySettings(tls=TlsSettings(cert, key, str(authority.cert))))
    with connected(serve.port, authority, client_files) as client:
        assert count(client) == 3
    strangers = other_authority.issue("stranger")
    for ca, files in ((authority, None), (authority, strangers), (other_authority, client_files)):
        with connected(serve.port, ca, files) as client, pytest.raises((fl.FlightUnavailableError, pa.ArrowException)):
            count(client)
    with fl.connect(f"grpc://127.0.0.1:{serve.port}") as client, pytest.raises(pa.ArrowException):
        count(client)


def test_replaced_certificates_are_used(filled, serve, authority, other_authority, tmp_path):
    """For new connections, without a restart."""
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    install(authority.issue("replaced"), files)
    serve(security=SecuritySettings(tls=TlsSettings(*map(str, files)), auth=AuthSettings(tokens=("secret",))))
    with connected(serve.port, authority) as client:
        assert count(client, TOKEN) == 3
    install(other_authority.issue("replaced"), files)
    with connected(serve.port, other_authority) as client:
        assert count(client, TOKEN) == 3
        with pytest.raises(fl.FlightUnauthenticatedError):
            count(client)


def test_a_public_address_needs_protection():
    with pytest.raises(SettingsError, match="it needs tls and auth"):
        FlightSettings(listening_addr="0.0.0.0:0")
    FlightSettings(listening_addr="0.0.0.0:0", security=SecuritySettings(insecure=True))
    tls = TlsSettings("a", "b", "c")
    FlightSettings(listening_addr="0.0.0.0:0", security=SecuritySettings(tls=tls))
    with pytest.raises(SettingsError, match="message_bytes must be at least 1"):
        FlightSettings(message_bytes=0)
    with pytest.raises(SettingsError, match="inflated_bytes_max must not be less"):
        FlightSettings(inflated_bytes_max=5)
