"""
Trust stores with a password, Java's own format (JKS) or PKCS#12, as QuestDB's clients accept them.

Without a password, roots are PEM files, which `ssl` reads itself.
"""

from __future__ import annotations

import importlib
from typing import Any

from quiver.errors import SettingsError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage, Frame
from quiver.qwp.connection.java_keystore import JAVA_KEYSTORE_MAGIC, decode_java_keystore

__all__ = ["trusted_certificates"]

_BYTES_MAX = 64 << 20
_DER_SEQUENCE = b"\x30"


def trusted_certificates(path: str, password: str, *, fs: FileSystem = REAL_FILES) -> bytes:
    """
    Return the certificates that the trust store *path* trusts, in DER, concatenated.

    Raises:
        SettingsError: the file is not a trust store, has no certificate, or has another password; or it is a PKCS#12
            file and the package `cryptography`, which reads those, is not installed.
        OSError: the file cannot be read.
    """
    data = fs.read_all(path, size_max=_BYTES_MAX)
    if data.startswith(JAVA_KEYSTORE_MAGIC):
        found = _java(path, data, password)
    elif data.startswith(_DER_SEQUENCE):
        found = _pkcs12(path, data, password)
    else:
        raise SettingsError(
            f"tls_roots: {path} is neither a Java key store nor PKCS#12; remove tls_roots_password for a PEM file"
        )
    if not found:
        raise SettingsError(f"tls_roots: {path} has no trusted certificate")
    return b"".join(found)


def _java(path: str, data: bytes, password: str) -> list[bytes]:
    answer = decode_java_keystore(memoryview(data), password)
    if isinstance(answer, Frame):
        return answer.value
    reason = answer.reason if isinstance(answer, Damage) else f"{answer.missing} bytes are missing"
    raise SettingsError(f"tls_roots: {path}: {reason}")


def _pkcs12(path: str, data: bytes, password: str) -> list[bytes]:
    try:
        # Its certificates are encrypted with one of several ciphers, so we use an existing implementation.
        pkcs12: Any = importlib.import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        raise SettingsError(
            f"tls_roots: {path} is a PKCS#12 file, which needs the package `cryptography`: install it, or convert the "
            "file to PEM and remove tls_roots_password"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode())
    except ValueError as error:
        raise SettingsError(f"tls_roots: {path}: {error}") from None
    der = serialization.Encoding.DER
    return [one.certificate.public_bytes(der) for one in store.additional_certs]
