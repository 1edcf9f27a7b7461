"""Trust stores with a password: those written by `keytool` are read, and their certificates are trusted."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from qwp_server import QwpServer

from certificates import Authority
from quiver.errors import SettingsError
from quiver.primitives.scan import Damage, Frame
from quiver.qwp import Sender, SenderSettings
from quiver.qwp.connection.java_keystore import decode_java_keystore
from quiver.qwp.connection.trust_store import trusted_certificates

pytestmark = pytest.mark.usefixtures("quiet")

# keytool -importcert -noprompt -alias root -file root.pem -keystore trust.jks -storetype JKS -storepass changeit
BY_KEYTOOL = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAgAEcm9vdAAAAaIAGCqeAAVYLjUwOQAAAXkwggF1MIIBG6ADAgECAhQ2duzxxbqaYwOdXUvXZG4wMl950DAKBggq"
    "hkjOPQQDAjAPMQ0wCwYDVQQDDARyb290MCAXDTI2MTEyMTIxNTE1M1oYDzIxMjYxMDI4MjE1MTUzWjAPMQ0wCwYDVQQDDARyb290MFkwEwYH"
    "KoZIzj0CAQYIKoZIzj0DAQcDQgAEzL2/QvuayB4h1lVgjJV+eTbAsohMOIL1fKA2JXriUezmW/FeKfD7qIMiUvo7NM55C1p7WSWo9BqraoBW"
    "LPNkV6NTMFEwHQYDVR0OBBYEFAfkMJjzT9v/aunxHdkFb9egJO+jMB8GA1UdIwQYMBaAFAfkMJjzT9v/aunxHdkFb9egJO+jMA8GA1UdEwEB"
    "/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAI4jt0Ppmh8Qi9EuN+00VK8DcCsDH4b1tXLGS/FYAjcwAiA+4c2Y2tB3/1ujn4DRMIKZOSBe"
    "/EwhbBe+IfobnEaA/ujizOG3ljLWs0fi8+OM2zovR8Tl"
)
PASSWORD = "changeit"


def _store(*entries: bytes, password: str = PASSWORD, version: int = 2, count: int | None = None) -> bytes:
    data = struct.pack(">III", 0xFEEDFEED, version, len(entries) if count is None else count) + b"".join(entries)
    return data + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + data).digest()


def _certificate(der: bytes, version: int = 2) -> bytes:
    kind = struct.pack(">H", 5) + b"X.509" if version == 2 else b""
    return kind + struct.pack(">I", len(der)) + der


def _trusted(der: bytes, version: int = 2) -> bytes:
    return struct.pack(">IH", 2, 2) + b"ca" + bytes(8) + _certificate(der, version)


def _der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_a_keystore_from_keytool_is_read():
    """One certificate, unchanged."""
    answer = decode_java_keystore(memoryview(BY_KEYTOOL), PASSWORD)
    assert isinstance(answer, Frame)
    (der,) = answer.value
    assert der in BY_KEYTOOL
    context = ssl.create_default_context(cadata=der)
    assert [dict(one[0] for one in found["subject"]) for found in context.get_ca_certs()] == [{"commonName": "root"}]


def test_only_trusted_entries_count():
    """The certificates of a key are not roots; version 1 has no types."""
    key = struct.pack(">IH", 1, 1) + b"k" + bytes(8) + struct.pack(">I", 3) + b"key"
    key += struct.pack(">I", 2) + _certificate(b"mine") + _certificate(b"above")
    answer = decode_java_keystore(memoryview(_store(_trusted(b"one"), key, _trusted(b"two"))), PASSWORD)
    assert isinstance(answer, Frame)
    assert answer.value == [b"one", b"two"]
    answer = decode_java_keystore(memoryview(_store(_trusted(b"old", 1), version=1)), PASSWORD)
    assert isinstance(answer, Frame)
    assert answer.value == [b"old"]


def test_a_wrong_password_and_damage_are_reported():
    """The checksum covers the file; even with a valid one, lengths beyond the end are damage."""
    answer = decode_java_keystore(memoryview(BY_KEYTOOL), "other")
    assert isinstance(answer, Damage)
    assert "password is wrong" in answer.reason
    for end in range(len(BY_KEYTOOL)):
        assert not isinstance(decode_java_keystore(memoryview(BY_KEYTOOL)[:end], PASSWORD), Frame)
    for at in range(len(BY_KEYTOOL)):
        flipped = bytearray(BY_KEYTOOL)
        flipped[at] ^= 0x41
        assert isinstance(decode_java_keystore(memoryview(flipped), PASSWORD), Damage)
    for bad in (
        _store(_trusted(b"x"), count=2),
        _store(_trusted(b"x")[:-1]),
        _store(struct.pack(">IH", 3, 0) + bytes(8)),
        _store(version=3),
    ):
        assert isinstance(decode_java_keystore(memoryview(bad), PASSWORD), Damage)


def test_a_server_with_a_trusted_certificate_is_accepted(tmp_path):
    """With the trust store the connection succeeds; without its password it is not a valid roots file."""
    authority = Authority(tmp_path, "root")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    trust = tmp_path / "trust.jks"
    trust.write_bytes(_store(_trusted(_der(authority.cert))))
    with QwpServer(tls=context) as server:
        keys = f"wss::addr=localhost:{server.port};tls_roots={trust};"
        with Sender.from_conf(f"{keys}tls_roots_password={PASSWORD};") as sender:
            sender.row("t", columns={"v": 1})
            assert sender.wait_until_confirmed(sender.flush(), 20)
        with pytest.raises(SettingsError, match="password is wrong"):
            Sender.from_conf(f"{keys}tls_roots_password=wrong;")
        with pytest.raises(SettingsError, match="a trust store needs tls_roots_password"):
            Sender.from_conf(keys)


def test_pkcs12_without_its_package_is_reported(tmp_path, monkeypatch):
    """The error names the package to install, and the alternative."""
    path = tmp_path / "trust.p12"
    path.write_bytes(b"\x30\x82")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [one for one in sys.modules if one.startswith("cryptography.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SettingsError, match="`cryptography`"):
        trusted_certificates(str(path), PASSWORD)


def test_pkcs12_is_read_with_that_package(tmp_path):
    """The certificates of the file; a wrong password is reported."""
    pytest.importorskip("cryptography")
    authority = Authority(tmp_path, "root")
    path = tmp_path / "trust.p12"
    subprocess.run(
        ["openssl", "pkcs12", "-export", "-nokeys", "-in", authority.cert, "-out", path, "-passout", "pass:changeit"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert trusted_certificates(str(path), PASSWORD) == _der(authority.cert)
    with pytest.raises(SettingsError, match="password"):
        trusted_certificates(str(path), "wrong")


def test_other_files_are_refused(tmp_path):
    """A PEM file has no password; a store without certificates trusts no server."""
    pem = tmp_path / "roots.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(SettingsError, match="remove tls_roots_password for a PEM file"):
        trusted_certificates(str(pem), PASSWORD)
    empty = tmp_path / "empty.jks"
    empty.write_bytes(_store())
    with pytest.raises(SettingsError, match="no trusted certificate"):
        trusted_certificates(str(empty), PASSWORD)
    with pytest.raises(SettingsError, match="tls_roots_password needs tls_roots"):
        SenderSettings.from_conf("wss::addr=h:1;tls_roots_password=x;")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["nothing", "text", "pipe", "directory"])
def test_invalid_root_files_are_named(tmp_path, what):
    """The system's own error does not name the file, and it would block on a pipe."""
    roots = tmp_path / "roots.pem"
    if what == "text":
        roots.write_text("no certificate")
    elif what == "pipe":
        os.mkfifo(roots)
    elif what == "directory":
        roots.mkdir()
    words = (
        f"{re.escape(str(roots))} has no PEM certificates" if what == "text" else f"cannot read {re.escape(str(roots))}"
    )
    with pytest.raises(SettingsError, match=f"tls_roots: {words}"):
        Sender.from_conf(f"wss::addr=127.0.0.1:1;tls_roots={roots};")
