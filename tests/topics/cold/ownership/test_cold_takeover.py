"""A supervised process takes over from a machine that died, even if it is restarted repeatedly."""

from __future__ import annotations

import pytest
from cold_rig import TOPIC, Rig, append, expected, read

from quiver.errors import DirectoryInUseError, UsageError
from quiver.metadata.memory import MemoryMetadata
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultmetadata import FaultMetadata
from quiver.topics.format.watch import WATCH_FILE
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def disk_of(boot="6c5e-1"):
    """A disk of a machine with a boot id."""
    disk = CrashFileSystem()
    say_boot(disk, boot)
    return disk


def say_boot(disk, boot):
    disk.make_dirs(BOOT_ID.rpartition("/")[0])
    file = disk.create_or_truncate(BOOT_ID)
    file.pwrite(f"{boot}\n".encode(), 0)
    file.close()


def dead_machine(*topics):
    """A machine that appended to topics, uploaded the messages, and died."""
    rig = Rig()
    append(rig.open(), 5)
    for topic in topics:
        append(rig.store.topic(topic), 5)
    rig.store.flush()
    rig.store.maintain()
    return rig


def run_once(dead, disk, clock, **changed):
    """Start a process that opens the topic and ends; return the exception when it was refused."""
    rig = Rig(disk=disk, clock=clock, memory=dead.memory, facts=dead.facts, owner="two", chosen=dead.chosen, **changed)
    try:
        log = rig.open()
    except DirectoryInUseError as error:
        rig.close()
        return error
    assert read(log) == expected(5)
    rig.close()
    return None


def test_restarts_do_not_reset_the_observation_of_the_owner():
    """A process that is refused every ten seconds gets the topic when the owner has been silent for its lease."""
    dead, disk, clock = dead_machine(), disk_of(), ManualClock()
    restarts = 0
    while (error := run_once(dead, disk, clock)) is not None:
        assert error.retry_after_s == pytest.approx(300 - 10 * restarts, abs=0.01)
        assert "silent for another" in str(error)
        restarts += 1
        clock.advance(10)
    assert restarts == 30


def test_one_lease_is_enough_for_all_topics():
    """A process that is refused one topic observes the owners of all."""
    names = ["a/b", "a/b-c", "a/b.c", "a/b0", "b/a"]
    dead, disk, clock = dead_machine(*names), disk_of(), ManualClock()
    assert run_once(dead, disk, clock) is not None
    clock.advance(300.1)
    rig = Rig(disk=disk, clock=clock, memory=dead.memory, facts=dead.facts, owner="two", chosen=dead.chosen)
    rig.open()
    for name in names:
        assert read(rig.store.topic(name)) == expected(5)
    rig.close()


@pytest.mark.parametrize("what", ["alive", "rebooted", "damaged", "no boot id", "another metadata store"])
def test_any_doubt_resets_the_observation(what):
    """It costs one lease, and never takes a topic from a live owner."""
    dead, disk, clock = dead_machine(), disk_of(), ManualClock()
    if what == "no boot id":
        disk.remove(BOOT_ID)
    assert run_once(dead, disk, clock) is not None
    clock.advance(299)
    path = f"/topics/{WATCH_FILE}"
    if what == "alive":
        dead.tier.maintain()
    elif what == "rebooted":
        say_boot(disk, "6c5e-2")
    elif what == "damaged":
        data = bytearray(disk.read_all(path, size_max=1000))
        data[20] ^= 1
        file = disk.open_write(path)
        file.pwrite(bytes(data), 0)
        file.close()
    elif what == "another metadata store":
        entries = dead.facts.range("/")
        dead.facts = MemoryMetadata()
        key, value = next((one.key, one.value) for one in entries if one.key.endswith(f"{TOPIC}/owner"))
        dead.facts.commit({one.key: one.value for one in entries if one.key != key})
        revision = next(one.revision for one in entries if one.key == key)
        while dead.facts.commit({key: value.replace(b'"epoch": 1', b'"epoch": 7')}) < revision:
            pass
    clock.advance(2)
    error = run_once(dead, disk, clock)
    assert error.retry_after_s == pytest.approx(300, abs=0.01)
    assert disk.exists(path) is (what != "no boot id")
    clock.advance(301)
    assert (run_once(dead, disk, clock) is None) is (what != "no boot id")


def test_a_clock_that_was_set_back_costs_one_lease():
    """A virtual machine that was reset to a snapshot used to wait until its clock had caught up."""
    dead, disk, clock = dead_machine(), disk_of(), ManualClock()
    clock.advance(90_000)
    assert run_once(dead, disk, clock) is not None
    clock = ManualClock()
    assert run_once(dead, disk, clock).retry_after_s == pytest.approx(300, abs=0.01)
    clock.advance(301)
    assert run_once(dead, disk, clock) is None


def test_open_waits_for_its_timeout():
    """For the owner of the topic, and for the process that has the directory."""
    dead = dead_machine()
    clock = ManualClock()
    assert run_once(dead, disk_of(), clock, takeover_wait=299.0) is not None
    assert clock.monotonic() == pytest.approx(299.0)
    assert run_once(dead, disk_of(), ManualClock(), takeover_wait=301.0) is None

    disk = CrashFileSystem()
    first = TopicStore.open("/topics", fs=disk, clock=ManualClock(), background=False)

    class Closing(ManualClock):
        def wait(self, condition, timeout):
            if self.monotonic() >= 5:
                first.close()
            return super().wait(condition, timeout)

    with pytest.raises(DirectoryInUseError):
        TopicStore.open("/topics", fs=disk, clock=Closing(), background=False, takeover_wait=4)
    TopicStore.open("/topics", fs=disk, clock=Closing(), background=False, takeover_wait=6).close()
    for wrong in (-1, float("nan")):
        with pytest.raises(UsageError, match="takeover_wait"):
            TopicStore.open("/topics", fs=disk, background=False, takeover_wait=wrong)


def test_an_outage_during_observation_hides_no_owner():
    """The topic is refused as usual, and the next call observes the owners that could not be observed."""
    dead, disk, clock = dead_machine("a/b"), disk_of(), ManualClock()
    rig = Rig(disk=disk, clock=clock, memory=dead.memory, facts=dead.facts, owner="two", chosen=dead.chosen)

    class Failing(FaultMetadata):
        def range(self, prefix, **options):
            self.is_away = options.get("limit") == 1
            try:
                return super().range(prefix, **options)
            finally:
                self.is_away = False

    rig.metadata = Failing(dead.facts)
    with pytest.raises(DirectoryInUseError):
        rig.open()
    rig.close()
    clock.advance(301)
    assert run_once(dead, disk, clock) is None
