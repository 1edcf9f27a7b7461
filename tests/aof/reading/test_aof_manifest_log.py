"""The manifest log has the same state after a restart, despite crashes and flipped bits."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from tier_samples import entry_of

from quiver.aof.format.manifest_chunk import CHUNK_HEADER_BYTES
from quiver.aof.format.manifest_record import Event, ManifestRecord
from quiver.aof.format.tier_entry import RemoteCopy, decode_entries, encode_entries
from quiver.aof.reading.manifest import ManifestLog, replay_manifest
from quiver.aof.tiers.state import TierState, entry_record, key_record
from quiver.observe import InMemoryObserver
from quiver.primitives.scan import Frame
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/aof/orders"
STREAM = 42
FOLDER = f"{ROOT}/manifest/{STREAM:020}"


def open_log(fs, **settings) -> ManifestLog:
    return ManifestLog(fs, ROOT, STREAM, clock=ManualClock(), observer=InMemoryObserver(), **settings)


def disk() -> CrashFileSystem:
    fs = CrashFileSystem()
    fs.make_dirs(ROOT)
    return fs


def work(log: ManifestLog, number: int) -> TierState:
    """Record one more event, and return the expected state."""
    log.write([
        ManifestRecord(Event.COMPRESSION_DONE, number, 0, 1, (10, 0)),
        entry_record(number, entry_of(number), 1),
    ])  # fmt: skip
    if number % 3 == 2:
        log.write(
            [entry_record(number - 1, None, 1), key_record(Event.TIER2_DELETE_QUEUED, number - 1, f"k/{number}", 1)]
        )
    if number % 6 == 5:
        log.write([key_record(Event.TIER2_DELETED, number - 1, f"k/{number}", 1)])
    return TierState(dict(log.state.entries), dict(log.state.deletes))


def test_rows_round_trip():
    """With and without an object; any other row is damage, never an exception."""
    rows = (entry_of(1), entry_of(2, remote=RemoteCopy("k", None, 5, 6)), entry_of(3, residency="needs_recovery"))
    text = encode_entries(rows)
    assert decode_entries(text) == Frame(rows, len(text))
    for size in range(len(text)):
        assert not isinstance(decode_entries(text[:size]), Frame)
    for wrong in ('{"a":1}', "[1]", "[{}]", text.replace('"checksum":', '"checksun":'), text.replace("w1", "../w1")):
        assert not isinstance(decode_entries(wrong), Frame)


def test_the_page_lists_the_members_of_a_row():
    """It lists every member and no other."""
    (row,) = json.loads(encode_entries([entry_of(1)]))
    page = (Path(__file__).parents[3] / "docs" / "formats" / "aof-manifest.md").read_text(encoding="utf-8")
    lines = page.partition("| member | meaning |")[2].partition("\n\n")[0].splitlines()
    assert {name for line in lines[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])} == set(row)


@pytest.mark.parametrize("chunk_bytes", [0, 2_000, 256 * 1024])
def test_the_manifest_continues_after_a_restart(chunk_bytes):
    """Every state is read again after each write; repeated rotation keeps the log small."""
    fs = disk()
    state = TierState()
    for number in range(40):
        log = open_log(fs, chunk_bytes=chunk_bytes)
        assert log.state == state
        assert not log.damaged
        state = work(log, number)
        log.close()
    found = replay_manifest(fs, ROOT, STREAM)
    assert found.state == state
    assert len(found.indexes) == (1 if chunk_bytes > 100_000 else 2)
    assert sum(fs.stat(f"{FOLDER}/{name}").size_bytes for name in fs.list_dir(FOLDER)) < 120_000


def test_the_growth_of_the_manifest_is_bounded():
    """Ten thousand events of one segment leave only a few chunks."""
    fs = disk()
    log = open_log(fs, chunk_bytes=4_000)
    for _ in range(2_000):
        log.write([entry_record(1, entry_of(1), 1)])
    log.close()
    assert sum(fs.stat(f"{FOLDER}/{name}").size_bytes for name in fs.list_dir(FOLDER)) < 10_000
    assert replay_manifest(fs, ROOT, STREAM).state.entries == {1: entry_of(1)}


@pytest.mark.parametrize("chunk_bytes", [0, 1_500, 256 * 1024])
def test_a_crash_at_any_step_keeps_completed_writes(chunk_bytes):
    """A write that returned is complete; one that did not is complete or absent."""
    fs = disk()
    log = open_log(fs, chunk_bytes=chunk_bytes)
    moments = []
    states = [TierState()]
    fs.on_step = lambda op, path: moments.append(
        (len(states), f"{op} {path}", [fs.clone_after_crash(seed) for seed in range(4)])
    )
    for number in range(7):
        states.append(work(log, number))
    fs.on_step = None
    log.close()
    assert len(moments) > 30
    for done, label, disks in moments:
        for one in disks:
            again = open_log(one, chunk_bytes=chunk_bytes)
            # A turn makes up to three writes, so the state between two states is valid, too.
            known = set(again.state.entries)
            least, most = set(states[done - 1].entries), set(states[min(done, len(states) - 1)].entries)
            assert (least & most) <= known, label
            assert known <= least | most | {done - 1}, label
            assert not again.damaged, label
            again.write([entry_record(99, entry_of(99), 1)])
            again.close()
            assert set(replay_manifest(one, ROOT, STREAM).state.entries) == known | {99}, label


@pytest.mark.parametrize("operation", ["pwrite", "sync", "create", "rename", "sync_dir", "remove"])
def test_a_failed_write_has_no_effect(operation):
    """The caller gets the error, and the next write continues after the last committed one."""
    for nth in range(1, 5):
        inner = disk()
        fs = FaultFileSystem(inner)
        log = open_log(fs, chunk_bytes=0 if operation in {"create", "rename", "sync_dir", "remove"} else 100_000)
        log.write([entry_record(1, entry_of(1), 1)])
        fs.fail_on(operation, nth)
        known = {1}
        for number in range(2, 6):
            try:
                log.write([entry_record(number, entry_of(number), 1)])
            except OSError:
                continue
            known.add(number)
        fs.heal()
        assert set(log.state.entries) == known
        log.write([entry_record(9, entry_of(9), 1)])
        log.close()
        assert set(replay_manifest(inner.clone_after_crash(0), ROOT, STREAM).state.entries) == known | {9}


def test_a_torn_end_is_truncated():
    """Uncommitted bytes are removed when the log is opened, and the next write follows the committed ones."""
    fs = disk()
    log = open_log(fs)
    log.write([entry_record(1, entry_of(1), 1)])
    log.close()
    (name,) = fs.list_dir(FOLDER)
    file = fs.open_write(f"{FOLDER}/{name}")
    size = file.size()
    file.pwrite(b"\x10\x00torn", size)
    file.close()
    log = open_log(fs)
    assert fs.stat(f"{FOLDER}/{name}").size_bytes == size
    log.write([entry_record(2, entry_of(2), 1)])
    log.close()
    assert set(replay_manifest(fs, ROOT, STREAM).state.entries) == {1, 2}


def test_damage_preserves_complete_records():
    """For any flipped bit and any length, the state is a former one, and the log continues in a new chunk."""
    fs = disk()
    log = open_log(fs)
    states = [{}]
    for number in range(4):
        log.write([entry_record(number, entry_of(number), 1)])
        states.append(dict(log.state.entries))
    log.close()
    (name,) = fs.list_dir(FOLDER)
    path = f"{FOLDER}/{name}"
    complete = fs.read_all(path, size_max=1 << 20)
    wounds = [complete[:size] for size in range(0, len(complete), 37)]
    wounds += [complete[:at] + bytes([complete[at] ^ 8]) + complete[at + 1 :] for at in range(0, len(complete), 23)]
    for wound in wounds:
        one = disk()
        one.make_dirs(FOLDER)
        file = one.create(path)
        file.pwrite(wound, 0)
        file.close()
        again = open_log(one)
        assert again.state.entries in states
        assert again.damaged or again.state.entries == states[-1] or len(wound) < CHUNK_HEADER_BYTES
        again.write([entry_record(77, entry_of(77), 1)])
        assert 77 in replay_manifest(one, ROOT, STREAM).state.entries
        again.close()


def test_an_append_on_a_full_disk_needs_no_new_chunk():
    """An append without space leaves the chunk unchanged, and one that is due for rotation grows the chunk instead."""
    inner = disk()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, path_part=".mlog")
    fs.short_write = 7
    log = open_log(fs, chunk_bytes=2_000)
    work(log, 0)
    chunks = inner.list_dir(FOLDER)
    fs.fail_on("pwrite")
    with pytest.raises(OSError, match="No space"):
        work(log, 1)
    inner.free = 5_000
    for number in range(1, 20):
        state = work(log, number)
    assert inner.list_dir(FOLDER) == chunks
    for there in (inner, inner.clone_after_crash(0)):
        found = replay_manifest(there, ROOT, STREAM)
        assert (found.state.entries, found.state.deletes, found.damaged) == (state.entries, state.deletes, {})
    inner.free = 1 << 30
    work(log, 20)
    assert len(inner.list_dir(FOLDER)) == 2
