"""Certificates shared by the TLS tests of both senders, because creating them is slow."""

import pytest

from certificates import Authority


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Paths of PEM files: ca, server, server_key, client, client_key."""
    authority = Authority(tmp_path_factory.mktemp("certificates"), "ca")
    found = {"ca": str(authority.cert)}
    for name in ("server", "client"):
        cert, key = authority.issue(name)
        found |= {name: str(cert), f"{name}_key": str(key)}
    return found
