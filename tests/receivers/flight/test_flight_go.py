"""A client in Go, on arrow-go, which `make test-flight` builds."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from quiver.receivers.flight.served_topics import served_topics
from quiver.topics.store import TopicStore

CLIENT = Path(__file__).parents[3] / "build" / "bin" / "flight-client"

pytestmark = pytest.mark.flight_go


def run(port, name):
    """Return the acknowledgements of the client, and its other lines."""
    done = subprocess.run([CLIENT, f"127.0.0.1:{port}", name], capture_output=True, text=True, check=True, timeout=60)
    lines = done.stdout.splitlines()
    acks = [json.loads(line.removeprefix("ack ")) for line in lines if line.startswith("ack")]
    return acks, [line for line in lines if not line.startswith("ack")]


def test_a_client_in_go_puts_reads_and_acknowledges(serve, store):
    """Each batch is acknowledged with its sequence, and a second client receives no bundle of the first."""
    serve()
    acks, (rows, *first) = run(serve.port, "logs")
    assert ([ack["sequence"] for ack in acks], rows, len(first)) == ([7, 8, 9], "rows 9", 3)
    assert all(re.fullmatch(r"bundle \S+ 3", line) for line in first)
    store.maintain()
    acks, (rows, *second) = run(serve.port, "logs")
    assert ([ack["sequence"] for ack in acks], rows, len(second)) == ([7, 8, 9], "rows 18", 3)
    assert not set(first) & set(second)


def test_a_client_in_go_produces_and_consumes(serve, tmp_path, opened):
    """A repeated batch is appended once, and a second client is delivered nothing."""
    serve(served_topics(tmp_path / "topics", opened.enter_context(TopicStore.open(tmp_path / "topics"))))
    acks, (rows, *delivered) = run(serve.port, "default/orders")
    assert [ack["count"] for ack in acks] == [2, 2, 0]
    assert (rows, delivered) == ("rows 4", [f"message {n} {n}" for n in range(4)])
    acks, lines = run(serve.port, "default/orders")
    assert ([ack["count"] for ack in acks], lines) == ([0, 0, 0], ["rows 4"])
