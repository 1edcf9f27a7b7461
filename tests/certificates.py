"""A certificate authority of our own, made with the `openssl` command: for servers and clients in tests."""

import subprocess
from pathlib import Path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


class Authority:
    """`cert` is its certificate; `issue` makes others, signed by it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.cert = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        _key(self.key)
        # Python 3.13 and later require the key usage.
        options = ("-subj", f"/CN={name}", "-days", 2, "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl("req", "-x509", "-new", "-key", self.key, *options, "-out", self.cert)

    def issue(
        self, name: str, *, subject: str | None = None, days: int = 2, hosts: str = "IP:127.0.0.1,DNS:localhost"
    ) -> tuple[Path, Path]:
        """Return the files of a certificate for *hosts* and of its key. With negative *days* it has expired."""
        cert, key, request, more = (
            self.directory / f"{self.name}-{name}.{end}" for end in ("pem", "key", "csr", "ext")
        )
        _key(key)
        more.write_text(f"subjectAltName={hosts}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
        _openssl("req", "-new", "-key", key, "-subj", subject or f"/CN={name}", "-out", request)
        signed_by = ("-CA", self.cert, "-CAkey", self.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", days, "-extfile", more, "-out", cert)
        return cert, key


def install(source: tuple[Path, Path], target: tuple[Path, Path]) -> None:
    """Put a certificate and its key in place of others, one file after the other."""
    for new, old in zip(source, target, strict=True):
        beside = old.with_suffix(".new")
        beside.write_bytes(new.read_bytes())
        beside.rename(old)
