"""
The TLS files of an exporter, read and checked once, when the sender is created.

gRPC accepts any bytes as certificates and then fails each handshake; OpenSSL asks for the password of a key on the
terminal.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from quiver.exporters.settings import ExporterSettings
from quiver.primitives.certificates import pem_bytes, show_certificate, trust_only

__all__ = ["PemFiles", "client_context", "pem_files"]


@dataclass(frozen=True, slots=True)
class PemFiles:
    """The PEM contents of the files; None for a file that is not configured."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None = field(repr=False)


def pem_files(settings: ExporterSettings) -> PemFiles:
    """
    Return the contents of the files of *settings*: certificates and a matching key.

    Raises:
        SettingsError: a file cannot be read or is invalid.
    """
    found = PemFiles(
        _bytes("ca_file", settings.ca_file),
        _bytes("cert_file", settings.cert_file),
        _bytes("key_file", settings.key_file),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, settings)
    return found


def client_context(settings: ExporterSettings) -> ssl.SSLContext:
    """
    Return a TLS context with the authority and the client certificate of *settings*.

    Without an authority, it trusts the system's certificates.

    Raises:
        SettingsError: a file cannot be read or is invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca_file is None:
        context.load_default_certs()
    _load(context, settings)
    return context


def _bytes(what: str, path: str | None) -> bytes | None:
    return None if path is None else pem_bytes(f"tls.{what}", path)


def _load(context: ssl.SSLContext, settings: ExporterSettings) -> None:
    if settings.ca_file is not None:
        trust_only(context, settings.ca_file, what="tls.ca_file")
    if settings.cert_file is not None and settings.key_file is not None:
        show_certificate(context, settings.cert_file, settings.key_file, where="tls.")
