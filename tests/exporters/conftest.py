"""Certificates that the TLS tests of both senders share; making them takes a while."""

import pytest

from certificates import Authority


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """ca, server, server_key, client, client_key: paths of PEM files."""
    authority = Authority(tmp_path_factory.mktemp("certificates"), "ca")
    found = {"ca": str(authority.cert)}
    for name in ("server", "client"):
        cert, key = authority.issue(name)
        found |= {name: str(cert), f"{name}_key": str(key)}
    return found
