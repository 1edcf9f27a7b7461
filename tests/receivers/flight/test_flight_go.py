"""A client in Go, on arrow-go, which `make test-flight` builds."""

import json
import re
import subprocess
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "build" / "bin" / "flight-client"

pytestmark = pytest.mark.flight_go


def test_a_client_in_go_puts_reads_and_acknowledges(serve, store):
    """Each batch is acknowledged with its sequence, and a second client receives no bundle of the first."""
    serve()
    address = f"127.0.0.1:{serve.port}"

    def run():
        done = subprocess.run([CLIENT, address, "logs"], capture_output=True, text=True, check=True, timeout=60)
        lines = done.stdout.splitlines()
        acks = [json.loads(line.removeprefix("ack "))["sequence"] for line in lines if line.startswith("ack")]
        bundles = [line for line in lines if line.startswith("bundle")]
        return acks, [line for line in lines if line.startswith("rows")], bundles

    acks, rows, first = run()
    assert (acks, rows, len(first)) == ([7, 8, 9], ["rows 9"], 3)
    assert all(re.fullmatch(r"bundle \S+ 3", line) for line in first)
    store.maintain()
    acks, rows, second = run()
    assert (acks, rows, len(second)) == ([7, 8, 9], ["rows 18"], 3)
    assert not set(first) & set(second)
