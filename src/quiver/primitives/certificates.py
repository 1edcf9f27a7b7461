"""Certificate files: read, checked, and loaded into an SSL context."""

from __future__ import annotations

import os.path
import ssl

from quiver.errors import SettingsError
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["pem_bytes", "show_certificate", "trust_only"]

_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Enough for thousands of authorities."""


def pem_bytes(what: str, path: str) -> bytes:
    """
    Return the bytes of the file *path*.

    Raises:
        SettingsError: it cannot be read; *what* names the setting.
    """
    try:
        # Certificates are often symbolic links, so that they can be replaced atomically, and may have several levels.
        return REAL_FILES.read_all(os.path.realpath(path), size_max=_FILE_BYTES_MAX)
    except OSError as error:
        raise SettingsError(f"{what}: cannot read {path}: {error.strerror}") from error


def trust_only(context: ssl.SSLContext, path: str, *, what: str) -> bytes:
    """
    Make *context* trust the certificates in *path*; return the bytes of the file.

    Raises:
        SettingsError: it cannot be read, or has other contents; *what* names the setting.
    """
    data = pem_bytes(what, path)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{what}: {path} has no certificates in PEM") from error
    return data


def show_certificate(context: ssl.SSLContext, cert_file: str, key_file: str, *, where: str) -> None:
    """
    Make *context* present the certificate in *cert_file*, with its key in *key_file*.

    Raises:
        SettingsError: they are not a certificate and its unencrypted key; *where* precedes the names of the settings.
    """
    for name, path in (("cert_file", cert_file), ("key_file", key_file)):
        pem_bytes(f"{where}{name}", path)
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = (
            error.reason if isinstance(error, ssl.SSLError) else error.strerror
        ) or "one is not PEM, or is encrypted"
        what = f"{where}cert_file, {where}key_file: {cert_file} and {key_file}"
        raise SettingsError(f"{what} are not a certificate and its unencrypted key: {reason}") from error
