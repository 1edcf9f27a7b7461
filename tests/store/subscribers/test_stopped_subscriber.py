"""A process with claims is stopped for minutes and continues: no bundle is lost or delivered twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import quiver
from quiver.errors import DirectoryInUseError
from stopped_process import StoppedProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")

MINUTES_S = 600.0
PROGRAM = """
import pyarrow as pa
import quiver
from quiver.errors import QuiverError

store = quiver.open(sys.argv[2], quiver.Settings(max_age_s=MAX_AGE_S, maintain_interval_s=0.05), clock=clock)
subscriber = store.register("one", start="earliest")

def put(first, count):
    for number in range(first, first + count):
        store.ingest(quiver.Bundle({30: pa.record_batch({"n": [number]})}))
    store.seal()

put(0, 6)
held = [subscriber.next_bundle(timeout=0) for _ in range(3)]

def number(handle):
    return handle.bundle[30]["n"][0].as_py()

def take_all():
    found = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        found.append(number(handle))
        handle.ack()
    return found

def settle(handle, how):
    try:
        getattr(handle, how)()
    except QuiverError as error:
        return type(error).__name__
    return handle.outcome
"""


def pending(path: Path) -> int:
    with quiver.open(path, background=False) as store:
        return store.lag("one").pending_bundles


def test_claims_survive_a_stopped_process(tmp_path: Path) -> None:
    """Claims have no time limit: their bundles are not delivered to others, and late acknowledgements count."""
    path = tmp_path / "store"
    with StoppedProcess(tmp_path, PROGRAM.replace("MAX_AGE_S", "None"), path) as process:
        assert process.ask("[number(one) for one in held]") == [0, 1, 2]
        process.stop()
        with pytest.raises(DirectoryInUseError):
            quiver.open(path)
        assert len(list(quiver.read(str(path)).bundles())) == 6
        process.go_on_after(MINUTES_S)
        assert process.ask("put(6, 2)") is None
        assert process.ask("take_all()") == [3, 4, 5, 6, 7]
        assert process.ask("settle(held[0], 'ack')") == "acked"
        assert process.ask("settle(held[1], 'nack')") == "deferred"
        assert process.ask("[number(one) for one in [subscriber.next_bundle(timeout=0)]]") == [1]
        assert process.ask("store.close()") is None
    # 1 was returned with its handle, and 2 was never resolved.
    assert pending(path) == 2


def test_bundles_that_expire_during_a_stop_are_reported(tmp_path: Path) -> None:
    """With `max_age` the claimed bundles are too old; the subscriber is notified, and continues with newer ones."""
    path = tmp_path / "store"
    with StoppedProcess(tmp_path, PROGRAM.replace("MAX_AGE_S", "300.0"), path) as process:
        assert process.ask("number(held[0])") == 0
        process.stop()
        process.go_on_after(MINUTES_S)
        assert process.ask("store.maintain() and None") is None
        assert process.ask("number(held[0])") == 0
        assert process.ask("[settle(one, 'ack') for one in held]") == ["acked"] * 3
        assert process.ask("put(6, 2)") is None
        assert process.ask("take_all()") == [6, 7]
        assert process.ask("store.stats()['subscribers']['one']['dropped_bundles']") == 6
        assert process.ask("store.close()") is None
    assert pending(path) == 0
