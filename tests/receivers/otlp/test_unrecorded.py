"""Bundles are removed only when their requests are recorded: otherwise a repeated request would be stored again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_store import log_request

import quiver
from quiver.errors import CapacityError
from quiver.receivers import request_window
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.settings import OtlpSettings
from quiver.testing.clock import ManualClock

LOGGED = OtlpSettings(dedupe_window_s=600, ack="logged")
EARLY = quiver.Settings(deliver_unsealed=True, segment_open_s_max=3600.0)

PATHS = os.pathsep.join(map(str, Path(__file__).parents[:2]))


def opened(path: Path, **changes: Any) -> quiver.Store:
    return quiver.open(str(path), replace(EARLY, **changes), background=False)


def resolve(store: quiver.Store) -> int:
    """Acknowledge everything, and close the open segment without writing it."""
    subscriber = store.register("out", start="earliest")
    count = 0
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handle.ack()
        count += 1
    with store._lock:
        assert store._sealing.pending is not None or store._sealing.swap()
    return count


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(os.pathsep)
import test_unrecorded as here
store = here.opened(Path(sys.argv[2]), durability=sys.argv[3])
intake = here.OtlpIntake(store, here.LOGGED)
print(intake.accept("logs", bytes.fromhex(sys.argv[4])).outcome, here.resolve(store), flush=True)
store.maintain()
print(store._sealing.pending, len(store.internals.catalog), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("loss", ["process", "power"])
def test_a_request_is_recognized_after_a_kill_although_its_bundle_was_dropped(
    tmp_path: Path, durability: str, loss: str
) -> None:
    """It was recorded before, and survives a power loss: it is in the file itself, not only in the log of SQLite."""
    path = tmp_path / "buffer"
    arguments = [PATHS, str(path), durability, log_request().hex()]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.stdout.split("\n") == ["stored 1", "None 0", ""]
    if loss == "power":
        shutil.copy(path / "quiver.requests", tmp_path / "kept")
        for ending in ("", "-wal", "-shm"):
            (path / f"quiver.requests{ending}").unlink()
        shutil.move(tmp_path / "kept", path / "quiver.requests")
    with opened(path, durability=durability) as store:
        assert OtlpIntake(store, LOGGED).accept("logs", log_request()).outcome == "duplicate"
        assert store.register("out").next_bundle(timeout=0) is None


def test_bundles_of_an_earlier_run_are_written(tmp_path: Path) -> None:
    """Its requests may be recorded nowhere else, and no receiver may have searched the data for them yet."""
    code = KILLED.replace("store.maintain()", "store.sync()")
    arguments = [PATHS, str(tmp_path), "wal", log_request().hex()]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.stdout.startswith("stored 1\n")
    with opened(tmp_path) as store:
        assert resolve(store) == 1
        store.maintain()
        assert len(store.internals.catalog) == 1
        assert OtlpIntake(store, LOGGED).accept("logs", log_request()).outcome == "duplicate"


def test_a_bundle_is_kept_while_its_request_is_in_flight(tmp_path: Path) -> None:
    """A later request does not delay it."""
    with opened(tmp_path) as store:
        intake = OtlpIntake(store, LOGGED, clock=ManualClock())
        window: Any = intake.window
        assert window.begin(b"a" * 16)
        receipt = store.ingest(quiver.Bundle({30: pa.record_batch({"n": [1]})}))
        assert resolve(store) == 1
        store.maintain()
        assert store._sealing.pending is not None
        assert window.begin(b"b" * 16)
        window.finish(b"a" * 16, stored=True, receipt=receipt)
        store.maintain()
        assert store._sealing.pending is None
        assert not len(store.internals.catalog)
        window.finish(b"b" * 16, stored=False)


@pytest.mark.parametrize("reason", ["closed", "unwritten", "full"])
def test_a_segment_is_written_if_its_requests_cannot_be_recorded(
    tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is closed, or the disk is full: after a crash the requests are found in the segment."""
    with opened(tmp_path) as store:
        intake = OtlpIntake(store, LOGGED, clock=ManualClock())
        window: Any = intake.window
        do = window._do

        def refused(statement: str, *values: Any) -> int:
            if statement == request_window._NOTE:
                raise CapacityError("the disk is full")
            return int(do(statement, *values))

        if reason == "unwritten":
            monkeypatch.setattr(window, "_do", refused)
        assert intake.accept("logs", log_request()).outcome == "stored"
        if reason == "closed":
            window.close()
        if reason == "full":
            monkeypatch.setattr(request_window, "_MADE_DURABLE", "INSERT INTO nothing VALUES (?)")
        assert resolve(store) == 1
        store.seal()
        assert len(store.internals.catalog) == 1
        monkeypatch.undo()
        assert intake.accept("logs", log_request("b")).outcome == ("full" if reason == "closed" else "stored")


def test_a_finished_segment_is_deleted_when_its_requests_are_recorded(tmp_path: Path) -> None:
    """Without delivery before sealing it is the same: an idle receiver records nothing by itself."""
    with opened(tmp_path, deliver_unsealed=False, delete_grace_s=0.0) as store:
        store.register("out", start="earliest")
        intake = OtlpIntake(store, LOGGED, clock=ManualClock())
        window: Any = intake.window
        assert window.begin(b"a" * 16)
        receipt = store.ingest(quiver.Bundle({30: pa.record_batch({"n": [1]})}))
        store.seal()
        with store.register("out").next_bundle(timeout=0) as handle:  # type: ignore[union-attr]
            handle.ack()
        assert store.maintain().segments_deleted == 0
        window.finish(b"a" * 16, stored=True, receipt=receipt)
        assert store.maintain().segments_deleted == 1
        assert window._ask("SELECT state FROM requests") == [(2,)]
