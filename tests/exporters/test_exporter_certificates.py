"""Invalid certificate files are reported by name when a sender is created."""

import subprocess

import pytest

from quiver.errors import SettingsError
from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.settings import ExporterSettings

SENDERS = {"otlp over grpc": OtlpGrpcSender, "otlp over http": OtlpHttpSender, "otap": OtapGrpcSender}


def settings_of(sender, **files):
    protocol = "http" if sender is OtlpHttpSender else "grpc"
    return ExporterSettings("https://127.0.0.1:1", protocol=protocol, **files)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"ca_file": "text"}, r"tls\.ca_file: \S+text has no certificates"),
        ({"ca_file": "empty"}, r"tls\.ca_file: \S+empty has no certificates"),
        ({"ca_file": "none"}, r"tls\.ca_file: cannot read \S+none: No such file"),
        ({"ca_file": "."}, r"tls\.ca_file: cannot read \S+: Is a directory"),
        ({"cert_file": "none", "key_file": "text"}, r"tls\.cert_file: cannot read \S+none"),
        (
            {"cert_file": "text", "key_file": "text"},
            r"tls\.cert_file, tls\.key_file: \S+ and \S+ are not a certificate",
        ),
        ({"cert_file": "client", "key_file": "server_key"}, "are not a certificate and its unencrypted key"),
        ({"cert_file": "client", "key_file": "locked"}, "are not a certificate and its unencrypted key"),
    ],
)
@pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
def test_invalid_certificate_files_are_refused(tmp_path, certificates, sender, files, said):
    """gRPC itself accepts any bytes and then fails each handshake; OpenSSL asks for a password and waits."""
    (tmp_path / "text").write_text("no certificate\n")
    (tmp_path / "empty").write_bytes(b"")
    locked = ("openssl", "ec", "-in", certificates["client_key"], "-aes128", "-passout", "pass:secret")
    subprocess.run([*locked, "-out", str(tmp_path / "locked")], check=True, capture_output=True)
    paths = {what: certificates.get(name, str(tmp_path / name)) for what, name in files.items()}

    with pytest.raises(SettingsError, match=said):
        sender(settings_of(sender, **paths))


@pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
def test_text_between_certificates_is_ignored(tmp_path, certificates, sender):
    """A bundle of authorities names each of them, in any language."""
    with open(certificates["ca"], encoding="ascii") as file:
        (tmp_path / "bundle").write_text(f"# Główny urząd\n{file.read()}\n", "utf-8")
    own = {"cert_file": certificates["client"], "key_file": certificates["client_key"]}
    sender(settings_of(sender, ca_file=str(tmp_path / "bundle"), **own)).close()
