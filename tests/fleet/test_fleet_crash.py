"""A crash at every step and an error at every call: nothing is lost, nothing is read twice, nothing is left."""

from __future__ import annotations

import pytest
from fleet_rig import BUCKET, FleetReader, NodeRig

import store_rig
from quiver.objects.directory import DirectoryObjects
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import OBJECT_OPERATIONS, ObjectFault

pytestmark = pytest.mark.usefixtures("quiet")

DROPS = {"max_age_s": 3000.0, "cold_max_age_s": 3000.0}
HOWS: tuple[ObjectFault, ...] = ("fail", "lose_answer", "truncate", "repeat")
USED = sorted(OBJECT_OPERATIONS - {"copy", "get_ranges"})


class Life:
    """A node and its reader: uploads, acknowledgements, a restart, segments that age drops, and more uploads."""

    def __init__(self) -> None:
        self.rig = NodeRig(**DROPS)
        self.reader = FleetReader(DirectoryObjects(self.rig.fs, BUCKET, clock=self.rig.clock))
        self.durable = 0

    def fill(self, store, segments):
        for _ in range(segments):
            self.rig.fill(store, 1)
            self.durable = self.rig.taken

    def run(self):
        """Live."""
        rig, reader = self.rig, self.reader
        with rig.open() as store:
            self.fill(store, 2)
            rig.turn(store)
            reader.read()
            self.fill(store, 1)
            reader.acknowledge()
            rig.turn(store)
        with rig.open() as store:
            reader.read()
            self.fill(store, 1)
            rig.turn(store)
            rig.clock.advance(4000)
            rig.turn(store)
            self.fill(store, 1)
            rig.turn(store)
            reader.read()
            reader.acknowledge()
            rig.turn(store)


def finish(fs, label, read_before, promised):
    """Open the node again after a crash; another reader continues from the positions in the bucket."""
    rig = NodeRig(fs, **DROPS)
    rig.taken = 1000
    reader = FleetReader(DirectoryObjects(fs, BUCKET))
    reader.resume()
    resumed_at = {identity: node.position for identity, node in reader.at.items()}
    with rig.open() as store:
        rig.fill(store, 1)
        for _ in range(4):
            rig.turn(store)
            reader.read()
            reader.acknowledge()
        identity = rig.identity
        assert reader.problems == {}, label
        assert store.stats()["cold"]["problem"] is None, label
        assert store.stats()["segments"] == 0, label
        assert list(rig.tier.list_below("inbox")) == [], label
        assert not fs.exists(f"{rig.root}/quiver.drops"), label
    numbers = reader.numbers[identity]
    assert numbers == sorted(set(numbers)), label
    assert numbers[-2:] == [1000, 1001], label
    lost = sum(gone.bundles_from(resumed_at.get(identity, 0)) for gone in reader.gone[identity])
    missing = [number for number in range(promised) if number not in numbers and number not in read_before]
    # The records account for everything that neither of the two readers has.
    assert len(missing) <= lost, f"{label}: misses {missing}, {lost} are accounted for"


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_any_step(every: int) -> None:
    """A power loss or a kill at each step of disk and objects, which are on the same disk."""
    life = Life()
    fs = life.rig.fs
    assert isinstance(fs, CrashFileSystem)
    states = []
    steps = 0

    def before(operation: str, path: str) -> None:
        nonlocal steps
        steps += 1
        if steps % every:
            return
        clones = [fs.clone_after_crash(steps % 4)]
        if len(states) % 3 == 0:
            clones.append(fs.clone_after_kill())
        read = {number for numbers in life.reader.numbers.values() for number in numbers}
        lost = {number for number in range(life.durable) if any(life.reader.gone.values()) and number not in read}
        states.append((f"step {steps} ({operation} {path})", clones, read | lost, life.durable))

    fs.on_step = before
    life.run()
    fs.on_step = None
    assert steps > 300
    for label, clones, read, durable in states:
        for clone in clones:
            finish(clone, label, read, durable)


@pytest.mark.parametrize("operation", USED)
def test_an_error_at_any_call_only_delays(operation: str) -> None:
    """Each call fails, loses its answer, is cut short, or is repeated; later passes complete the work."""
    clean = Life()
    clean.run()
    calls = clean.rig.tier.calls[operation]
    if not calls:
        pytest.skip(f"{operation} is not used")
    for how in HOWS:
        for call in range(1, calls + 1):
            rig = NodeRig()
            rig.tier.fail_on(operation, call, how=how)
            reader = FleetReader(DirectoryObjects(rig.fs, BUCKET, clock=rig.clock))
            label = f"{operation} {call} {how}"
            with rig.open() as store:
                for _ in range(3):
                    rig.fill(store, 1)
                    rig.turn(store)
                    reader.read()
                    reader.acknowledge()
                for _ in range(4):
                    rig.turn(store)
                    reader.read()
                    reader.acknowledge()
                rig.tier.heal()
                rig.turn(store)
                assert reader.numbers[rig.identity] == list(range(6)), label
                assert (reader.gone, reader.problems) == ({}, {}), label
                assert store.stats()["segments"] == 0, label
                assert store.stats()["cold"]["problem"] is None, label
            assert list(rig.tier.list_below("inbox")) == [], label
            assert rig.record().next_segment == 3, label


def test_a_disk_is_restored_from_an_old_backup() -> None:
    """The store finds objects that it does not know, and uploads nothing until it has an identity of its own."""
    rig = NodeRig()
    with rig.open() as store:
        rig.fill(store, 1)
        rig.turn(store)
        assert isinstance(rig.fs, CrashFileSystem)
        backup = rig.fs.clone_after_kill()
        rig.fill(store, 1)
        rig.turn(store)
    restored = NodeRig(backup, bucket=rig.tier)
    restored.taken = 100
    with restored.open() as store:
        restored.fill(store, 2)
        restored.turn(store)
        assert "remove quiver.id" in store.stats()["cold"]["problem"]
        assert store_rig.sealed_numbers(store) == [0, 1, 100, 101, 102, 103]
    reader = FleetReader(rig.tier)
    reader.read()
    assert reader.numbers[rig.identity] == [0, 1, 2, 3]
