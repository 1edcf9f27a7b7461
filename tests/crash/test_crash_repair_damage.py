"""Each file of a store damaged in turn: `verify` reports it, `repair` repairs it, and only its own data is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from disk_files import read_file, write_file
from quiver import Settings
from quiver.errors import UnsupportedFormatError
from quiver.primitives.checksum import crc32
from quiver.primitives.findings import Finding
from quiver.store.format.drop_ledger import DroppedSegment, encode_drop_ledger
from quiver.store.format.floor import encode_floor
from quiver.store.offline.repair import repair
from quiver.store.offline.repair_report import Repaired
from quiver.store.reading.check import check_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import open_manual, stamped
from store_rig import read_numbers as read_numbers_of

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/r"
BUNDLES = 14
WITH_LOG = Settings(
    segment_bytes_max=1_000,
    wal_rotate_bytes=1_000_000,
    wal_bytes_max=4_000_000,
    delete_grace_s=0.0,
    progress_damage="backup",
)
ROTATED = replace(WITH_LOG, segment_bytes_max=100_000, wal_rotate_bytes=700)
ALONE = replace(WITH_LOG, wal_rotate_bytes=700, wal_bytes_max=40_000)
SETTINGS = {"log": WITH_LOG, "retired logs": ROTATED, "segments alone": ALONE}
NOT_READ = (".lock", "quiver.reserve")
opened = partial(open_manual, root=ROOT)
read_numbers = partial(read_numbers_of, root=ROOT)


def made(settings: Settings) -> CrashFileSystem:
    """Killed at work: two thirds sealed, `s` has resolved some bundles and has a backup, and there is a drop ledger."""
    fs = CrashFileSystem()
    store = opened(fs, settings=settings)
    subscriber = store.register("s", start="earliest")
    store.register("t", start="earliest")
    for number in range(BUNDLES):
        store.ingest(stamped(number), durable=True)
        if number == 9:
            store.seal()
            for _ in range(2):
                handle = subscriber.next_bundle(timeout=0)
                assert handle is not None
                handle.ack()
                store.maintain()
    left = fs.clone_after_kill()
    write_file(left, f"{ROOT}/quiver.drops", encode_drop_ledger([DroppedSegment(500, 1, 9, "size", 7)]))
    write_file(left, f"{ROOT}/segments/quiver.segment.floor", encode_floor(3))
    return left


def paths(fs: CrashFileSystem) -> list[str]:
    found = [f"{ROOT}/{room}/{name}" for room in ("wal", "segments") for name in fs.list_dir(f"{ROOT}/{room}")]
    found += [f"{ROOT}/{name}" for name in fs.list_dir(ROOT) if name.startswith("quiver.")]
    return [path for path in found if not path.endswith(NOT_READ)]


def delivered(fs: CrashFileSystem, settings: Settings, name: str) -> list[int]:
    got = []
    with opened(fs, settings=settings) as store:
        store.seal()
        subscriber = store.register(name, start="earliest")
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(handle.bundle[30]["n"][0].as_py())
            handle.ack()
    return got


def damages(data: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """Flipped anywhere, truncated anywhere, emptied, overwritten."""
    end = len(data.rstrip(b"\0")) or len(data)
    chosen = random.Random(len(data)).sample(range(end), min(count, end))
    for offset in sorted(chosen):
        yield f"flipped at {offset}", data[:offset] + bytes([data[offset] ^ 0x41]) + data[offset + 1 :]
        yield f"cut at {offset}", data[:offset]
    yield "emptied", b""
    yield "overwritten", b"\xa5" * len(data)


def named(findings: list[Finding], path: str) -> list[Finding]:
    return [finding for finding in findings if finding.path == path]


@pytest.mark.parametrize("count", [1, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SETTINGS)
def test_each_file_damaged_in_turn(kind: str, count: int) -> None:
    """Reported with an offset in it and repaired; all bundles are readable that are not only in this file."""
    settings = SETTINGS[kind]
    complete = made(settings)
    assert check_store(complete, ROOT).findings == []
    kinds = {path.rpartition("/")[2].rstrip("0123456789.") for path in paths(complete)}
    assert {"quiver.drops", "quiver.id", "quiver.sub.s", "quiver.sub.s.bak", "quiver.segment.floor"} <= kinds
    assert sorted(read_numbers(complete)) == list(range(BUNDLES))
    for path in paths(complete):
        data = read_file(complete, path)
        without = complete.clone_after_kill()
        without.remove(path)
        elsewhere = set(read_numbers(without))
        is_log = "/quiver.wal" in path and not path.endswith("cursor")
        for what, damaged in damages(data, count):
            label = f"{path} {what}"
            fs = complete.clone_after_kill()
            write_file(fs, path, damaged)
            found = named(check_store(fs, ROOT).findings, path)
            # A log that ends early is normal after a crash: between entries this is not a finding.
            assert found or (is_log and "cut" in label), label
            assert all(0 <= finding.offset <= max(len(data), len(damaged)) for finding in found), label
            report = repair(fs, ROOT, clock=ManualClock())
            assert not report.damaged, f"{label}: {report.findings}"
            assert not any(finding.damaged for finding in found) or named_in(report.repairs, path), label
            assert set(read_numbers(fs)) >= elsewhere, label
            after = fs.clone_after_crash(0)
            got = delivered(after, settings, "t")
            assert set(got) >= elsewhere, label
            assert len(got) == len(set(got)), label
            assert set(delivered(after, settings, "s")) | {0, 1} >= elsewhere, label


def named_in(mends: list[Repaired], path: str) -> bool:
    return any(mend.path == path for mend in mends)


def test_a_store_with_damage_in_every_file_opens() -> None:
    """One byte of every file: all readable bundles are delivered, and the store accepts new ones."""
    for seed in range(6):
        fs = made(ALONE)
        chance = random.Random(seed)
        for path in paths(fs):
            data = bytearray(read_file(fs, path))
            data[chance.randrange(len(data.rstrip(b"\0")) or len(data))] ^= 0x41
            write_file(fs, path, bytes(data))
        report = repair(fs, ROOT, clock=ManualClock())
        assert not report.damaged, f"seed {seed}: {report.findings}"
        with opened(fs, settings=ALONE) as store:
            store.ingest(stamped(99), durable=True)
        assert 99 in delivered(fs, ALONE, "t"), seed


@pytest.mark.parametrize("name", ["quiver.sub.s", "wal/quiver.wal"])
def test_files_of_a_newer_version_are_not_changed(name: str) -> None:
    """Its checksum is valid, so it is not damaged: it is refused with path and offset, and no byte changes."""
    fs = made(WITH_LOG)
    path = f"{ROOT}/{name}"
    data = bytearray(read_file(fs, path))
    at = 8 if name.startswith("quiver.sub") else 10
    data[at] = 9
    if at == 8:
        data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
    write_file(fs, path, bytes(data))
    if at == 8:
        with pytest.raises(UnsupportedFormatError, match=r"quiver\.sub\.s.*unsupported version 9"):
            repair(fs, ROOT, clock=ManualClock())
        assert read_file(fs, path) == bytes(data)
        assert not fs.exists(f"{ROOT}/quarantine")
    else:
        # A log's header has no checksum: with valid entries after it, a wrong version is damage.
        assert not repair(fs, ROOT, clock=ManualClock()).damaged
        assert sorted(read_numbers(fs)) == list(range(BUNDLES))
