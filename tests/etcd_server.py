"""
A real etcd for one test session, on ports of its own.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3_server import free_ports, stop, wait_for

BUILT_ETCD = Path(__file__).parents[1] / "build" / "bin" / "etcd"


def etcd_binary() -> str | None:
    """The one that `make test-etcd` built, or the one of this machine."""
    return str(BUILT_ETCD) if BUILT_ETCD.exists() else shutil.which("etcd")


def start_etcd(binary: str, folder: Path, client: str, peer: str) -> subprocess.Popen[bytes]:
    """An etcd over *folder*, answering at *client*."""
    command = [
        binary, "--data-dir", str(folder / "data"), "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        "--log-level", "warn",
    ]  # fmt: skip
    log = folder / "etcd.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(f"{client}/health", process, log)
    except BaseException:
        stop(process)
        raise
    return process


def two_urls() -> tuple[str, str]:
    """Where clients and where peers come in."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    return client, peer


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an etcd with nothing in it."""
    binary = etcd_binary()
    if binary is None:
        pytest.skip("no etcd on this machine; make test-etcd builds one")
    client, peer = two_urls()
    process = start_etcd(binary, tmp_path_factory.mktemp("etcd"), client, peer)
    try:
        yield client
    finally:
        stop(process)
