"""Objects on a disk survive a power loss at any step, completely or not at all."""

from __future__ import annotations

import pytest

from quiver.errors import ObjectNotFoundError
from quiver.objects.directory import DirectoryObjects
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

WRITES = {
    "put": lambda tier: tier.put("a/new", b"n" * 5000),
    "put_if_absent": lambda tier: tier.put("a/new", b"n" * 5000, if_absent=True),
    "put_parts": lambda tier: tier.put_parts("a/new", lambda: [b"n" * 4000, b"n" * 1000]),
    "copy": lambda tier: tier.copy("a/source", "a/new"),
    "copy_if_absent": lambda tier: tier.copy("a/source", "a/new", if_absent=True),
    "replace": lambda tier: tier.put("a/old", b"n" * 5000),
}


def prepared():
    disk = CrashFileSystem()
    tier = DirectoryObjects(disk, "/cold")
    tier.put("a/old", b"o" * 3000)
    tier.put("a/source", b"n" * 5000)
    return disk, tier


def content(tier, key):
    try:
        return tier.get(key, size_max=1 << 20)
    except ObjectNotFoundError:
        return None


@pytest.mark.parametrize("name", sorted(WRITES))
def test_a_crash_at_any_step_leaves_complete_objects(name):
    """The old object, none, or the complete new one; after the call has returned, the new one."""
    disk, tier = prepared()
    survivors = []
    disk.on_step = lambda _op, _path: survivors.extend(disk.clone_after_crash(seed=seed) for seed in range(3))
    WRITES[name](tier)
    disk.on_step = lambda _op, _path: None
    target = "a/old" if name == "replace" else "a/new"

    for survivor in survivors:
        after = DirectoryObjects(survivor, "/cold")
        assert content(after, target) in ({b"o" * 3000, b"n" * 5000} if name == "replace" else {None, b"n" * 5000})
        assert content(after, "a/source") == b"n" * 5000
        assert {info.key for info in after.list_below("")} <= {"a/old", "a/source", "a/new"}
        WRITES[name.removesuffix("_if_absent")](after)  # and it can be done again
        assert content(after, target) == b"n" * 5000
    assert survivors
    assert content(DirectoryObjects(disk.clone_after_crash(seed=7), "/cold"), target) == b"n" * 5000


def test_a_deleted_object_stays_deleted():
    """After the call has returned; before that it is there, complete."""
    disk, tier = prepared()
    survivors = []
    disk.on_step = lambda _op, _path: survivors.append(disk.clone_after_crash(seed=1))
    tier.delete(["a/old", "a/none", "b/none"])
    disk.on_step = lambda _op, _path: None

    for survivor in survivors:
        assert content(DirectoryObjects(survivor, "/cold"), "a/old") in {None, b"o" * 3000}
    assert content(DirectoryObjects(disk.clone_after_crash(seed=1), "/cold"), "a/old") is None


@pytest.mark.parametrize("name", sorted(WRITES))
@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "link", "sync_dir"])
def test_a_failing_disk_leaves_the_old_object(name, operation):
    """The caller gets the error, no partial object is visible, and the next attempt succeeds."""
    disk, _ = prepared()
    faults = FaultFileSystem(disk)
    tier = DirectoryObjects(faults, "/cold")
    before = faults.calls[operation]
    clean = CrashFileSystem()
    counting = FaultFileSystem(clean)
    other = DirectoryObjects(counting, "/cold")
    other.put("a/old", b"o")
    other.put("a/source", b"n" * 5000)
    start = counting.calls[operation]
    WRITES[name](other)
    target = "a/old" if name == "replace" else "a/new"

    for nth in range(1, counting.calls[operation] - start + 1):
        faults.fail_on(operation, nth)
        with pytest.raises(OSError, match="Input/output"):
            WRITES[name](tier)
        faults.heal()
        assert content(tier, target) in {None, b"o" * 3000, b"n" * 5000}
        if operation != "sync_dir":
            WRITES[name](tier)
            assert content(tier, target) == b"n" * 5000
            tier.delete([target])
            tier.put("a/old", b"o" * 3000)
    assert faults.calls[operation] >= before


def test_leftovers_are_removed_after_a_day():
    """A younger one may be an object that another process is writing."""
    disk, _ = prepared()
    disk.create("/cold/.parts/99").close()
    now_ns = disk.stat("/cold/.parts/99").modified_ns
    young = ManualClock(now_ns=now_ns + 23 * 3600 * 10**9)
    old = ManualClock(now_ns=now_ns + 25 * 3600 * 10**9)

    DirectoryObjects(disk, "/cold", clock=young)
    assert disk.list_dir("/cold/.parts") == ["99"]
    tier = DirectoryObjects(disk, "/cold", clock=old)
    assert disk.list_dir("/cold/.parts") == []
    assert [info.key for info in tier.list_below("")] == ["a/old", "a/source"]


def test_two_processes_write_concurrently():
    """Neither removes the other's unfinished file."""
    disk = CrashFileSystem()
    one, two = DirectoryObjects(disk, "/cold"), DirectoryObjects(disk, "/cold")

    def parts():
        yield b"one "
        two.put("k/two", b"two")
        yield b"one"

    one.put_parts("k/one", parts)

    assert content(one, "k/one") == b"one one"
    assert content(one, "k/two") == b"two"
