"""`repair` on a store with every kind of damage keeps valid data and copies of damaged data, despite crashes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from disk_files import read_file, write_file
from quiver import Bundle, Settings, read
from quiver.bundle import BundleRef
from quiver.errors import DirectoryInUseError, UsageError
from quiver.store.offline.repair import repair
from quiver.store.reading.check import check_store
from quiver.store.wal.replay import scan_file
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import open_manual

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/r"
BUNDLES = 16
SETTINGS = Settings(segment_bytes_max=1_000, wal_rotate_bytes=1_000_000, wal_bytes_max=4_000_000, delete_grace_s=0.0)
NO_LOG = Settings(segment_bytes_max=1_000, wal_rotate_bytes=700, wal_bytes_max=40_000, delete_grace_s=0.0)
MANY_LOGS = Settings(segment_bytes_max=100_000, wal_rotate_bytes=700, wal_bytes_max=400_000, delete_grace_s=0.0)
SEEDS = (0, 1, 2)
opened = partial(open_manual, settings=SETTINGS, root=ROOT)


def bundle_of(number: int) -> Bundle:
    slots = {30: pa.record_batch({"n": pa.array([number], pa.int32())})}
    if number % 2:
        slots[31] = pa.record_batch({"tag": pa.array([f"t{number}"]).dictionary_encode()})
    return Bundle(slots, ingested_at_ns=5 + number)


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    expected = bundle_of(number)
    # The dictionaries of a segment are unified, so compare the values of each row.
    for slot in expected:
        assert bundle[slot].schema == expected[slot].schema, "a bundle came back changed"
        assert bundle[slot].to_pylist() == expected[slot].to_pylist(), "a bundle came back changed"
    assert bundle.slots == expected.slots
    return number


def made(settings: Settings) -> CrashFileSystem:
    """Killed at work: two thirds sealed, `s` has resolved the first three bundles, `t` none."""
    fs = CrashFileSystem()
    store = opened(fs, settings=settings)
    subscriber = store.register("s", start="earliest")
    store.register("t", start="earliest")
    for number in range(BUNDLES):
        store.ingest(bundle_of(number), durable=True)
        if number == 10:
            store.seal()
            for _ in range(3):
                handle = subscriber.next_bundle(timeout=0)
                assert handle is not None
                handle.ack()
            store.maintain()
    return fs.clone_after_kill()


def segments_of(fs: CrashFileSystem) -> list[str]:
    return [f"{ROOT}/segments/{name}" for name in fs.list_dir(f"{ROOT}/segments") if name.endswith(".qseg")]


def flip(fs: CrashFileSystem, path: str, offset: int) -> bytes:
    data = bytearray(read_file(fs, path))
    data[offset] ^= 0x41
    write_file(fs, path, bytes(data))
    return bytes(data)


def numbers(fs: CrashFileSystem) -> list[int]:
    return [number_of(bundle) for _, bundle in read(ROOT, fs=fs).bundles()]


def delivered(fs: CrashFileSystem, name: str) -> list[int]:
    got = []
    with opened(fs) as store:
        store.seal()
        subscriber = store.register(name, start="earliest")
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(number_of(handle.bundle))
            handle.ack()
    return got


def damage_everything(fs: CrashFileSystem) -> list[bytes]:
    """Cause one damage of each kind; return the damaged bytes that must be kept."""
    newest = segments_of(fs)[-1]
    kept = [
        flip(fs, newest, 200),
        flip(fs, f"{ROOT}/wal/quiver.wal.cursor", 12),
        flip(fs, f"{ROOT}/quiver.sub.s", 20),
        flip(fs, f"{ROOT}/quiver.id", 3),
    ]
    write_file(fs, f"{ROOT}/segments/quiver.segment.floor", b"QUIVER\0Fnonsense")
    kept.append(b"QUIVER\0Fnonsense")
    write_file(fs, f"{ROOT}/quiver.drops", b"QUIVER\0Dnonsense, and more of it, and more")
    write_file(fs, f"{ROOT}/segments/0000000000000077.qseg.tmp", b"x")
    write_file(fs, f"{ROOT}/quiver.sub.s.tmp", b"x")
    return kept


def copies(fs: CrashFileSystem) -> list[bytes]:
    return [read_file(fs, f"{ROOT}/quarantine/{name}") for name in fs.list_dir(f"{ROOT}/quarantine")]


def test_no_bundle_in_the_log_is_lost() -> None:
    """The damaged segment is rewritten from the log; all bundles exist, and all damaged bytes are kept."""
    fs = made(SETTINGS)
    kept = damage_everything(fs)
    before = segments_of(fs)
    report = repair(fs, ROOT, clock=ManualClock())

    assert not report.damaged
    assert segments_of(fs)[: len(before)] == before
    assert numbers(fs) == list(range(BUNDLES))
    assert all(data in copies(fs) for data in kept)
    assert [mend.lost for mend in report.repairs if ".qseg" in mend.path] == [None, None]
    assert not any(path.endswith(".tmp") for path in fs.list_dir(ROOT) + fs.list_dir(f"{ROOT}/segments"))
    # The progress of `s` is unknown now, so it gets everything again. `t` had resolved none.
    assert delivered(fs, "s") == list(range(BUNDLES))
    assert delivered(fs, "t") == list(range(BUNDLES))


def test_lost_bundles_are_reported_and_exported() -> None:
    """A damaged segment, not in the log, is quarantined, its readable rows are exported, and the loss counted."""
    fs = made(NO_LOG)
    path = segments_of(fs)[0]
    removed = opened(fs.clone_after_kill())
    info = removed.internals.catalog.segments()[0]
    lost = [
        number_of(removed.internals.catalog.bundle(BundleRef(info.seq, index))) for index in range(info.bundle_count)
    ]
    removed.close()
    data = flip(fs, path, 200)
    report = repair(fs, ROOT, clock=ManualClock())
    (mend,) = [mend for mend in report.repairs if mend.path == path]

    assert mend.lost is not None
    assert f"{len(lost)} of its {len(lost)} bundles" in mend.lost
    assert f"t had {len(lost)} pending" in mend.lost
    assert data in copies(fs)
    assert any(name.endswith(".arrows") for name in fs.list_dir(f"{ROOT}/quarantine"))
    assert numbers(fs) == [number for number in range(BUNDLES) if number not in lost]
    assert not report.damaged
    with opened(fs) as store:
        assert store.stats()["next_segment"] > int(path[-21:-5])


@pytest.mark.parametrize("offset", [0, 10, 14, 20])
def test_the_header_of_a_log_file_is_repaired(offset: int) -> None:
    """Magic, version, hash: a flipped byte in any of the files does not prevent opening."""
    fs = made(MANY_LOGS)
    logs = [f"{ROOT}/wal/{name}" for name in fs.list_dir(f"{ROOT}/wal") if not name.endswith("cursor")]
    assert len(logs) > 1
    for log in logs:
        one = fs.clone_after_kill()
        flip(one, log, offset)
        flip(one, log, offset + 1)
        report = repair(one, ROOT, clock=ManualClock())
        assert not report.damaged, report.findings
        assert numbers(one) == list(range(BUNDLES)), (log, offset)


@pytest.mark.parametrize("kind", ["entries", "sealed", "bare"])
def test_the_header_of_the_only_log_file_is_repaired(kind: str) -> None:
    """No other file has the values: each byte is repaired from the known ones, for any contents of the file."""
    fs = made(SETTINGS) if kind != "bare" else CrashFileSystem()
    if kind != "entries":
        with opened(fs) as store:
            store.seal()
    log = f"{ROOT}/wal/quiver.wal"
    # The version of a header without entries is taken as it is.
    offsets = [offset for offset in range(38) if kind != "bare" or offset not in {10, 11}]
    for offset in offsets:
        one = fs.clone_after_kill()
        flip(one, log, offset)
        found = check_store(one, ROOT)
        report = repair(one, ROOT, clock=ManualClock())
        assert {finding.kind for finding in report.findings} <= {"quarantined"}, (offset, report.findings)
        assert not found.damaged or log in [mend.path for mend in report.repairs], offset
        assert numbers(one) == ([] if kind == "bare" else list(range(BUNDLES))), offset


def test_damage_in_the_log_costs_one_entry_and_is_reported() -> None:
    """
    A flipped byte in an entry that is in no segment: that bundle is dropped and its number reported; the rest is
    sealed.
    """
    fs = made(replace(SETTINGS, segment_bytes_max=100_000))
    log = f"{ROOT}/wal/quiver.wal"
    (hit,) = [one for one in scan_file(fs, log).entries if one.entry.sequence == 13]
    flip(fs, log, hit.start + 38 + 200)
    report = repair(fs, ROOT, clock=ManualClock())
    (mend,) = [mend for mend in report.repairs if mend.path == log]

    assert mend.lost == "the bundle with sequence number 13"
    assert numbers(fs) == [number for number in range(BUNDLES) if number != 13]
    assert not report.damaged
    assert any(name.endswith(".damaged") for name in fs.list_dir(f"{ROOT}/quarantine"))


def test_a_valid_store_needs_no_repair() -> None:
    """No repairs, and no copies."""
    fs = made(SETTINGS)
    report = repair(fs, ROOT, clock=ManualClock())

    assert (report.repairs, report.damaged) == ([], False)
    assert numbers(fs) == list(range(BUNDLES))
    assert not fs.exists(f"{ROOT}/quarantine")
    assert delivered(fs, "s") == list(range(3, BUNDLES))


def test_a_dry_run_changes_nothing() -> None:
    """It reports the same, and every file stays byte for byte; also the second time."""
    fs = made(SETTINGS)
    damage_everything(fs)
    paths = [f"{ROOT}/{name}" for name in fs.list_dir(ROOT) if "." in name and not name.endswith(".lock")]
    paths += [f"{ROOT}/{room}/{name}" for room in ("wal", "segments") for name in fs.list_dir(f"{ROOT}/{room}")]
    before = {path: read_file(fs, path) for path in paths}
    report = repair(fs, ROOT, clock=ManualClock(), dry_run=True)

    assert {path: read_file(fs, path) for path in paths} == before
    assert not fs.exists(f"{ROOT}/quarantine")
    real = repair(fs, ROOT, clock=ManualClock())
    assert [mend.path for mend in report.repairs] == [mend.path for mend in real.repairs]


def test_an_open_store_is_refused() -> None:
    """The lock names its process."""
    fs = CrashFileSystem()
    with opened(fs) as store, pytest.raises(DirectoryInUseError, match="quiver store"):
        repair(fs, store.path, clock=ManualClock())
    fs.make_dirs("/empty")
    with pytest.raises(UsageError, match="not a store"):
        repair(fs, "/empty", clock=ManualClock())


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", [SETTINGS, NO_LOG], ids=["log", "no log"])
def test_a_crash_at_every_step_is_repaired_by_the_next_repair(settings: Settings, stride: int) -> None:
    """Power loss and kill at each step: the second repair ends with the same bundles and every copy."""
    fs = made(settings)
    kept = damage_everything(fs)
    flip(fs, segments_of(fs)[0], 200)
    kept.append(read_file(fs, segments_of(fs)[0]))
    complete = fs.clone_after_kill()
    repair(complete, ROOT, clock=ManualClock())
    expected = numbers(complete)
    clones: list[tuple[str, CrashFileSystem]] = []

    def before(operation: str, path: str) -> None:
        label = f"step {len(clones)} ({operation} {path})"
        seed = SEEDS[len(clones) % len(SEEDS)]
        clones.append((f"{label}, power loss {seed}", fs.clone_after_crash(seed)))
        clones.append((f"{label}, kill -9", fs.clone_after_kill()))

    fs.on_step = before
    repair(fs, ROOT, clock=ManualClock())
    fs.on_step = None
    assert len(clones) > 100
    for label, clone in clones[random.randrange(stride) :: stride]:
        report = repair(clone, ROOT, clock=ManualClock())
        assert not report.damaged, f"{label}: {report.findings}"
        assert numbers(clone) == expected, label
        assert all(data in copies(clone) for data in kept), label
        assert delivered(clone, "t") == expected, label
