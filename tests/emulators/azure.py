"""An emulator of Azure Blob Storage for one test session: Azurite."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs
import pytest

from ports import free_ports
from s3_server import BUCKET, stop, wait_for

BUILT = Path(__file__).parents[2] / "build/azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "quivertest"


@dataclass(frozen=True)
class AzureServer:
    """Its address, its credentials, and a new prefix for each test."""

    port: int
    account_key: str = field(repr=False)
    container: str = BUCKET

    def options(self, **changed: str) -> dict[str, str]:
        """Return the options that open it."""
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return {"endpoint": endpoint, "account_name": ACCOUNT, "account_key": self.account_key, **changed}

    def url(self) -> str:
        """Return a folder of the container that no other test uses."""
        return f"az://{self.container}/{secrets.token_hex(6)}"

    def files(self) -> pyarrow.fs.AzureFileSystem:
        """Return a client that is not the one under test."""
        return pyarrow.fs.AzureFileSystem(
            account_name=ACCOUNT,
            account_key=self.account_key,
            blob_storage_authority=f"127.0.0.1:{self.port}",
            blob_storage_scheme="http",
            dfs_storage_authority=f"127.0.0.1:{self.port}",
            dfs_storage_scheme="http",
        )


@contextmanager
def running_azure(folder: Path) -> Iterator[AzureServer]:
    """Run Azurite with one container over *folder*."""
    node = shutil.which("node")
    if node is None or not BUILT.exists():
        pytest.fail("no Azurite: run make test-emulators, which installs it")
    (port,) = free_ports(1)
    server = AzureServer(port, base64.b64encode(secrets.token_bytes(64)).decode())
    log = folder / "azurite.log"
    command = [
        node, str(BUILT), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "data"),
        "--silent", "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{server.account_key}"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env={**os.environ, **accounts}, stdout=output, stderr=output, cwd=folder)
    try:
        wait_for(f"http://127.0.0.1:{port}/", process, log)
        server.files().create_dir(server.container)
        yield server
    finally:
        stop(process)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An emulator of Azure Blob Storage; `make test-emulators` installs it."""
    with running_azure(tmp_path_factory.mktemp("azure")) as server:
        yield server
