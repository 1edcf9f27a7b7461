"""A bug that would break a promise stops the store before the step that would do harm."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from quiver import Bundle, Settings
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import InvariantError, StoreFailedError
from quiver.invariant import invariant
from quiver.observe import InMemoryObserver
from quiver.store.cold.register import ColdRegister, cold_segment
from quiver.store.cores.claims import Evictor, _Victim
from quiver.store.opening import open_store
from quiver.store.sealing.schedule import Sealing
from quiver.store.segment import writer as segment_writer
from quiver.store.staged_import import StagedImport
from quiver.store.store import Store
from quiver.store.wal.writer import WalWriter
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/buffer"


def bundle() -> Bundle:
    return Bundle({60: pa.record_batch({"n": [1]})})


def test_a_condition_that_holds_does_nothing() -> None:
    invariant(condition=True, what="never raised")


def test_a_broken_invariant_is_reported_as_a_bug() -> None:
    with pytest.raises(InvariantError, match="bug in Quiver, please report it: two and two are four") as raised:
        invariant(condition=False, what="two and two are four")
    assert isinstance(raised.value, StoreFailedError)
    assert raised.value.what == "two and two are four"


def lose_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer of segments report one bundle fewer than it was given."""
    write = Sealing.write

    def write_less(self: Sealing, open_log):
        info = write(self, open_log)
        return None if info is None else replace(info, bundle_count=info.bundle_count - 1)

    monkeypatch.setattr(Sealing, "write", write_less)


def test_the_log_keeps_what_a_segment_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "buffer", background=False)
    store.ingest(bundle())
    store.ingest(bundle(), durable=True)
    with monkeypatch.context() as patched:
        lose_a_bundle(patched)
        with pytest.raises(InvariantError, match="the log may forget only what segment 0 contains"):
            store.seal()
        assert store._wal.cursor == 0
    with pytest.raises(StoreFailedError):
        store.ingest(bundle())
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_background_thread_that_finds_a_bug_stops_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: Store) -> None:
        raise InvariantError("nothing is lost")

    monkeypatch.setattr(Store, "maintain", broken)
    store = open_store(tmp_path / "buffer", Settings(maintain_interval_s=0.01))
    store._background._maintainer.join(30)
    with pytest.raises(StoreFailedError):
        store.ingest(bundle())
    monkeypatch.undo()
    store.close()


# ── each rule, broken ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(fs: CrashFileSystem) -> Iterator[Store]:
    """A store with one sealed segment, and one bundle in the log."""
    with open_store(ROOT, fs=fs, background=False) as opened:
        opened.ingest(bundle())
        opened.seal()
        opened.ingest(bundle())
        yield opened


def segments(fs: CrashFileSystem) -> list[str]:
    return [name for name in fs.list_dir(f"{ROOT}/segments") if name.endswith(".qseg")]


def test_a_bundle_is_in_the_log_before_ingest_returns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store, "_log", lambda *_, **__: store._wal.written + 1)
        with pytest.raises(InvariantError, match="a bundle must be in the log before ingest returns"):
            store.ingest(bundle())


def test_the_cursor_does_not_pass_the_end_of_the_log(store: Store) -> None:
    with pytest.raises(InvariantError, match="the cursor must not pass the end of the log"):
        store._wal.advance_cursor(store._wal.written + 1)


def test_a_failed_write_removes_no_entry_of_the_log(store: Store) -> None:
    before = store._wal._file.size()
    with pytest.raises(InvariantError, match="a failed write removes no entry of the log"):
        store._wal._undo(store._wal._file, store._wal._offset - 1, OSError(errno.ENOSPC, "full"))
    assert store._wal._file.size() == before


def test_zeros_are_written_only_after_the_end_of_the_log(store: Store) -> None:
    store._wal._file_bytes, before = store._wal._offset - 1, store._wal._file_bytes
    store._wal.zeros_wanted = True
    with pytest.raises(InvariantError, match="zeros are written only after the end of the log"):
        store._wal.fill_ahead()
    store._wal._file_bytes = before


def test_no_segment_number_is_used_twice(store: Store) -> None:
    with pytest.raises(InvariantError, match="segment number 0 must not be used twice"):
        store.internals.catalog.add(store.internals.catalog.segments()[0])


def test_no_position_of_the_log_is_used_twice(fs: CrashFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(ROOT, fs=fs, background=False) as opened:
        opened.ingest(bundle())
        fs = fs.clone_after_kill()
    with monkeypatch.context() as patched:
        patched.setattr(WalWriter, "resume_file", lambda *_, **__: None)
        with pytest.raises(InvariantError, match="no position of the log is used twice"):
            open_store(ROOT, fs=fs, background=False)


def test_a_segment_gets_its_name_only_when_it_is_complete(
    store: Store, fs: CrashFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(segment_writer, "_write", lambda *_: 1)
        with pytest.raises(InvariantError, match="segment 1 gets its name only when its file is complete"):
            store.seal()
    assert len(segments(fs)) == 1


def test_a_segment_is_deleted_only_after_the_cursor_has_passed_it(store: Store, fs: CrashFileSystem) -> None:
    info = replace(store.internals.catalog.segments()[0], wal_position_end=1 << 40)
    with pytest.raises(InvariantError, match="must not be deleted before the log's cursor has passed them"):
        store._cleanup._delete([info], "age")
    assert len(segments(fs)) == 1


def test_a_drop_is_in_the_ledger_before_it_is_applied(
    store: Store, fs: CrashFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store._cleanup, "_record_and_count", lambda _: True)
        with pytest.raises(InvariantError, match="a drop must be in the ledger before it is applied"):
            store._cleanup._drop(store.internals.catalog.segments(), "age")
    assert len(segments(fs)) == 1


def test_a_local_file_is_removed_only_if_the_tier_has_it(
    store: Store, fs: CrashFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = store._cleanup.window
    with monkeypatch.context() as patched:
        patched.setattr(window, "_verified", lambda _: store.internals.catalog.segments())
        with pytest.raises(InvariantError, match="a local file is removed only if the object tier has the segment"):
            window.release([0])
    assert len(segments(fs)) == 1


def test_the_cold_list_keeps_the_entry_of_an_object(store: Store, fs: CrashFileSystem) -> None:
    entry = cold_segment(store.internals.catalog.segments()[0], 0, "verified")
    register = ColdRegister(fs, f"{ROOT}/segments", {}, [entry])
    with pytest.raises(InvariantError, match="the list keeps the entry of every object that exists"):
        register.drop([entry.seq])
    assert register.entries() == [entry]


def test_an_imported_segment_replaces_no_other(store: Store, fs: CrashFileSystem) -> None:
    before = fs.read_all(f"{ROOT}/segments/{segments(fs)[0]}", size_max=1 << 20)
    staged = f"{ROOT}/incoming/query/part.qseg"
    fs.make_dirs(f"{ROOT}/incoming/query")
    fs.create(staged).pwrite(before, 0)
    imports = StagedImport(fs, ROOT, next_segment=lambda: 0)
    with pytest.raises(InvariantError, match=r"an imported segment replaces no other \(number 0\)"):
        imports._import_part(staged)
    assert fs.exists(staged)


def test_a_core_deletes_nothing_of_its_own(fs: CrashFileSystem) -> None:
    """Its own segments are deleted in the order of its maintenance, which knows its subscribers."""
    with open_store(f"{ROOT}/core_0", fs=fs, background=False) as own:
        own.ingest(bundle())
        own.seal()
        evictor = Evictor(fs, ROOT, 0, clock=SYSTEM_CLOCK, observer=InMemoryObserver())
        with pytest.raises(InvariantError, match="only after it recorded the drop"):
            evictor._remove(0, [_Victim(0, 0, 0, 100, 0)])
        assert fs.list_dir(f"{ROOT}/core_0/segments") != []
