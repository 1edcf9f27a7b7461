"""
A certificate authority of one's own, with a certificate for 127.0.0.1 and one for a client.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

_DAYS = ["-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


def make_certificates(directory: Path) -> dict[str, str]:
    """ca, server, server_key, client, client_key: paths of PEM files."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")

    def run(*arguments):
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True, timeout=60)

    authority = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    run("req", "-x509", *_DAYS, "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.pem", *authority)
    for name in ("server", "client"):
        run("req", *_DAYS[2:], "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (directory / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return {
        "ca": str(directory / "ca.pem"),
        **{name: str(directory / f"{name}.pem") for name in ("server", "client")},
        **{f"{name}_key": str(directory / f"{name}.key") for name in ("server", "client")},
    }
