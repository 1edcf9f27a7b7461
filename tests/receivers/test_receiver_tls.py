"""
OpenTelemetry SDKs over TLS are accepted with the right certificates and credentials, and rejected otherwise, before and
after the files are replaced.
"""

import contextlib
import socket
import ssl

import grpc
import pytest
from fake_store import log_request
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

from certificates import install
from quiver.errors import SettingsError
from quiver.observe import InMemoryObserver
from quiver.otap import decode_requests
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import PROTOBUF, OtlpHttpReceiver
from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings
from quiver.receivers.settings import OtlpSettings

RECEIVERS = {"grpc": OtlpGrpcReceiver, "http": OtlpHttpReceiver}


@pytest.fixture(autouse=True)
def _no_other_trust(monkeypatch):
    """`requests` would trust these instead of the exporter's configuration."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=list(RECEIVERS))
def protocol(request):
    return request.param


def settings(server_files, *, client_ca=None, auth=None, **limits) -> OtlpSettings:
    cert, key = map(str, server_files)
    tls = TlsSettings(cert, key, None if client_ca is None else str(client_ca))
    return OtlpSettings(listening_addr="127.0.0.1:0", security=SecuritySettings(tls=tls, auth=auth), **limits)


def exporter(protocol, receiver, ca, *, client=None, headers=None):
    """Return the SDK's exporter, which trusts *ca*."""
    if protocol == "grpc":
        files = [None, None] if client is None else [client[1].read_bytes(), client[0].read_bytes()]
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), *files)
        return GrpcLogs(f"https://127.0.0.1:{receiver.port}", credentials=credentials, headers=headers, timeout=5)
    cert, key = client or (None, None)
    return HttpLogs(
        f"https://127.0.0.1:{receiver.port}/v1/logs",
        certificate_file=str(ca),
        client_certificate_file=cert and str(cert),
        client_key_file=key and str(key),
        headers=headers,
        timeout=5,
    )


def emit(sender, body: str) -> None:
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(sender))
    provider.get_logger("x").emit(LogRecord(body=body, timestamp=1, observed_timestamp=1))
    provider.shutdown()


def bodies(store) -> list[str]:
    rows = decode_requests([data for _, data in store.kept], "logs").batch.to_pylist()
    return [row["body"]["string_value"] for row in rows]


def export_raw(protocol, receiver, ca, *, client=None, authorization=None) -> str:
    """Send one request; return "" if it was accepted, otherwise the error."""
    metadata = [] if authorization is None else [("authorization", authorization)]
    if protocol == "grpc":
        files = [None, None] if client is None else [client[1].read_bytes(), client[0].read_bytes()]
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), *files)
        with grpc.secure_channel(f"127.0.0.1:{receiver.port}", credentials) as channel:
            try:
                channel.unary_unary(f"/{SERVICES['logs']}/Export")(log_request(), timeout=10, metadata=metadata)
            except grpc.RpcError as error:
                return error.code().name
        return ""
    context = ssl.create_default_context(cafile=str(ca))
    if client is not None:
        context.load_cert_chain(*client)
    head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nConnection: close\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in metadata)
    try:
        with (
            socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(f"{head}Content-Length: {len(log_request())}\r\n\r\n".encode() + log_request())
            answer = secure.recv(4096)
    except (ssl.SSLError, ConnectionError):
        return "UNAVAILABLE"
    status = answer.split(b" ")[1].decode() if answer else "UNAVAILABLE"
    return {"200": "", "401": "UNAUTHENTICATED"}.get(status, status)


def test_an_sdk_that_trusts_our_authority_is_accepted(protocol, store, authority, server_files):
    with RECEIVERS[protocol](store, settings(server_files)) as receiver:
        emit(exporter(protocol, receiver, authority.cert), "secret")
    assert bodies(store) == ["secret"]


def test_an_sdk_sends_its_certificate_and_its_token(protocol, store, authority, server_files, client_files):
    both = settings(server_files, client_ca=authority.cert, auth=AuthSettings(tokens=("t0ken",)))
    with RECEIVERS[protocol](store, both) as receiver:
        headers = {"authorization": "Bearer t0ken"}
        emit(exporter(protocol, receiver, authority.cert, client=client_files, headers=headers), "known")
    assert bodies(store) == ["known"]


@pytest.mark.parametrize("shown", [None, "Bearer other", "Basic dDBrZW46", ""])
def test_unknown_clients_are_rejected_before_their_request_is_read(protocol, store, authority, server_files, shown):
    observer = InMemoryObserver()
    closed = settings(server_files, auth=AuthSettings(tokens=("t0ken",)))
    with RECEIVERS[protocol](store, closed, observer=observer) as receiver:
        assert export_raw(protocol, receiver, authority.cert, authorization=shown) == "UNAUTHENTICATED"
        assert export_raw(protocol, receiver, authority.cert, authorization="Bearer t0ken") == ""
    assert len(store.kept) == 1
    assert observer.total("quiver.receiver.unauthorized_total") == 1
    assert observer.total("quiver.receiver.requests_total") == 1


def test_clients_without_a_trusted_certificate_are_rejected(
    protocol, store, authority, other_authority, server_files, client_files
):
    mutual = settings(server_files, client_ca=authority.cert)
    with RECEIVERS[protocol](store, mutual) as receiver:
        assert export_raw(protocol, receiver, authority.cert) == "UNAVAILABLE"
        stranger = other_authority.issue("stranger")
        assert export_raw(protocol, receiver, authority.cert, client=stranger) == "UNAVAILABLE"
        assert export_raw(protocol, receiver, authority.cert, client=client_files) == ""
    assert len(store.kept) == 1


def test_certificates_are_replaced_while_the_port_is_open(
    protocol, store, tmp_path, authority, other_authority, server_files
):
    target = (tmp_path / "cert.pem", tmp_path / "key.pem")
    install(server_files, target)
    with RECEIVERS[protocol](store, settings(target)) as receiver:
        assert export_raw(protocol, receiver, authority.cert) == ""
        renewed = other_authority.issue("server")
        install(renewed[:1], target[:1])
        # The new certificate with the old key: the old pair stays in use.
        assert export_raw(protocol, receiver, authority.cert) == ""
        install(renewed[1:], target[1:])
        assert export_raw(protocol, receiver, other_authority.cert) == ""
        assert export_raw(protocol, receiver, authority.cert) == "UNAVAILABLE"
    assert len(store.kept) == 3


def test_trust_in_clients_is_replaced_while_the_port_is_open(
    protocol, store, tmp_path, authority, other_authority, server_files, client_files
):
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.cert.read_bytes())
    with RECEIVERS[protocol](store, settings(server_files, client_ca=trusted)) as receiver:
        assert export_raw(protocol, receiver, authority.cert, client=client_files) == ""
        trusted.write_bytes(other_authority.cert.read_bytes())
        assert export_raw(protocol, receiver, authority.cert, client=client_files) == "UNAVAILABLE"
        successor = other_authority.issue("successor")
        assert export_raw(protocol, receiver, authority.cert, client=successor) == ""


def test_plain_text_on_a_tls_port_gets_nothing(protocol, store, server_files):
    with RECEIVERS[protocol](store, settings(server_files)) as receiver:
        answer = b""
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as plain:
            plain.sendall(b"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            with plain.makefile("rb") as stream, contextlib.suppress(ConnectionError):
                answer += stream.read()
        assert b"HTTP" not in answer
    assert store.kept == []


def test_an_endless_handshake_is_ended_and_blocks_no_others(protocol, store, authority, server_files):
    impatient = settings(server_files, head_timeout_s=0.5)
    with RECEIVERS[protocol](store, impatient) as receiver:
        hellos = [socket.create_connection(("127.0.0.1", receiver.port), timeout=10) for _ in range(20)]
        for half in hellos:
            half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the head of a ClientHello of 512 bytes
        assert export_raw(protocol, receiver, authority.cert) == ""
        for half in hellos:
            with half:
                assert half.recv(100) == b""
        assert export_raw(protocol, receiver, authority.cert) == ""


def test_unreadable_certificates_prevent_the_start(protocol, store, tmp_path):
    with pytest.raises(SettingsError, match="cannot read"):
        RECEIVERS[protocol](store, settings((tmp_path / "cert.pem", tmp_path / "key.pem")))
