"""A request is stored once within the window: by any core, after restarts and crashes, after many others."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_store import log_request

import quiver
from quiver.errors import CapacityError, CorruptionError, InvariantError, UnsupportedFormatError
from quiver.observe import InMemoryObserver
from quiver.receivers import request_window
from quiver.receivers.dedupe import request_digest
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.request_window import ROW_BYTES, RequestWindow
from quiver.receivers.settings import OtlpSettings
from quiver.testing.clock import ManualClock

SETTINGS = OtlpSettings(dedupe_window_s=600)
LOGGED = replace(SETTINGS, ack="logged")
WITHOUT_LOG = quiver.Settings(durability="segment_only", segment_open_s_max=3600.0)


def bundles(path: Path) -> int:
    return len(list(quiver.read(str(path)).bundles()))


def outcome(store: Any, data: bytes = b"", settings: OtlpSettings = SETTINGS) -> str:
    """Return the outcome of a request in a newly started receiver."""
    intake = OtlpIntake(store, settings)
    try:
        return intake.accept("logs", data or log_request()).outcome
    finally:
        intake.window.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def window(store: Any, directory: Path, **how: Any) -> Iterator[RequestWindow]:
    given = {"needs_durable": True, "entries_max": 1000, "observer": InMemoryObserver(), **how}
    opened = RequestWindow(store, str(directory), given.pop("window_s", 600.0), **given)
    try:
        yield opened
    finally:
        opened.close()


def test_cores_share_the_window(tmp_path: Path) -> None:
    """A client that reconnects to another process gets its confirmation, and its request is stored once."""
    with quiver.open(tmp_path, cores=3) as store:
        intakes = [OtlpIntake(store.core(core), SETTINGS) for core in range(3)]
        assert [intake.accept("logs", log_request()).outcome for intake in intakes] == ["stored", *["duplicate"] * 2]
        assert intakes[2].accept("logs", log_request("b")).outcome == "stored"
        assert intakes[0].accept("logs", log_request("b")).outcome == "duplicate"
    assert bundles(tmp_path) == 2


def test_another_number_of_cores_recognizes_the_requests(tmp_path: Path) -> None:
    """Including requests of a core that no longer exists."""
    with quiver.open(tmp_path, cores=3) as store:
        for core in range(3):
            assert outcome(store.core(core), log_request(str(core))) == "stored"
    with quiver.open(tmp_path, cores=1) as store:
        for core in range(3):
            assert outcome(store.core(0), log_request(str(core))) == "duplicate"


@pytest.mark.parametrize("stored", [True, False])
def test_a_request_being_stored_by_another_core_is_waited_for(tmp_path: Path, stored: bool) -> None:
    """Its success is shared; after its failure the second stores the request itself."""
    with quiver.open(tmp_path, cores=2) as store, window(store.core(0), tmp_path) as first:
        clock = ManualClock(waits="hold")
        with window(store.core(1), tmp_path, clock=clock) as second:
            assert first.begin(b"a" * 16)
            messages: list[bool] = []
            thread = threading.Thread(target=lambda: messages.append(second.begin(b"a" * 16)))
            thread.start()
            clock.wait_for_waiters(1)
            assert messages == []
            first.finish(b"a" * 16, stored=stored, durable=True)
            while thread.is_alive():
                clock.advance(0.01)
                thread.join(0.01)
            assert messages == [not stored]


def test_the_wait_for_another_core_is_limited(tmp_path: Path) -> None:
    """The client gets a retry delay; nothing is stored twice."""
    with quiver.open(tmp_path, cores=2) as store, window(store.core(0), tmp_path) as first:
        with window(store.core(1), tmp_path, clock=ManualClock()) as second:
            assert first.begin(b"a" * 16)
            with pytest.raises(CapacityError, match="still storing"):
                second.begin(b"a" * 16)
            first.finish(b"a" * 16, stored=True)
            with pytest.raises(CapacityError):  # not yet on disk
                second.begin(b"a" * 16)
        with window(store.core(1), tmp_path, needs_durable=False) as second:
            assert not second.begin(b"a" * 16)


def test_requests_of_a_dead_core_are_found_in_its_data(tmp_path: Path) -> None:
    """It died before it could record the request, or before it could store it."""
    settings = replace(SETTINGS, otlp_handling="pass_through")
    with quiver.open(tmp_path, cores=2) as store:
        dead = OtlpIntake(store.core(0), settings)
        assert dead.window is not None
        dead.window.finish = lambda *_, **__: None  # type: ignore[method-assign]
        assert dead.accept("logs", log_request()).outcome == "stored"
        dead._store = Refusing()  # type: ignore[assignment]
        assert dead.accept("logs", log_request("b")).outcome == "unavailable"
        assert dead.window._ask("SELECT count(*) FROM requests WHERE state = 0") == [(2,)]
        dead.window.close()
        alive = OtlpIntake(store.core(1), settings)
        assert alive.accept("logs", log_request()).outcome == "duplicate"
        assert alive.accept("logs", log_request("b")).outcome == "stored"


class Refusing:
    """A store that fails."""

    def ingest(self, *_: Any, **__: Any) -> None:
        raise quiver.StoreFailedError("the disk")


KILLED = """
import os, sys
import quiver
from quiver.receivers.dedupe import request_digest
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.settings import OtlpSettings
path, durability, ack, data = sys.argv[1:]
store = quiver.open(path, quiver.Settings(durability=durability, segment_open_s_max=3600.0))
intake = OtlpIntake(store, OtlpSettings(dedupe_window_s=600, ack=ack))
print(intake.accept("logs", bytes.fromhex(data)).outcome, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("durability", "ack", "expected"),
    [
        ("wal", "synced", "duplicate"),
        ("wal", "logged", "duplicate"),
        ("segment_only", "synced", "duplicate"),
        ("segment_only", "logged", "stored"),
    ],
)
def test_requests_are_recognized_after_a_kill(tmp_path: Path, durability: str, ack: str, expected: str) -> None:
    """Stored requests are recognized; lost ones are stored when they are repeated."""
    arguments = [str(tmp_path), durability, ack, log_request().hex()]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.stdout.strip() == "stored"
    with quiver.open(tmp_path, quiver.Settings(durability=durability)) as store:  # type: ignore[arg-type]
        assert outcome(store) == expected
    assert bundles(tmp_path) == 1


def test_without_a_log_requests_are_recognized_after_a_restart(tmp_path: Path) -> None:
    """Without the log, only the window has them."""
    with quiver.open(tmp_path, WITHOUT_LOG) as store:
        assert outcome(store) == "stored"
    with quiver.open(tmp_path, WITHOUT_LOG) as store:
        assert outcome(store) == "duplicate"


def test_requests_are_recognized_after_their_data_were_removed(tmp_path: Path) -> None:
    """The data were delivered, deleted, and purged from the log: within the window the requests are still known."""
    settings = quiver.Settings(
        segment_bytes_max=4096, wal_rotate_bytes=4096, wal_bytes_max=16384, wal_files_max=4, delete_grace_s=0.0
    )
    with quiver.open(tmp_path, settings, background=False) as store:
        subscriber = store.register("out", start="earliest")
        intake = OtlpIntake(store, SETTINGS)
        for number in range(60):
            assert intake.accept("logs", log_request(str(number), size=500)).outcome == "stored"
            store.seal()
            while (handle := subscriber.next_bundle(timeout=0)) is not None:
                handle.ack()
            store.maintain()
        assert len(store.internals.catalog) < 5
        intake.window.close()  # type: ignore[union-attr]
    with quiver.open(tmp_path, settings, background=False) as store:
        again = OtlpIntake(store, SETTINGS)
        sent = [log_request(str(number), size=500) for number in range(60)]
        assert {again.accept("logs", data).outcome for data in sent} == {"duplicate"}


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
def test_requests_that_a_power_loss_removed_from_the_file_are_found_in_the_data(
    tmp_path: Path, durability: str
) -> None:
    """They are found when a receiver starts."""
    settings = quiver.Settings(durability=durability)  # type: ignore[arg-type]
    with quiver.open(tmp_path, settings) as store:
        for number in range(5):
            assert outcome(store, log_request(str(number))) == "stored"
    with sqlite3.connect(tmp_path / "quiver.requests") as database:
        database.execute("DELETE FROM requests WHERE at_ns > (SELECT min(at_ns) FROM requests)")
    database.close()
    with quiver.open(tmp_path, settings) as store:
        assert {outcome(store, log_request(str(number))) for number in range(5)} == {"duplicate"}


def test_requests_are_known_until_the_window_ends(tmp_path: Path) -> None:
    """By the monotonic clock, from the time of storage; expired entries are removed."""
    clock = ManualClock()
    with quiver.open(tmp_path, background=False) as store, window(store, tmp_path, clock=clock) as known:
        assert known.begin(b"a" * 16)
        clock.advance(5.0)
        known.finish(b"a" * 16, stored=True, durable=True)
        clock.advance(600.0)
        assert not known.begin(b"a" * 16)
        assert known.knows(b"a" * 16)
        clock.advance(0.001)
        assert not known.knows(b"a" * 16)
        assert known.begin(b"a" * 16)
        known.finish(b"a" * 16, stored=False)
        assert known.begin(b"a" * 16)
        known.finish(b"a" * 16, stored=True, durable=True)
        clock.advance(601.0)
        assert known.begin(b"b" * 16)
        assert known._ask("SELECT count(*) FROM requests") == [(1,)]


def test_a_full_window_refuses_rather_than_forgets(tmp_path: Path) -> None:
    """It keeps its entries; new ones fit once the oldest have expired."""
    clock = ManualClock()
    entries = 40 * 4096 // ROW_BYTES
    with (
        quiver.open(tmp_path, background=False) as store,
        window(store, tmp_path, clock=clock, entries_max=entries) as known,
    ):
        count = 0
        with pytest.raises(CapacityError, match="dedupe_window"):
            while True:
                digest = count.to_bytes(16, "big")
                assert known.begin(digest)
                known.finish(digest, stored=True, durable=True)
                clock.advance(0.1)
                count += 1
        assert count >= entries // 2
        assert not known.begin((0).to_bytes(16, "big"))
        clock.advance(600.0)
        assert known.begin(b"a" * 16)


def test_several_receivers_of_one_store_share_the_window(tmp_path: Path) -> None:
    """Each has its own window length."""
    with quiver.open(tmp_path) as store, window(store, tmp_path) as one, window(store, tmp_path, window_s=1.0) as other:
        assert one.begin(b"a" * 16)
        one.finish(b"a" * 16, stored=True, durable=True)
        assert not other.begin(b"a" * 16)
        assert len(other) == 1


def test_entries_of_another_receiver_are_synced_first(tmp_path: Path) -> None:
    """A receiver with stronger guarantees confirms it only then."""
    with quiver.open(tmp_path, background=False) as store:
        assert OtlpIntake(store, LOGGED).accept("logs", log_request()).outcome == "stored"
        other = OtlpIntake(store, LOGGED)
        receipt = store.ingest(quiver.Bundle({30: pa.record_batch({"n": [1]})}))
        assert other.accept("logs", log_request("b")).outcome == "stored"
        assert not store.is_durable(receipt)
        with window(store, tmp_path) as synced:
            assert not synced.begin(request_digest(60, log_request("b")))
        assert store.is_durable(receipt)
        other.window.close()  # type: ignore[union-attr]


def test_a_damaged_file_is_quarantined(tmp_path: Path) -> None:
    """It is rebuilt from the data. While another receiver has it open, it is refused instead."""
    observer = InMemoryObserver()
    with quiver.open(tmp_path) as store:
        assert outcome(store) == "stored"
        (tmp_path / "quiver.requests").write_bytes(b"x" * 5000)
        intake = OtlpIntake(store, SETTINGS, observer=observer)
        assert intake.accept("logs", log_request()).outcome == "duplicate"
        assert (tmp_path / "quiver.requests.damaged").exists()
        intake.window.close()  # type: ignore[union-attr]
        with window(store, tmp_path) as other:
            other._ask("PRAGMA wal_checkpoint(TRUNCATE)")
            (tmp_path / "quiver.requests").write_bytes(b"x" * 5000)
            with pytest.raises(CorruptionError, match="stop all receivers"), window(store, tmp_path):
                pass


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """It is not changed."""
    with quiver.open(tmp_path) as store:
        assert outcome(store) == "stored"
        with sqlite3.connect(tmp_path / "quiver.requests") as database:
            database.execute("PRAGMA user_version = 9")
        database.close()
        with pytest.raises(UnsupportedFormatError, match="version 9"):
            OtlpIntake(store, SETTINGS)


def test_an_unrecorded_request_is_known_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored; the next process finds it in the data."""
    with quiver.open(tmp_path) as store:
        intake = OtlpIntake(store, SETTINGS)
        known: Any = intake.window
        do = known._do

        def refused(statement: str, *values: Any) -> int:
            if statement == request_window._NOTE:
                raise CapacityError("the disk is full")
            return int(do(statement, *values))

        monkeypatch.setattr(known, "_do", refused)
        assert [intake.accept("logs", log_request()).outcome for _ in range(2)] == ["stored", "duplicate"]
        known.close()
    with quiver.open(tmp_path) as store:
        assert outcome(store) == "duplicate"


def test_an_unusable_window_refuses_requests(tmp_path: Path) -> None:
    """Without the window, the guarantee would not hold."""
    with quiver.open(tmp_path) as store:
        intake = OtlpIntake(store, SETTINGS)
        intake.window.close()  # type: ignore[union-attr]
        assert intake.accept("logs", log_request()).outcome == "full"
    assert bundles(tmp_path) == 0


def test_durable_requests_are_recorded_as_durable(tmp_path: Path) -> None:
    """Then other cores confirm it, too."""
    with quiver.open(tmp_path, cores=2, background=False) as store:
        first, second = OtlpIntake(store.core(0), LOGGED), OtlpIntake(store.core(1), SETTINGS, clock=ManualClock())
        assert first.accept("logs", log_request()).outcome == "stored"
        assert second.accept("logs", log_request()).outcome == "full"
        store.core(0).sync()
        first.window.note_durable()  # type: ignore[union-attr]
        assert second.accept("logs", log_request()).outcome == "duplicate"


def test_only_a_claimed_request_is_recorded(tmp_path: Path) -> None:
    """Otherwise a request that was never stored would be confirmed when it is repeated."""
    with quiver.open(tmp_path) as store, window(store, tmp_path) as requests:
        digest = request_digest(60, log_request())
        with pytest.raises(InvariantError, match="a request is recorded only by the receiver that claimed it"):
            requests.finish(digest, stored=True)
        assert not requests.knows(digest)
