"""One directory, one process, many logs, few threads."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from aof_as_log import ROOT, open_manager, payloads, tiny

from quiver.aof import AofManager, TierConfig, replay_upstream
from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    InvalidRecordError,
    SettingsError,
    StoreClosedError,
    UsageError,
)
from quiver.settings import MIB
from quiver.testing.crashfs import CrashFileSystem


def test_the_readme_example_works(tmp_path):
    """On a real disk, with threads."""
    with AofManager.open(str(tmp_path / "aof")) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"payload", ext_id=0)
        log.flush_until(record_id)
        for record in log.open_reader(record_id):
            assert (record.record_id, record.ext_id, record.payload) == (record_id, 0, b"payload")
            assert record.timestamp > 0


def test_a_hundred_streams_fit_on_a_small_disk(tmp_path):
    """With default settings they reserve less than 32 MiB together, and five threads serve them all."""
    before = threading.active_count()
    with AofManager.open(str(tmp_path)) as manager:
        logs = [manager.log(f"stream-{number}") for number in range(100)]
        ids = [log.append_record(b"x" * 100) for log in logs]
        for log, record_id in zip(logs, ids, strict=True):
            log.flush_until(record_id)
        assert threading.active_count() - before <= 5
        used = sum(found.stat().st_blocks * 512 for found in tmp_path.rglob("*") if found.is_file())
        assert used < 32 * MIB
    with AofManager.open(str(tmp_path)) as manager:
        assert manager.logs() == sorted(f"stream-{number}" for number in range(100))
        assert payloads(manager.log("stream-99")) == [b"x" * 100]


def test_the_blocks_of_a_segment_are_reserved(tmp_path):
    """A full disk is an error when a segment is created, never a signal when it is written."""
    with AofManager.open(str(tmp_path)) as manager:
        manager.log("orders").append_record(b"x")
        manager.log("orders").flush()
        for found in (tmp_path / "orders" / "segments").glob("*.s*"):
            if found.suffix in {".seg", ".spare"}:
                assert found.stat().st_blocks * 512 >= found.stat().st_size


def test_a_second_process_is_refused():
    """The error names the first process."""
    fs = CrashFileSystem()
    with open_manager(fs), pytest.raises(DirectoryInUseError):
        open_manager(fs)
    open_manager(fs).close()


def test_a_log_is_one_object_until_it_is_closed():
    """A second request returns the same object; after a close, the log is opened again with the same number."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        assert manager.log("orders") is log
        assert manager.log("other").stream_id != log.stream_id
        number = log.stream_id
        log.close()
        log.close()
        again = manager.log("orders")
        assert again is not log
        assert again.stream_id == number
        assert [one.name for one in manager.snapshot()] == ["orders", "other"]


def test_the_number_of_a_log_is_permanent():
    """Regardless of the order of opens; a damaged number is refused with its path."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        numbers = {name: manager.log(name).stream_id for name in ("a", "b")}
        manager.log("a").append_record(b"x")
    with open_manager(fs) as manager:
        assert {name: manager.log(name).stream_id for name in ("b", "a")} == numbers
    file = fs.open_write(f"{ROOT}/a/aof.id")
    file.pwrite(b"?", 0)
    file.close()
    with open_manager(fs) as manager, pytest.raises(CorruptionError) as error:
        manager.log("a")
    assert error.value.path == f"{ROOT}/a/aof.id"
    assert "restore it from" in error.value.reason
    (named,) = fs.list_dir(f"{ROOT}/a/warm/durability")
    assert int(named.removesuffix(".json")) == numbers["a"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_names_outside_the_directory_are_refused(name):
    """Before any file is created."""
    with open_manager(CrashFileSystem()) as manager, pytest.raises(UsageError):
        manager.log(name)


def test_a_closed_manager_refuses_calls():
    """Closing twice is allowed; everything in it is closed and durable."""
    fs = CrashFileSystem()
    manager = open_manager(fs)
    log = manager.log("orders")
    log.append_record(b"x")
    manager.close()
    manager.close()
    for attempt in (lambda: manager.log("orders"), lambda: log.append_record(b"y"), log.seal_current_segment):
        with pytest.raises(StoreClosedError):
            attempt()
    with open_manager(fs.clone_after_crash(0)) as again:
        assert payloads(again.log("orders")) == [b"x"]


def test_other_settings_for_an_open_log_are_refused():
    """An open log keeps its settings. Equal settings are accepted."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders", tiny(preallocate_segments=2))
        assert manager.log("orders", tiny(preallocate_segments=2)) is log
        assert manager.log("orders") is log
        with pytest.raises(UsageError, match="open with other settings"):
            manager.log("orders", tiny(preallocate_segments=3))
        log.close()
        assert manager.log("orders", tiny(preallocate_segments=3)).config.preallocate_segments == 3


@pytest.mark.parametrize("name", [7, None, b"orders", "aof.lock"])
def test_invalid_log_names_are_refused(name):
    """Including the name of the manager's own file."""
    with open_manager(CrashFileSystem()) as manager, pytest.raises(UsageError, match="cannot be called"):
        manager.log(name)


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ("nope://x", "no backend for nope"),
        ("", "objects"),
        ({"backend": "nope"}, "backend is one of"),
        ("s3://", "bucket"),
    ],
)
def test_an_invalid_object_location_is_refused_immediately(objects, reason):
    """Not only when the disk is full and the first segment is evicted. Other logs can be opened."""
    with open_manager(CrashFileSystem()) as manager:
        with pytest.raises(SettingsError, match=reason):
            manager.log("orders", tiny(tiers=TierConfig(objects=objects)))
        manager.log("other").append_record(b"x")


def test_the_upstream_watermark_is_restored():
    """From footer and pointer; it never decreases; the import continues with the next entry."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.set_current_ext_id(42)
        log.set_coordinator_watermark(77)
        log.set_coordinator_watermark(5)
        log.append_record(b"x")
        log.force_rollover(timeout=5)
        log.set_coordinator_watermark(99)
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert log.coordinator_watermark == 77
        assert log.snapshot().ext_id == 42
        assert [one.ext_id for one in log.open_reader()] == [42]


def test_a_seal_has_the_watermark_of_its_segment_only():
    """Otherwise a power loss would lose a record that the upstream log has dropped."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"1" * 12_000)
        log.set_coordinator_watermark(1)
        manager.maintain()
        log.append_record(b"2" * 12_000)
        log.set_coordinator_watermark(2)
        log._context.run_maintenance()  # seals the first segment; no record of the second is synced
        assert [one.state for one in log.segment_snapshot()] == ["sealed", "active"]
        crashed = fs.clone_after_crash(0)
    with open_manager(crashed) as manager:
        log = manager.log("orders")
        assert [one[:1] for one in payloads(log)] == [b"1"]
        assert log.coordinator_watermark == 1
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.set_coordinator_watermark(2)
        log.force_rollover(timeout=5)
    with open_manager(fs) as manager:
        assert manager.log("orders").coordinator_watermark == 2


def test_an_upstream_log_is_imported_once_despite_crashes():
    """From the watermark on, or from the last record if a crash kept more."""
    upstream = {number: b"%d" % number * 900 for number in range(1, 25)}
    asked: list[int] = []

    def entries(first):
        asked.append(first)
        return ((number, upstream[number]) for number in sorted(upstream) if number >= first)

    fs = CrashFileSystem()
    crashed: list[CrashFileSystem] = []
    with open_manager(fs) as manager:
        log = manager.log("orders")
        fs.on_step = lambda op, path: crashed.append(fs.clone_after_crash(len(crashed)))
        assert replay_upstream(log, entries) == 24
        fs.on_step = None
        killed = fs.clone_after_kill()
    assert asked == [1]
    for disk in (*crashed[::5], killed, fs):
        with open_manager(disk) as manager:
            log = manager.log("orders")
            assert replay_upstream(log, entries, timeout=5) == log.coordinator_watermark == log.last_ext_id() == 24
            assert payloads(log) == list(upstream.values())
    assert asked[-2:] == [25, 25]


def test_upstream_numbers_must_increase():
    """Repeated or decreasing numbers are refused, and earlier entries are kept."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        for entries in ([(3, b"c"), (3, b"c")], [(4, b"d"), (2, b"b")], [("5", b"e")], [(0, b"z")], [(1 << 64, b"z")]):
            with pytest.raises(UsageError, match="numbers must grow"):
                replay_upstream(log, lambda _, entries=entries: iter(entries))
        assert payloads(log) == [b"c", b"d"]


@pytest.mark.parametrize("watermark", [-1, 1 << 64, "77", None, 1.5])
def test_a_watermark_that_does_not_fit_into_a_footer_is_refused(watermark):
    """If it was accepted, no segment could be sealed."""
    with open_manager(CrashFileSystem()) as manager:
        log = manager.log("orders")
        with pytest.raises(UsageError):
            log.set_coordinator_watermark(watermark)
        log.append_record(b"x")
        assert log.force_rollover(timeout=5) == 0


@pytest.mark.parametrize("number", range(9))
def test_the_how_to_examples_run(tmp_path, monkeypatch, capsys, number):
    """Every example of the page runs, in order, in one directory."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "aof.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    examples = [source for source in examples if "quiver.spark" not in source]
    assert len(examples) == 9
    monkeypatch.chdir(tmp_path)
    exec(examples[number], {})
    assert ("payload" in capsys.readouterr().out) == (number in {0, 8})


def test_invalid_arguments_are_refused(tmp_path):
    """With a message, before anything is written."""
    with pytest.raises(UsageError, match="has no name"):
        AofManager.open("")
    with pytest.raises(UsageError, match="not dict"):
        AofManager.open(str(tmp_path / "x"), {"root_dir": "x"})
    assert not (tmp_path / "x").exists()
    with open_manager(CrashFileSystem()) as manager:
        with pytest.raises(UsageError, match="not str"):
            manager.log("orders", "tiny")
        log = manager.log("orders")
        for refused in (lambda: log.append_record("text"), lambda: log.append_records([b"x", "text"])):
            with pytest.raises(InvalidRecordError, match="is bytes, not str"):
                refused()
        with pytest.raises(UsageError, match="nanoseconds since 1970"):
            log.find_record("yesterday")
        assert payloads(log) == []
