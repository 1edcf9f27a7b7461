"""
A QuestDB server without QWP, as its last releases before QWP: frames are kept and later sent elsewhere. The server is
downloaded with Maven and needs Java 17; the tests are skipped without either.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from qwp_server import QwpServer

from quiver.errors import SenderHaltedError
from quiver.observe import InMemoryObserver
from quiver.qwp import Category, Sender

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow, pytest.mark.timeout(300)]
VERSION = "9.3.4"
SETTINGS = """\
http.bind.to=127.0.0.1:{port}
http.min.enabled=false
line.tcp.enabled=false
pg.enabled=false
telemetry.enabled=false
shared.worker.count=1
"""


@pytest.fixture(scope="module")
def jar() -> Path:
    maven, java = shutil.which("mvn"), shutil.which("java")
    if maven is None or java is None:
        pytest.skip("QuestDB needs Java, and Maven fetches it")
    command = [maven, "-q", "dependency:get", f"-Dartifact=org.questdb:questdb:{VERSION}", "-Dtransitive=false"]
    if subprocess.run(command, capture_output=True, check=False, timeout=240).returncode:
        pytest.skip(f"QuestDB {VERSION} cannot be fetched here")
    return Path.home() / ".m2/repository/org/questdb/questdb" / VERSION / f"questdb-{VERSION}.jar"


@pytest.fixture
def start(jar: Path, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a server with more settings; return its port once it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def run(more: str = "") -> int:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = int(free.getsockname()[1])
        root = tmp_path / "questdb"
        (root / "conf").mkdir(parents=True)
        (root / "conf" / "server.conf").write_text(SETTINGS.format(port=port) + more)
        command = ["java", "-Xmx256m", "-p", str(jar), "-m", "io.questdb/io.questdb.ServerMain", "-d", str(root)]
        with (root / "log").open("wb") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        _until(lambda: running[-1].poll() is not None or _answers(port), 90)
        assert running[-1].poll() is None, (root / "log").read_text()
        return port

    yield run
    for one in running:
        one.kill()
        one.wait(10)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.02)


class _EventRecorder(InMemoryObserver):
    """Records the reasons of events."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def event(self, name: str, *, level: int = logging.INFO, **attributes: object) -> None:
        if name == "qwp.no_server":
            self.reasons.append(str(attributes["reason"]))


def _values(server: QwpServer) -> list[int]:
    return [
        row["v"] for life in server.lives for frame in life.frames
        for table in life.decode(frame).tables for row in table.to_arrow().to_pylist()
    ]  # fmt: skip


def test_rows_wait_for_a_server_with_qwp(start, tmp_path):
    """404 from the real one, no server at the other address: it is reported; frames are sent once one answers."""
    port = start()
    recorder = _EventRecorder()
    with QwpServer() as server:
        server.refuse = (503, {})
        keys = (
            f"ws::addr=127.0.0.1:{port},{server.address};sf_dir={tmp_path / 'sf'};initial_connect_retry=async;"
            "reconnect_initial_backoff_millis=10;reconnect_max_backoff_millis=50;"
        )
        with Sender.from_conf(keys, observer=recorder) as sender:
            for number in range(50):
                sender.row("t", columns={"v": number})
                sender.flush()
            _until(lambda: len(recorder.reasons) > 2)
            assert (sender.acked_fsn, sender.published_fsn, sender.last_terminal_error) == (-1, 49, None)
            server.refuse = None
            assert sender.wait_until_confirmed(49, 30)
        assert _values(server) == list(range(50))


def test_a_single_server_without_qwp_is_reported(start, tmp_path):
    """Creating a sender without async raises with the server's answer; the slot keeps its frames."""
    port = start()
    slot = f"sf_dir={tmp_path / 'sf'};"
    recorder = _EventRecorder()
    keys = f"ws::addr=127.0.0.1:{port};{slot}close_flush_timeout_millis=0;reconnect_initial_backoff_millis=10;"
    with Sender.from_conf(f"{keys}initial_connect_retry=async;", observer=recorder) as sender:
        sender.row("t", columns={"v": 7})
        sender.flush()
        _until(lambda: bool(recorder.reasons))
    assert all("HTTP 404" in reason for reason in recorder.reasons)
    with pytest.raises(SenderHaltedError, match="HTTP 404"):
        Sender.from_conf(keys)
    with QwpServer() as server:
        Sender.from_conf(f"ws::addr={server.address};{slot}").close()
        assert _values(server) == [7]


def test_rejected_credentials_halt_the_sender(start, tmp_path, monkeypatch):
    """Its 401 is final; the rows stay, and another server gets them later."""
    port = start("http.user=admin\nhttp.password=quest\n")
    slot = f"sf_dir={tmp_path / 'sf'};initial_connect_retry=async;"
    with Sender.from_conf(f"ws::addr=127.0.0.1:1;{slot}close_flush_timeout_millis=0;") as sender:
        sender.row("t", columns={"v": 1})
    with monkeypatch.context() as patch:
        patch.setattr(
            "quiver.qwp.connection.transport.WRITE_PATH", "/exec?query=1"
        )  # the server has no other authenticated endpoint
        keys = f"ws::addr=127.0.0.1:{port};{slot}username=admin;password=wrong;"
        with Sender.from_conf(keys, on_error=lambda _: None) as sender:
            _until(lambda: sender.last_terminal_error is not None)
            assert sender.last_terminal_error.category is Category.SECURITY_ERROR
            assert "401" in sender.last_terminal_error.message
            with pytest.raises(SenderHaltedError, match="401"):
                sender.row("t", columns={"v": 3})
    with QwpServer() as server:
        with Sender.from_conf(f"ws::addr={server.address};{slot}") as sender:
            sender.row("t", columns={"v": 2})
        assert _values(server) == [1, 2]
