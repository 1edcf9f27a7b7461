"""The crash file system keeps synced data, loses only unsynced data, and invents nothing."""

from __future__ import annotations

import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

SEEDS = range(100)
BLOCK = 4096


@pytest.fixture
def disk():
    return CrashFileSystem()


def durable(disk, path, data):
    file = disk.create_or_truncate(path)
    file.pwrite(data, 0)
    file.sync_data()
    disk.sync_dir(path.rpartition("/")[0])
    return file


def tree(disk, path=""):
    """Path → contents of every file, path → None of every directory."""
    found = {}
    for name in disk.list_dir(path):
        below = f"{path}/{name}"
        try:
            found[below] = disk.read_all(below, size_max=1 << 30)
        except IsADirectoryError:
            found[below] = None
            found |= tree(disk, below)
    return found


def outcomes(disk, path):
    return {tree(disk.clone_after_crash(seed)).get(path) for seed in SEEDS}


# ---- contents


def test_a_synced_file_without_a_synced_name_is_lost(disk):
    """fsync of a file does nothing for its name."""
    file = disk.create("/f")
    file.pwrite(b"x", 0)
    file.sync()

    assert tree(disk.clone_after_crash(0)) == {}
    assert outcomes(disk, "/f") == {None, b"x"}


def test_a_synced_name_without_synced_contents_is_empty(disk):
    """fsync of a directory does nothing for its files."""
    disk.create("/f").pwrite(b"x", 0)
    disk.sync_dir("/")

    assert disk.clone_after_crash(0).read_all("/f", size_max=9) == b""
    assert outcomes(disk, "/f") == {b"", b"\0", b"x"}


def test_each_block_survives_independently(disk):
    """Each overwritten block is old or new, never a mixture."""
    file = durable(disk, "/f", b"o" * 3 * BLOCK)
    file.pwrite(b"n" * 3 * BLOCK, 0)

    seen = outcomes(disk, "/f")
    assert seen <= {
        b"".join(c * BLOCK for c in (a, b, d)) for a in (b"o", b"n") for b in (b"o", b"n") for d in (b"o", b"n")
    }
    assert len(seen) > 4
    assert disk.clone_after_crash(0).read_all("/f", size_max=1 << 20) == b"o" * 3 * BLOCK
    assert disk.clone_after_crash(1).read_all("/f", size_max=1 << 20) == b"n" * 3 * BLOCK


def test_a_length_may_survive_without_its_blocks(disk):
    """Of an unsynced append: nothing, a part, all of it, or zeros in its place."""
    file = durable(disk, "/f", b"o" * 100)
    file.pwrite(b"n" * 2 * BLOCK, 100)
    seen = outcomes(disk, "/f")

    assert all(data.startswith(b"o" * 100) for data in seen)
    assert {len(data) for data in seen} >= {100, 100 + 2 * BLOCK}
    assert any(b"\0" in data for data in seen)
    assert any(b"n" in data for data in seen)
    assert all(not set(data[100:]) - {0, ord("n")} for data in seen)


def test_a_sync_keeps_contents_and_length(disk):
    """After `sync_data` every outcome is the same file."""
    file = durable(disk, "/f", b"x" * 10_000)
    file.pwrite(b"yy", 5000)
    file.truncate(9000)
    file.sync_data()

    assert outcomes(disk, "/f") == {b"x" * 5000 + b"yy" + b"x" * 3998}


def test_a_truncation_is_atomic(disk):
    """Before the sync the old length may return with the old bytes; never old bytes at the new length."""
    file = durable(disk, "/f", b"o" * 2 * BLOCK)
    file.truncate(10)
    assert outcomes(disk, "/f") == {b"o" * 2 * BLOCK, b"o" * 10}

    file.pwrite(b"n" * BLOCK, 10)
    allowed = b"o" * 10
    for data in outcomes(disk, "/f"):
        assert data == b"o" * 2 * BLOCK or (data.startswith(allowed) and b"o" not in data[10:])


def test_a_truncated_and_rewritten_file(disk):
    """The old file, the empty one, or part of the new one: never the old bytes truncated to the new length."""
    durable(disk, "/f", b"o" * 100)
    disk.create_or_truncate("/f").pwrite(b"n" * 50, 0)

    assert outcomes(disk, "/f") == {b"o" * 100, b"", bytes(50), b"n" * 50}


def test_a_mode_is_metadata(disk):
    """`sync_data` does not keep it, `sync` does."""
    file = durable(disk, "/f", b"x")
    file.set_mode(0o440)
    file.sync_data()
    assert disk.clone_after_crash(0).stat("/f").mode == 0o600
    assert disk.clone_after_crash(1).stat("/f").mode == 0o440
    file.sync()
    assert disk.clone_after_crash(0).stat("/f").mode == 0o440


def test_lost_blocks_stay_lost_after_a_truncation(disk):
    """Bytes that a failed sync lost are not on the disk, also after the file is truncated and grows again."""
    file = durable(disk, "/f", b"o" * 10)
    file.pwrite(b"n" * 10, 0)
    file.lose_unsynced()
    assert outcomes(disk, "/f") == {b"o" * 10}
    assert disk.read_all("/f", size_max=10) == b"n" * 10
    file.truncate(0)
    file.pwrite(b"z", 0)
    assert outcomes(disk, "/f") == {b"o" * 10, b"", b"\0", b"z"}
    file.sync()
    assert outcomes(disk, "/f") == {b"z"}


# ---- names


def test_an_unsynced_rename_never_loses_both(disk):
    """The file has its old name or its new one; the replaced file is complete while it exists."""
    durable(disk, "/old", b"mine")
    durable(disk, "/target", b"theirs")
    disk.rename("/old", "/target")

    seen = {tuple(sorted(tree(disk.clone_after_crash(seed)).items())) for seed in SEEDS}
    assert seen == {(("/old", b"mine"), ("/target", b"theirs")), (("/target", b"mine"),)}


def test_a_rename_between_directories_never_loses_both(disk):
    """A sync of the target directory may leave the old name; a sync of the source directory removes it."""
    disk.make_dirs("/a")
    disk.make_dirs("/b")
    durable(disk, "/a/f", b"x")
    disk.rename("/a/f", "/b/g")
    before = [tree(disk.clone_after_crash(seed)) for seed in SEEDS]
    assert all(("/a/f" in found) != ("/b/g" in found) for found in before)

    half = disk.clone_after_kill()
    half.sync_dir("/b")
    found = [tree(half.clone_after_crash(seed)) for seed in SEEDS]
    assert all(each["/b/g"] == b"x" for each in found)
    assert {"/a/f" in each for each in found} == {True, False}
    half.sync_dir("/a")
    assert "/a/f" not in tree(half.clone_after_crash(0))

    disk.sync_dir("/a")
    assert tree(disk.clone_after_crash(0)) == {"/a": None, "/b": None, "/b/g": b"x"}


def test_a_move_over_a_younger_name_stays(disk):
    """A sync of the source directory makes the move durable; an older, unsynced creation does not undo it."""
    disk.make_dirs("/a")
    disk.make_dirs("/b")
    durable(disk, "/a/f", b"moved")
    disk.create("/b/g")
    disk.rename("/a/f", "/b/g")
    disk.sync_dir("/a")

    assert outcomes(disk, "/b/g") == {b"moved"}


def test_names_survive_independently(disk):
    """Unsynced creations and removals: each happened or did not."""
    durable(disk, "/gone", b"x")
    disk.create("/new")
    disk.remove("/gone")

    seen = {tuple(tree(disk.clone_after_crash(seed))) for seed in SEEDS}
    assert seen == {(), ("/gone",), ("/new",), ("/gone", "/new")} or seen == {
        (),
        ("/gone",),
        ("/new",),
        ("/new", "/gone"),
    }


def test_a_lost_directory_loses_its_files(disk):
    """Durable names below a name that was not durable are unreachable."""
    disk.make_dirs("/a/b")
    durable(disk, "/a/b/f", b"x")
    disk.rename("/a/b", "/a/c")

    assert outcomes(disk, "/a/b/f") == {b"x", None}
    assert outcomes(disk, "/a/c/f") == {b"x", None}


def test_created_directories_are_durable(disk):
    """Every ancestor, on return; a crash may follow each step."""
    steps = []
    disk.on_step = lambda op, path: steps.append((op, path, tree(disk.clone_after_crash(0))))
    disk.make_dirs("/a/b")

    assert [(op, path) for op, path, _ in steps] == [
        ("mkdir", "/a"), ("sync_dir", "/"), ("mkdir", "/a/b"), ("sync_dir", "/a/"),
    ]  # fmt: skip
    assert [sorted(found) for *_, found in steps] == [[], [], ["/a"], ["/a"]]
    assert sorted(tree(disk.clone_after_crash(0))) == ["/a", "/a/b"]


def test_two_processes_may_create_one_directory(disk):
    """If another process creates it between the check and the creation, it is used."""

    def other(op, path):
        disk.on_step = None
        disk.make_dirs("/a")
        disk.create("/a/theirs")

    disk.on_step = other
    disk.make_dirs("/a/b")

    assert sorted(tree(disk)) == ["/a", "/a/b", "/a/theirs"]


def test_a_removed_file_that_reappears_has_its_contents(disk):
    """An unsynced unlink is undone with all durable contents of the file."""
    file = durable(disk, "/f", b"old")
    file.pwrite(b"new", 0)
    disk.remove("/f")

    assert disk.clone_after_crash(0).read_all("/f", size_max=9) == b"old"
    assert outcomes(disk, "/f") == {b"old", b"new", None}


# ---- kill


def test_a_kill_keeps_visible_data_without_making_it_durable(disk):
    """The next process sees everything; a later power loss removes the same as it would have before."""
    durable(disk, "/old", b"o" * 5000)
    file = disk.open_write("/old")
    file.pwrite(b"n" * 10, 0)
    disk.create("/new").pwrite(b"x", 0)
    disk.rename("/old", "/moved")
    lock = disk.try_lock("/lock", note="x")
    killed = disk.clone_after_kill()

    assert tree(killed) == tree(disk)
    for seed in SEEDS:
        assert tree(killed.clone_after_crash(seed)) == tree(disk.clone_after_crash(seed))
    assert killed.try_lock("/lock", note="y") is not None
    lock.release()


def test_clones_are_independent(disk):
    """A change in one is not visible in the other."""
    durable(disk, "/f", b"x" * 10)
    clone = disk.clone_after_crash(0)
    clone.open_write("/f").pwrite(b"clone", 0)
    clone.create("/only-there")
    disk.open_write("/f").pwrite(b"disk", 0)

    assert tree(clone) == {"/f": b"clonexxxxx", "/only-there": b""}
    assert tree(disk) == {"/f": b"diskxxxxxx"}
    clone.sync_dir("/")
    assert clone.stat("/only-there").inode != disk.stat("/f").inode


def test_a_seed_selects_an_outcome(disk):
    """The same state and seed give the same result."""
    file = durable(disk, "/f", bytes(20 * BLOCK))
    file.pwrite(b"x" * 20 * BLOCK, 0)

    assert tree(disk.clone_after_crash(7)) == tree(disk.clone_after_crash(7))
    assert len(outcomes(disk, "/f")) > 10


# ---- steps


def test_each_change_is_one_step_before_it_happens(disk):
    """`on_step` sees the state before; if it raises, the operation does not happen; reads are not steps."""
    disk.make_dirs("/d")
    names = []
    disk.on_step = lambda op, path: names.append(f"{op} {path}")
    file = disk.create("/d/f")
    file.pwritev([b"a", b"b"], 0)
    file.pwrite(b"c", 2)
    file.reserve(0, 100)
    file.truncate(3)
    file.set_mode(0o440)
    file.sync()
    file.sync_data()
    disk.rename("/d/f", "/d/g")
    disk.read_all("/d/g", size_max=3)
    disk.map_read("/d/g")
    disk.stat("/d/g")
    disk.sync_dir("/d")
    disk.remove("/d/g")
    disk.create_or_truncate("/d/h")
    disk.try_lock("/d/lock", note="x")

    assert names == [
        "create /d/f", "pwrite /d/f", "pwrite /d/f", "reserve /d/f", "truncate /d/f", "set_mode /d/f", "sync /d/f",
        "sync /d/f", "rename /d/g", "sync_dir /d", "remove /d/g", "create /d/h", "lock /d/lock",
    ]  # fmt: skip
    assert disk.steps == len(names) + 2

    def stop(op, path):
        raise KeyboardInterrupt

    disk.on_step = stop
    with pytest.raises(KeyboardInterrupt):
        disk.create("/d/never")
    assert not disk.exists("/d/never")


def test_other_threads_use_the_disk_while_a_step_is_held(disk):
    """A thread may be stopped in the middle of its sync while another writes."""
    file = durable(disk, "/f", b"x")
    reached, go = threading.Event(), threading.Event()

    def hold_syncs(op, path):
        if op == "sync":
            reached.set()
            go.wait(10)

    disk.on_step = hold_syncs
    syncing = threading.Thread(target=file.sync_data)
    syncing.start()
    assert reached.wait(10)
    file.pwrite(b"written meanwhile", 0)
    go.set()
    syncing.join()

    assert file.pread(99, 0) == b"written meanwhile"


# ---- calls that a real disk refuses


def test_sealed_files_cannot_be_opened_for_writing(disk):
    """Even root is refused here: a store must not depend on being root."""
    disk.create("/f", mode=0o440).close()
    for call in (disk.open_write, disk.create_or_truncate):
        with pytest.raises(PermissionError):
            call("/f")
    assert disk.open_read("/f").pread(1, 0) == b""


def test_directories_are_not_files(disk):
    """EISDIR, with the path."""
    disk.make_dirs("/d")
    disk.create("/f")
    for call in (disk.open_read, disk.remove, disk.map_read, lambda path: disk.rename("/f", path)):
        with pytest.raises(IsADirectoryError) as caught:
            call("/d")
        assert caught.value.filename == "/d"


def test_times_come_from_the_clock():
    """Modification times come from the clock that is passed in."""
    clock = ManualClock(now_ns=5)
    disk = CrashFileSystem(clock=clock)
    file = disk.create("/f")
    clock.set_wall_ns(7)
    file.pwrite(b"x", 0)

    assert disk.stat("/f").modified_ns == 7
    assert disk.clone_after_crash(1).stat("/f").modified_ns == 7


def test_free_space_is_set_by_the_test(disk):
    """The file system never fills up."""
    disk.free = 17

    assert disk.free_bytes("/") == 17
    assert disk.clone_after_crash(0).free_bytes("/") == 17


# ---- against a simple model


STEP = st.one_of(
    st.tuples(st.just("pwrite"), st.integers(0, 3 * BLOCK), st.integers(0, 2 * BLOCK)),
    st.tuples(st.just("truncate"), st.integers(0, 4 * BLOCK), st.just(0)),
    st.tuples(st.just("sync"), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=12), seed=st.integers(2, 1 << 30))
def test_contents_against_a_bytearray(steps, seed):
    """Reads equal a bytearray's; seed 0 equals its last sync, seed 1 its end; others hold bytes of one version each."""
    disk = CrashFileSystem()
    file = disk.create("/f")
    disk.sync_dir("/")
    model, synced = bytearray(), b""
    versions = [b""]  # all versions of the file since the last sync
    for number, (op, a, b) in enumerate(steps):
        if op == "pwrite":
            data = bytes([number + 1]) * b
            file.pwrite(data, a)
            if data:
                model.extend(bytes(max(0, a - len(model))))
                model[a : a + b] = data
        elif op == "truncate":
            file.truncate(a)
            del model[a:]
            model.extend(bytes(a - len(model)))
        else:
            file.sync_data()
            synced = bytes(model)
            versions.clear()
        versions.append(bytes(model))
        assert file.pread(1 << 20, 0) == model
        assert file.size() == len(model)

    assert disk.clone_after_crash(0).read_all("/f", size_max=1 << 20) == synced
    assert disk.clone_after_crash(1).read_all("/f", size_max=1 << 20) == model
    for clone in (disk.clone_after_crash(seed), disk.clone_after_kill().clone_after_crash(seed)):
        survivor = clone.read_all("/f", size_max=1 << 20)
        for index, byte in enumerate(survivor):
            assert byte == 0 or any(index < len(data) and data[index] == byte for data in (synced, *versions))
        clone.open_write("/f").truncate(5 * BLOCK)
        assert clone.read_all("/f", size_max=1 << 20) == survivor[: 5 * BLOCK].ljust(5 * BLOCK, b"\0")


def test_names_against_a_model():
    """Synced names are those of the directory; a rename keeps every durable file reachable in every outcome."""
    for round_number in range(60):
        random = Random(round_number)
        disk = CrashFileSystem()
        for directory in ("/a", "/b"):
            disk.make_dirs(directory)
        for number in range(4):
            durable(disk, f"/a/{number}", b"%d" % number)
        for _ in range(12):
            names = [path for path, data in tree(disk).items() if data is not None]
            source, directory = random.choice(names), random.choice(["/a", "/b"])
            if random.random() < 0.3:
                disk.sync_dir(directory)
                children = {name: data for name, data in tree(disk).items() if name.startswith(f"{directory}/")}
                kept = tree(disk.clone_after_crash(0))
                assert {name: data for name, data in kept.items() if name.startswith(f"{directory}/")} == children
            else:
                disk.rename(source, f"{directory}/new{random.randrange(100)}{len(names)}{random.random()}")
        for seed in range(8):
            survivors = set(tree(disk.clone_after_crash(seed)).values())
            assert {b"0", b"1", b"2", b"3"} <= survivors


def test_clones_share_their_blocks(disk):
    """Crash suites create thousands of clones: only differences use memory."""
    random = Random(1)
    durable(disk, "/f", random.randbytes(100 * BLOCK))
    disk.open_write("/f").pwrite(random.randbytes(BLOCK), 0)
    blocks = disk._find_file("/f").blocks

    for clone in (*(disk.clone_after_crash(seed) for seed in range(5)), disk.clone_after_kill()):
        shared = [a is b for a, b in zip(blocks, clone._find_file("/f").blocks, strict=True)]
        assert shared[1:] == [True] * 99
