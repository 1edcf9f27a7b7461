"""
The certificate files of an exporter, read once and checked: what is wrong with them is said when the sender is made.

gRPC itself would take any bytes for certificates, and then fail each handshake; OpenSSL would ask for the password of a
key on the terminal.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from quiver.errors import SettingsInvalid
from quiver.exporters.settings import ExporterSettings

__all__ = ["PemFiles", "client_context", "pem_files"]


@dataclass(frozen=True, slots=True)
class PemFiles:
    """
    What the files hold, in PEM; None where no file was named.
    """

    ca: bytes | None
    cert: bytes | None
    key: bytes | None = field(repr=False)


def pem_files(settings: ExporterSettings) -> PemFiles:
    """
    Return what the files of *settings* hold, which certificates and a key that fits are.

    Raises:
        SettingsInvalid: a file cannot be read, or holds something else.
    """
    found = PemFiles(
        _bytes("ca_file", settings.ca_file),
        _bytes("cert_file", settings.cert_file),
        _bytes("key_file", settings.key_file),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, settings, found)
    return found


def client_context(settings: ExporterSettings) -> ssl.SSLContext:
    """
    Return a context that trusts, and shows, what *settings* say: the machine's own list when they name no authority.

    Raises:
        SettingsInvalid: a file cannot be read, or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca_file is None:
        context.load_default_certs()
    _load(context, settings, pem_files(settings))
    return context


def _bytes(what: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsInvalid(f"tls.{what}: cannot read {path}: {error.strerror}") from error


def _load(context: ssl.SSLContext, settings: ExporterSettings, found: PemFiles) -> None:
    if found.ca is not None:
        try:
            context.load_verify_locations(cadata=found.ca.decode("ascii", "ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise SettingsInvalid(f"tls.ca_file: {settings.ca_file} holds no certificates in PEM") from error
    if settings.cert_file is not None:
        try:
            # Without a password at hand OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            where = f"tls.cert_file, tls.key_file: {settings.cert_file} and {settings.key_file}"
            raise SettingsInvalid(f"{where} are no certificate and its unencrypted key: {reason}") from error
