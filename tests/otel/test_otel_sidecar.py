"""
The example pipeline next to a real application with the SDK: it forwards from a directory that the application has
open.
"""

import itertools
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from destination import destination, rows, value

from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.processes.child import ChildContext
from stub_watchdog import StubWatchdog

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "application-store.yaml"


def run_until_killed(store, first, count):
    """Run an application, kill it after *count* more ids, and return the last id."""
    command = [sys.executable, str(HERE / "app.py"), str(store), "-", str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        lines = [int(line) for line in itertools.islice(app.stdout, count)]
        app.send_signal(signal.SIGKILL)
    assert len(lines) == count
    return lines[-1]


@pytest.mark.timeout(120)
def test_a_pipeline_forwards_for_a_running_application(tmp_path):
    """
    All confirmed data arrive, though the application is killed twice; data left in the log by the last kill arrive when
    the store is opened again.
    """
    store, far = tmp_path / "telemetry", tmp_path / "far"
    watchdog = StubWatchdog()
    with destination(far) as receiver:
        values = {
            "store": str(store),
            "directory": str(tmp_path / "data"),
            "endpoint": f"http://127.0.0.1:{receiver.port}",
            "first_retry": "100ms",
        }
        pipeline = load_pipeline(EXAMPLE.read_text(), source=str(EXAMPLE), values=values)[0]
        (tmp_path / "run").mkdir()
        child = threading.Thread(target=ingest, args=(ChildContext(pipeline, tmp_path / "run", watchdog),))
        child.start()
        try:
            last = run_until_killed(store, 0, 30)
            last = run_until_killed(store, last + 1, 30)
            command = [sys.executable, "-c", f"import quiver; quiver.open({str(store)!r}).close()"]
            subprocess.run(command, check=True)
            for view in ("spans", "logs"):
                while not set(range(last + 1)) <= {value(row["attributes"], "id") for row in rows(far, view)}:
                    watchdog.gone.wait(0.1)
        finally:
            watchdog.gone.set()
            child.join()
