"""The log of a child is rotated when it is long, while the child appends to it; the oldest files are deleted."""

import sys
import threading
from random import Random

import pytest

from quiver.clock import SYSTEM_CLOCK
from quiver.pipeline.processes import supervise
from quiver.pipeline.processes.log_files import keep_short
from quiver.pipeline.processes.supervise import ChildSpec, Supervisor
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


def test_a_long_log_is_rotated_while_a_child_appends(tmp_path):
    """Three files are kept, numbered from the newest; a short or missing log is not rotated."""
    path = tmp_path / "ingest.log"
    assert not keep_short(REAL_FILES, str(path), bytes_max=10)
    with path.open("ab", buffering=0) as child:
        for number in range(5):
            child.write(b"%d: a line that is long\n" % number)
            assert keep_short(REAL_FILES, str(path), bytes_max=10)
            assert path.read_bytes() == b""
        child.write(b"short\n")
        assert not keep_short(REAL_FILES, str(path), bytes_max=10)
    assert path.read_bytes() == b"short\n"
    kept = {one.name: one.read_bytes()[:1] for one in tmp_path.iterdir() if one != path}
    assert kept == {"ingest.log.1": b"4", "ingest.log.2": b"3", "ingest.log.3": b"2"}


@pytest.mark.parametrize("call", ["create", "pwrite", "truncate", "rename"])
def test_a_full_disk_postpones_the_rotation(call):
    """The log stays complete, and the next check rotates it."""
    disk = CrashFileSystem()
    disk.make_dirs("/run")
    log = disk.create("/run/a.log")
    log.pwrite(b"x" * 100, 0)
    keep_short(disk, "/run/a.log", bytes_max=10)
    log.pwrite(b"y" * 100, 0)
    fs = FaultFileSystem(disk)
    fs.fail_on(call)
    with pytest.raises(OSError):
        keep_short(fs, "/run/a.log", bytes_max=10)
    fs.heal()
    assert keep_short(fs, "/run/a.log", bytes_max=10)
    found = {disk.read_all(f"/run/{name}", size_max=1000)[:1] for name in disk.list_dir("/run")}
    assert found == {b"", b"x", b"y"}
    assert "a.log.new" not in disk.list_dir("/run")
    log.close()


SPEAKER = "import time\nn = 0\nwhile True: print('line', n, 'x' * 100, flush=True); n += 1; time.sleep(0.0005)"


def test_the_supervisor_rotates_logs(tmp_path, monkeypatch):
    """While the child runs, without a restart."""
    monkeypatch.setattr(supervise, "LOOK_AT_LOGS_S", 0.05)
    spec = ChildSpec("a", [sys.executable, "-I", "-S", "-c", SPEAKER], tmp_path / "a.log")
    supervisor = Supervisor([spec], on_change=lambda *_: None, backoff=Backoff(), random=Random(1), log_bytes_max=2000)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    pause = threading.Event()
    deadline = SYSTEM_CLOCK.monotonic() + 30
    while not (tmp_path / "a.log.2").exists() and SYSTEM_CLOCK.monotonic() < deadline:
        pause.wait(0.02)
    supervisor.request_stop()
    thread.join()
    assert (tmp_path / "a.log.2").read_bytes().startswith(b"line ")
    assert supervisor.children[0].starts == 1
