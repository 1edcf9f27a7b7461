"""Real etcd servers for one test session: an open one, and one with TLS, client certificates and users."""

from __future__ import annotations

import base64
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from certificates import Authority
from ports import free_ports
from s3_server import stop, wait_for

BUILT_ETCD = Path(__file__).parents[1] / "build" / "bin" / "etcd"


def etcd_binary() -> str | None:
    """Return the program that `make test-etcd` built, or the installed one."""
    return str(BUILT_ETCD) if BUILT_ETCD.exists() else shutil.which("etcd")


def start_etcd(
    binary: str, folder: Path, client: str, peer: str, *more: str, health: str | None = None
) -> subprocess.Popen[bytes]:
    """Run an etcd over *folder* until it responds at *client*, or at *health* if only that is plain http."""
    command = [
        binary, "--data-dir", str(folder / "data"), "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        "--log-level", "warn", *more,
    ]  # fmt: skip
    log = folder / "etcd.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(f"{health or client}/health", process, log)
    except BaseException:
        stop(process)
        raise
    return process


def two_urls() -> tuple[str, str]:
    """The URLs for clients and for peers."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    return client, peer


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty etcd."""
    binary = etcd_binary()
    if binary is None:
        pytest.skip("no etcd on this machine; make test-etcd builds one")
    client, peer = two_urls()
    process = start_etcd(binary, tmp_path_factory.mktemp("etcd"), client, peer)
    try:
        yield client
    finally:
        stop(process)


@dataclass
class SecureEtcd:
    """
    An etcd that requires a client certificate, a user and a password, and can be restarted.

    `options` open it as a user that may read and write below ``/test``.
    """

    url: str
    options: dict[str, str]
    authority: Authority
    folder: Path
    web: str
    peer: str
    health: str
    process: subprocess.Popen[bytes] | None = None

    def start(self, binary: str) -> None:
        """Start it."""
        cert, key = (self.folder / f"{self.authority.name}-server.{end}" for end in ("pem", "key"))
        self.process = start_etcd(
            binary, self.folder, self.web, self.peer, "--cert-file", str(cert), "--key-file", str(key),
            "--trusted-ca-file", str(self.authority.cert), "--client-cert-auth", "--bcrypt-cost", "4",
            "--listen-metrics-urls", self.health, health=self.health,
        )  # fmt: skip

    def restart(self) -> None:
        """Restart it: it forgets the tokens that it issued."""
        if self.process is not None:
            stop(self.process)
        self.start(etcd_binary() or "etcd")

    def ask(self, path: str, token: str = "", **request: object) -> dict[str, str]:
        """Return the gateway's response to *request*."""
        import httpx

        context = ssl.create_default_context(cafile=str(self.authority.cert))
        context.load_cert_chain(self.options["cert_file"], self.options["key_file"])
        with httpx.Client(verify=context, trust_env=False) as client:
            headers = {"Authorization": token} if token else {}
            return dict(client.post(f"{self.web}/v3/{path}", json=request, headers=headers).raise_for_status().json())


def _users_of(server: SecureEtcd) -> None:
    every = base64.b64encode(b"/test").decode(), base64.b64encode(b"/tesu").decode()
    server.ask("auth/user/add", name="root", password="root-password")
    server.ask("auth/role/add", name="root")
    server.ask("auth/user/grant", user="root", role="root")
    server.ask("auth/user/add", name=server.options["user"], password=server.options["password"])
    server.ask("auth/role/add", name="topics")
    permission = {"permType": "READWRITE", "key": every[0], "range_end": every[1]}
    server.ask("auth/role/grant", name="topics", perm=permission)
    server.ask("auth/user/grant", user=server.options["user"], role="topics")
    server.ask("auth/enable")


@pytest.fixture(scope="session")
def secure_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureEtcd]:
    """An empty etcd with TLS, client certificates and users."""
    binary = etcd_binary()
    if binary is None:
        pytest.skip("no etcd on this machine; make test-etcd builds one")
    pytest.importorskip("httpx")
    folder = tmp_path_factory.mktemp("secure-etcd")
    authority = Authority(folder, "etcd-ca")
    authority.issue("server")
    # With users, the gateway refuses a client certificate that has a common name.
    cert, key = authority.issue("client", organization="quiver")
    client, peer, health = free_ports(3)
    options = {
        "ca_file": str(authority.cert), "cert_file": str(cert), "key_file": str(key), "user": "quiver",
        "password": "quiver-password",
    }  # fmt: skip
    web, plain = f"https://127.0.0.1:{client}", "http://127.0.0.1:"
    server = SecureEtcd(
        f"etcds://127.0.0.1:{client}", options, authority, folder, web, f"{plain}{peer}", f"{plain}{health}"
    )
    server.start(binary)
    try:
        _users_of(server)
        yield server
    finally:
        if server.process is not None:
            stop(server.process)
