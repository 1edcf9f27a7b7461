"""A bug that would lose records or use an id twice stops an AOF2 log before the step that would do harm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aof_as_log import ROOT, open_manager, payloads, segment_files, tiny
from tier_samples import entry_of

from quiver.aof.append.upload_waiting import UploadWaiting
from quiver.aof.format.record import join_record_id
from quiver.aof.format.sink_batch import BatchStep
from quiver.aof.reading import reader as reader_module
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.reader import Reader
from quiver.aof.reading.resume import Resumed
from quiver.aof.recovery import _Recovery
from quiver.aof.restore import _seal_empty
from quiver.aof.staged_import import _Step
from quiver.aof.tiers.tier_manager import TierManager
from quiver.errors import InvariantError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


def fill(log: Any, count: int) -> None:
    """Append *count* sealed segments of one record each."""
    for number in range(count):
        log.append_record(b"%d" % number * 100)
        log.force_rollover(timeout=5)


def test_a_reader_never_moves_back():
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        fill(manager.log("orders"), 2)
    reader = Reader(LogFiles(f"{ROOT}/orders", fs=fs), 0)
    with pytest.raises(InvariantError, match="a reader never moves to an earlier segment"):
        reader._go_to(0)


def test_a_reader_continues_after_damage(monkeypatch):
    """Otherwise it would report the same damage forever."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_records([b"a" * 100, b"b" * 100])
        log.force_rollover(timeout=5)
    file = fs.open_write(segment_files(fs)[0])
    file.pwrite(b"x", 64 + 24 + 100 + 24 + 50)
    file.close()
    monkeypatch.setattr(reader_module, "resume_after", lambda _source, offset, *_, **__: Resumed(offset, None, None))
    reader = Reader(LogFiles(f"{ROOT}/orders", fs=fs), 0, on_lost="skip")
    with pytest.raises(InvariantError, match="a reader continues after the damage that it reports"):
        list(reader)


def test_nothing_else_is_appended_during_a_step_of_a_batch():
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        log.append_record(b"another writer")
        imports = log._context._sinks
        imports._step = _Step("/note", BatchStep(0, 0, 2, 0), [], [], is_holder=True, noted=True, appended=True)
        with pytest.raises(InvariantError, match="no other appends until the step of a batch is durable"):
            imports._advance()
        imports._step = None


def test_recovery_never_uses_a_segment_id_twice():
    recovery = _Recovery(CrashFileSystem(), f"{ROOT}/orders", 1, ManualClock(), InMemoryObserver())
    recovery.result.tail = SimpleNamespace(segment_id=3)  # type: ignore[assignment]
    with pytest.raises(InvariantError, match="recovery never uses a segment id twice"):
        recovery.set_next_place()


def test_a_restored_log_uses_no_id_of_the_old_disk():
    with pytest.raises(InvariantError, match="a restored log uses no segment id of the old disk"):
        _seal_empty(CrashFileSystem(), "/new", entry_of(5), 5, 0, now_ns=0)


def test_an_append_uses_no_id_of_an_earlier_segment():
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        tail = log._tail
        tail.pending.append(SimpleNamespace(segment_id=tail.next_segment_id))  # type: ignore[arg-type]
        with pytest.raises(InvariantError, match="an append never uses the id of an earlier segment"):
            tail._begin(None)  # type: ignore[arg-type]
        tail.pending.pop()
        assert payloads(log) == [b"one"]


def test_a_file_is_removed_only_after_a_copy_of_it(monkeypatch):
    fs = CrashFileSystem()
    with open_manager(fs, tiny(compression="zstd")) as manager:
        log = manager.log("orders")
        fill(log, 3)
        manager.maintain()
        before = segment_files(fs)
        with monkeypatch.context() as patched:
            patched.setattr(TierManager, "_with_valid_copy", lambda *_: entry_of(0, has_warm=False))
            with pytest.raises(InvariantError, match="is removed only after a copy of it was verified"):
                log.tiers.evict(0)
        assert segment_files(fs) == before


def test_an_object_has_every_record_that_is_confirmed_with_it():
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        fill(log, 1)
        waiting: UploadWaiting = log._context._uploads
        uploads: Any = SimpleNamespace(is_uploaded=lambda _: True, damaged={})
        with pytest.raises(InvariantError, match="the object of a segment has every record that is confirmed with it"):
            waiting._is_uploaded(uploads, 0, join_record_id(0, 1 << 20))
