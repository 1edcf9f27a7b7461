"""Real handshakes between all our receivers and exporters, with each kind of invalid certificate.

Then nothing is sent or stored, and clients with valid certificates are served.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_store import log_request
from qwp_clients import message, send
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import quiver
from certificates import Authority
from quiver.errors import QuiverError
from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.settings import ExporterSettings
from quiver.qwp import Sender
from quiver.qwp.wire.responses import Ok
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.qwp.receiver import QwpReceiver
from quiver.receivers.qwp.settings import QwpSettings
from quiver.receivers.security import SecuritySettings, TlsSettings
from quiver.receivers.settings import OtlpSettings

EXPORTERS = {
    "otlp over grpc": (OtlpGrpcReceiver, OtlpGrpcSender), "otlp over http": (OtlpHttpReceiver, OtlpHttpSender),
    "otap": (OtapGrpcReceiver, OtapGrpcSender),
}  # fmt: skip


@dataclass(frozen=True)
class Files:
    """The certificates and trust of the server and of the client."""

    server: tuple[Path, Path]
    client_ca: Path | None
    trusted: Path
    client: tuple[Path, Path] | None


@dataclass(frozen=True)
class Certificates:
    """Valid certificates, and one for each kind of error."""

    ours: Authority
    theirs: Authority
    server: tuple[Path, Path]
    client: tuple[Path, Path]

    def right(self) -> Files:
        """Both sides present what the other trusts."""
        return Files(self.server, self.ours.cert, self.ours.cert, self.client)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Certificates:
    ours = Authority(tmp_path_factory.mktemp("ours"), "ours")
    theirs = Authority(tmp_path_factory.mktemp("theirs"), "theirs")
    return Certificates(ours, theirs, ours.issue("good-server"), ours.issue("good-client"))


WRONG = {
    "the client trusts another authority": lambda made, right: replace(right, trusted=made.theirs.cert),
    "the server shows one of another authority": lambda made, right: replace(right, server=made.theirs.issue("server")),
    "the server's has expired": lambda made, right: replace(right, server=made.ours.issue("late-server", days=-1)),
    "the server's is for another host": lambda made, right: replace(
        right, server=made.ours.issue("elsewhere", host="elsewhere.example")
    ),
    "the server trusts another authority": lambda made, right: replace(right, client_ca=made.theirs.cert),
    "the client shows one of another authority": lambda made, right: replace(right, client=made.theirs.issue("client")),
    "the client's has expired": lambda made, right: replace(right, client=made.ours.issue("late-client", days=-1)),
    "the client shows none": lambda _, right: replace(right, client=None),
}
OF_SERVERS = [
    name for name in WRONG if name.startswith("the server's") or name == "the client trusts another authority"
]


def security(files: Files) -> SecuritySettings:
    ca = None if files.client_ca is None else str(files.client_ca)
    return SecuritySettings(tls=TlsSettings(*map(str, files.server), ca))


def is_confirmed(protocol: str, port: int, files: Files) -> bool:
    """Send one request with our exporter; return whether it was confirmed."""
    cert, key = (None, None) if files.client is None else map(str, files.client)
    settings = ExporterSettings(
        f"https://127.0.0.1:{port}", protocol="http" if "http" in protocol else "grpc", timeout_s=5.0,
        ca_file=str(files.trusted), cert_file=cert, key_file=key,
    )  # fmt: skip
    sender = EXPORTERS[protocol][1](settings)
    try:
        return sender.send("logs", log_request("hello")).outcome == "confirmed"
    finally:
        sender.close()


def stored(store) -> int:
    return len(list(quiver.read(store.path).bundles()))


@pytest.mark.parametrize("protocol", EXPORTERS)
@pytest.mark.parametrize("wrong", WRONG)
def test_an_exporter_needs_valid_certificates_to_reach_a_receiver(tmp_path, made, protocol, wrong):
    """The client keeps a request while one certificate is invalid, and sends it once all are valid."""
    files = WRONG[wrong](made, made.right())
    settings = OtlpSettings(listening_addr="127.0.0.1:0", security=security(files))
    with quiver.open(tmp_path / "buffer", background=False) as store:
        with EXPORTERS[protocol][0](store, settings) as receiver:
            assert not is_confirmed(protocol, receiver.port, files)
            assert stored(store) == 0
            served = replace(files, trusted=made.ours.cert, client=made.client)
            is_right = files.server == made.server and files.client_ca == made.ours.cert
            assert is_confirmed(protocol, receiver.port, served) == is_right
        with EXPORTERS[protocol][0](store, replace(settings, security=security(made.right()))) as receiver:
            assert is_confirmed(protocol, receiver.port, made.right())


@pytest.mark.parametrize("protocol", EXPORTERS)
def test_plain_text_and_tls_do_not_connect(tmp_path, made, protocol):
    """An exporter without TLS at a port with it, and vice versa: nothing is confirmed."""
    right = made.right()
    with quiver.open(tmp_path / "buffer", background=False) as store:
        settings = OtlpSettings(listening_addr="127.0.0.1:0", security=security(right))
        with EXPORTERS[protocol][0](store, settings) as receiver:
            plain = ExporterSettings(
                f"http://127.0.0.1:{receiver.port}", protocol="http" if "http" in protocol else "grpc", timeout_s=5.0
            )
            sender = EXPORTERS[protocol][1](plain)
            assert sender.send("logs", log_request("hello")).outcome != "confirmed"
            sender.close()
        with EXPORTERS[protocol][0](store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver:
            assert not is_confirmed(protocol, receiver.port, right)
        assert stored(store) == 0


def is_taken(port: int, files: Files) -> bool:
    """Send one QWP message with a plain client; return whether it was accepted."""
    context = ssl.create_default_context(cafile=str(files.trusted))
    if files.client is not None:
        context.load_cert_chain(*map(str, files.client))
    try:
        with connect(f"wss://127.0.0.1:{port}/write/v4", ssl=context, compression=None, close_timeout=2) as connection:
            return isinstance(send(connection, message(1)), Ok)
    except (ssl.SSLError, ConnectionError, WebSocketException):
        return False


@pytest.mark.parametrize("wrong", WRONG)
def test_a_qwp_client_needs_valid_certificates(tmp_path, made, wrong):
    """As for OTLP and OTAP, with client certificates."""
    files = WRONG[wrong](made, made.right())
    with quiver.open(tmp_path / "buffer", background=False) as store:
        settings = QwpSettings(listening_addr="127.0.0.1:0", security=security(files))
        with QwpReceiver(store, settings) as receiver:
            assert not is_taken(receiver.port, files)
            assert stored(store) == 0
        with QwpReceiver(store, replace(settings, security=security(made.right()))) as receiver:
            assert is_taken(receiver.port, made.right())


@pytest.mark.parametrize("wrong", [*OF_SERVERS, None])
def test_our_qwp_sender_accepts_only_a_valid_server_certificate(tmp_path, made, wrong):
    """
    It presents no certificate, and accepts only a server whose certificate is signed by its roots, for this host and
    day.
    """
    right = replace(made.right(), client_ca=None, client=None)
    files = right if wrong is None else WRONG[wrong](made, right)
    with quiver.open(tmp_path / "buffer", background=False) as store:
        settings = QwpSettings(listening_addr="127.0.0.1:0", security=security(files))
        with QwpReceiver(store, settings) as receiver:
            conf = f"wss::addr=127.0.0.1:{receiver.port};tls_roots={files.trusted};"
            if wrong is None:
                with Sender.from_conf(conf) as sender:
                    sender.row("t", columns={"v": 1}, at=1)
                    assert sender.wait_until_confirmed(sender.flush(), 20)
            else:
                with pytest.raises(QuiverError, match="certificate"):
                    Sender.from_conf(conf)
        assert stored(store) == (wrong is None)
