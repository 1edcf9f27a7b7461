"""The application is killed by SIGKILL: data that the SDK's force_flush confirmed arrive at the destination."""

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from destination import destination, rows, value

from quiver.otel import ExporterSettings, Forwarder
from quiver.primitives.backoff import Backoff

APP = Path(__file__).with_name("app.py")


def live(path, port, first, items):
    """Run the application until it has confirmed *items*, and kill it; return the ids that it confirmed."""
    argv = [sys.executable, str(APP), str(path), f"http://127.0.0.1:{port}", str(first)]
    confirmed = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as app:
        for line in app.stdout:
            confirmed.append(int(line))
            if len(confirmed) >= items:
                app.send_signal(signal.SIGKILL)
                break
        confirmed += [int(line) for line in app.stdout if line.endswith("\n")]
        app.wait(30)
    assert app.returncode == -signal.SIGKILL
    return confirmed


def run(tmp_path, lives, items_max, random):
    confirmed, port = set(), 0
    for number in range(lives):
        items = random.randrange(5, items_max)
        first = number * 10_000
        if number % 2:
            # The destination is down during this run of the application.
            confirmed.update(live(tmp_path / "local", port, first, items))
            continue
        with destination(tmp_path / "far", port=port) as receiver:
            port = receiver.port
            confirmed.update(live(tmp_path / "local", port, first, items))
    with destination(tmp_path / "far", port=port):
        to = ExporterSettings(f"http://127.0.0.1:{port}", retry=Backoff(first_s=0.05, cap_s=0.2))
        with Forwarder(tmp_path / "local", to) as forwarder:
            assert forwarder.drain(60.0)
    for view in ("spans", "logs"):
        arrived = {value(row["attributes"], "id") for row in rows(tmp_path / "far", view)}
        assert confirmed <= arrived, (view, sorted(confirmed - arrived)[:20])
    return confirmed


def test_confirmed_data_survive_two_kills_and_an_outage(tmp_path):
    assert len(run(tmp_path, 2, 12, Random(1))) >= 10


@pytest.mark.kill
@pytest.mark.timeout(900)
def test_confirmed_data_survive_many_kills(tmp_path):
    """Twenty-four processes, every other one during an outage."""
    assert len(run(tmp_path, 24, 60, Random())) >= 24 * 5
