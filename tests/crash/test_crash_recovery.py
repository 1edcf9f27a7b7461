"""Recovery of a directory with every kind of damage, interrupted at each of its steps."""

from __future__ import annotations

import pyarrow as pa
import pytest

from disk_files import read_file, write_file
from quiver.bundle import Bundle
from quiver.errors import QuiverError, UnsupportedFormatError
from quiver.observe import InMemoryObserver
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import sealed_numbers

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/buffer"
SETTINGS = Settings(segment_bytes_max=3_000, wal_rotate_bytes=1_200, delete_grace_s=0.0)
BUNDLES = 23
IN_A_SEGMENT = 6
RUBBISH = {
    "empty": b"", "one zero": b"\0", "a magic": b"QUIVER", "ones": b"\xff" * 200, "zeros": bytes(5000),
    "another program's": b"\x89PNG\r\n" * 100,
}  # fmt: skip


def numbered(number: int) -> Bundle:
    return Bundle({30: pa.record_batch({"n": pa.array([number] * 4), "text": pa.array([f"row {number}"] * 4)})})


def opened(fs: CrashFileSystem, observer: InMemoryObserver | None = None, *, now_ns: int = 10**18) -> Store:
    clock = ManualClock(now_ns=now_ns)
    return open_store(ROOT, SETTINGS, fs=fs, clock=clock, observer=observer, background=False)


def used(fs: CrashFileSystem) -> None:
    """A store that sealed and deleted segments, and was killed with bundles that are only in the log."""
    store = opened(fs)
    subscriber = store.register("s", start="earliest")
    for number in range(BUNDLES):
        store.ingest(numbered(number))
        if number == IN_A_SEGMENT:
            for _ in range(IN_A_SEGMENT):
                handle = subscriber.next_bundle(timeout=0)
                assert handle is not None
                handle.ack()
            store.maintain()
    store.sync()


@pytest.fixture(scope="module")
def sound() -> CrashFileSystem:
    """A store that was killed while working."""
    fs = CrashFileSystem()
    used(fs)
    return fs.clone_after_kill()


def paths(fs: CrashFileSystem) -> list[str]:
    """Every file of the store."""
    found = [f"{ROOT}/{name}" for name in fs.list_dir(ROOT) if name not in {"wal", "segments", "quarantine"}]
    for room in ("wal", "segments"):
        found += [f"{ROOT}/{room}/{name}" for name in fs.list_dir(f"{ROOT}/{room}")]
    return found


def held(store: Store) -> list[int]:
    """The numbers of all bundles of the store, in sealed segments."""
    store.seal()
    return sealed_numbers(store)


def kept(fs: CrashFileSystem) -> dict[str, bytes]:
    """The files in quarantine."""
    quarantine = f"{ROOT}/quarantine"
    names = fs.list_dir(quarantine) if fs.exists(quarantine) else []
    return {name: read_file(fs, f"{quarantine}/{name}") for name in names if not name.endswith(".tmp")}


def segment_paths(fs: CrashFileSystem) -> list[str]:
    return [path for path in paths(fs) if path.endswith(".qseg")]


def damage_everything(fs: CrashFileSystem) -> None:
    """Cause damage of every kind, so that each step of recovery has work."""
    first, *_ = segment_paths(fs)
    complete = read_file(fs, first)
    write_file(fs, first, complete[: len(complete) // 2])
    write_file(fs, f"{ROOT}/segments/0000000000000040.qseg", b"")
    write_file(fs, f"{ROOT}/segments/0000000000000041.qseg", b"\xff" * 40)
    write_file(fs, f"{ROOT}/segments/0000000000000042.qseg.tmp", complete)
    write_file(fs, f"{ROOT}/segments/notes.txt", b"not ours")
    write_file(fs, f"{ROOT}/segments/quiver.segment.floor", b"QUIVER")
    write_file(fs, f"{ROOT}/wal/quiver.wal.cursor", b"")
    write_file(fs, f"{ROOT}/wal/quiver.wal.next", b"half a header")
    write_file(fs, f"{ROOT}/wal/quiver.wal.abc", b"not ours")
    *_, rotated = [path for path in paths(fs) if path.rpartition(".")[2].isdigit()]
    log = bytearray(read_file(fs, rotated))
    log[120] ^= 0x10
    write_file(fs, rotated, bytes(log))
    active = read_file(fs, f"{ROOT}/wal/quiver.wal").rstrip(b"\0")
    write_file(fs, f"{ROOT}/wal/quiver.wal", active[:-7])


def test_the_damage_reaches_every_step(sound: CrashFileSystem) -> None:
    """Otherwise the tests below would check less than they claim."""
    fs = sound.clone_after_kill()
    damage_everything(fs)
    observer = InMemoryObserver()
    store = opened(fs, observer)

    found = {dict(key)["kind"] for name, key in observer.counts if name == "quiver.recovery.damaged_files_total"}
    assert found == {"segment", "floor", "cursor", "wal"}
    assert observer.total("quiver.wal.torn_tail_total") == 1
    assert {name for name in kept(fs) if name.endswith(".qseg")} == {
        segment_paths(sound)[0].rpartition("/")[2],
        "0000000000000040.qseg",
        "0000000000000041.qseg",
    }
    assert not [path for path in paths(fs) if path.endswith((".tmp", ".next"))]
    assert fs.exists(f"{ROOT}/segments/notes.txt"), "what is not ours stays"
    assert fs.exists(f"{ROOT}/wal/quiver.wal.abc"), "what is not ours stays"
    assert set(held(opened(sound.clone_after_kill()))) - set(held(store)) == {*range(6, 12), 18, 22}


def test_a_crash_at_any_step_of_recovery_changes_nothing_about_its_result(sound: CrashFileSystem) -> None:
    """
    A kill or a power loss before each step of a recovery with all kinds of work: the next recovery has the same
    bundles, the same copies of damaged bytes, and an equal or higher next segment number.
    """
    damaged = sound.clone_after_kill()
    damage_everything(damaged)
    complete = damaged.clone_after_kill()
    store = opened(complete)
    copies, next_segment = kept(complete), store.stats()["next_segment"]
    expected = held(store)

    cut: list[tuple[str, CrashFileSystem]] = []
    fs = damaged.clone_after_kill()

    def before(operation: str, path: str) -> None:
        label = f"before {operation} {path}, step {fs.steps}"
        cut.append((f"{label}, killed", fs.clone_after_kill()))
        cut.extend((f"{label}, power loss {seed}", fs.clone_after_crash(seed)) for seed in (0, 2))

    fs.on_step = before
    opened(fs)
    fs.on_step = None
    assert len(cut) > 60
    for label, again in cut:
        store = opened(again)
        assert kept(again) == copies, label
        assert store.stats()["next_segment"] >= next_segment, label
        assert held(store) == expected, label


def test_a_second_recovery_has_nothing_to_do(sound: CrashFileSystem) -> None:
    """It reports no damage, because the first one handled all of it."""
    fs = sound.clone_after_kill()
    damage_everything(fs)
    store = opened(fs)
    expected = held(store)
    store.close()
    observer = InMemoryObserver()
    store = opened(fs, observer)

    assert observer.total("quiver.recovery.damaged_files_total") == 0
    assert observer.total("quiver.wal.torn_tail_total") == 0
    assert held(store) == expected


@pytest.mark.parametrize("damage", RUBBISH.values(), ids=RUBBISH)
def test_one_invalid_file_does_not_prevent_recovery_of_the_others(sound: CrashFileSystem, damage: bytes) -> None:
    """
    Each file in turn is empty, short, zeros or of another program: the store opens with the contents of the other
    files, or the error names the file. Nothing is repeated.
    """
    all_there = set(held(opened(sound.clone_after_kill())))
    assert len(all_there) > BUNDLES // 2
    for path in paths(sound):
        fs = sound.clone_after_kill()
        inside = len(read_file(fs, path))
        write_file(fs, path, damage)
        try:
            store = opened(fs)
        except QuiverError as error:
            assert path in str(error), f"{path}: {error}"
            assert isinstance(error, UnsupportedFormatError), f"{path}: {error}"
            continue
        numbers = held(store)
        assert sorted(set(numbers)) == sorted(numbers), f"{path}: twice: {numbers}"
        lost = all_there - set(numbers)
        if "/wal/quiver.wal" in path and not path.endswith(".cursor"):
            assert len(lost) <= inside // 300, f"{path}: {lost}"
        else:
            assert len(lost) <= (IN_A_SEGMENT if path.endswith(".qseg") else 0), f"{path}: {lost}"
        store.ingest(numbered(1000))
        assert held(store)[-1] == 1000, path
        store.close()


@pytest.mark.parametrize("now_ns", [0, 2_000_000_000 * 10**9], ids=["a clock that was never set", "2033"])
@pytest.mark.parametrize("damage", [b"", b"QUIVER", b"\xff" * 64], ids=["empty", "short", "ones"])
def test_a_damaged_floor_never_counts_as_zero(damage: bytes, now_ns: int) -> None:
    """
    When every segment was deleted, only the floor file has the used numbers. If it is damaged, the next segment gets a
    number above any that a store can have reached; the damaged bytes are kept.
    """
    fs = CrashFileSystem()
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        for number in range(BUNDLES):
            store.ingest(numbered(number))
        store.seal()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
        store.maintain()
        assert not len(store.internals.catalog)
        reached = store.stats()["next_segment"]
        store.unregister("s")
    write_file(fs, f"{ROOT}/segments/quiver.segment.floor", damage)

    cut: list[CrashFileSystem] = []
    clone = fs.clone_after_kill()
    clone.on_step = lambda _operation, _path: cut.extend((clone.clone_after_crash(0), clone.clone_after_kill()))
    opened(clone, now_ns=now_ns)
    clone.on_step = None
    for again in (fs, *cut):
        floors = []
        for _ in range(2):
            store = opened(again, now_ns=now_ns)
            floors.append(store.stats()["next_segment"])
            store.close()
        assert floors[0] >= max(now_ns // 10**6, 10**12) > reached
        assert floors[1] == floors[0], "the number is written down"
        assert damage in kept(again).values()


def test_a_log_with_other_bytes_at_the_second_read_stops_recovery() -> None:
    """
    A retired file is read again when it is replayed. If its bytes differ then, opening fails with an error, and none
    of them becomes a bundle.
    """
    fs = CrashFileSystem()
    settings = Settings(segment_bytes_max=1 << 20, wal_rotate_bytes=1_200)
    store = open_store(ROOT, settings, fs=fs, clock=ManualClock(), background=False)
    for number in range(BUNDLES):
        store.ingest(numbered(number))
    fs = fs.clone_after_kill()
    rotated = next(path for path in paths(fs) if path.rpartition(".")[2].isdigit())
    reads: list[str] = []
    read_all = fs.read_all

    def flipping(path: str, *, size_max: int) -> bytes:
        data = read_all(path, size_max=size_max)
        reads.append(path)
        if path != rotated or reads.count(path) == 1:
            return data
        return data[:100] + bytes([data[100] ^ 1]) + data[101:]

    fs.read_all = flipping  # type: ignore[method-assign]
    with pytest.raises(OSError, match="changed since it was scanned") as failed:
        opened(fs)

    assert failed.value.filename == rotated
    del fs.read_all
    assert held(opened(fs)) == list(range(BUNDLES))


@pytest.mark.parametrize(
    "name", ["wal/quiver.wal.cursor", "segments/quiver.segment.floor", "quiver.reserve", "quiver.drops"]
)
def test_a_small_file_that_became_large_is_treated_as_damaged(sound: CrashFileSystem, name: str) -> None:
    """It is not read completely, and the store opens with the contents of the other files."""
    fs = sound.clone_after_kill()
    expected = held(opened(sound.clone_after_kill()))
    write_file(fs, f"{ROOT}/{name}", b"x" * (3 << 20))

    assert held(opened(fs)) == expected
