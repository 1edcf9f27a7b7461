"""
Objects of a topic that somebody else replaced: their messages are lost as long as they are there, and no others
ever.
"""

from __future__ import annotations

import pytest
from cold_rig import DESCRIPTORS, PREFIX, TOPIC, Rig, append, payload, settings

from hostile_objects import CHANGES, TEBIBYTE, HostileObjects, Made, little_memory
from quiver.errors import DataLossError, ObjectsUnavailableError
from quiver.metadata.memory import MemoryMetadata
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.catalog_rebuild import rebuild_catalog
from quiver.topics.format.frame import FRAME_PAYLOAD_BYTES_MAX

pytestmark = pytest.mark.usefixtures("quiet")

COUNT = 60


def long_message(own, _other):
    """Its first message says that it is as long as one may be, and more than there is."""
    size = FRAME_PAYLOAD_BYTES_MAX.to_bytes(4, "little")
    return Made(TEBIBYTE, begin=own[:8] + size + own[12:])


def longer_than_any(own, _other):
    """Its first message says that it is longer than one may be."""
    return Made(TEBIBYTE, begin=own[:8] + b"\xff" * 4 + own[12:])


SHORT = "shorter than it says"
EVERY = {name: change for name, change in CHANGES.items() if name != SHORT} | {
    "a message of the largest size": long_message,
    "a message larger than any": longer_than_any,
}
BEGIN_AS_OURS = {"longer", "twice", "a tebibyte that begins as ours"}
"""All of the messages are there, at the places where they belong."""


@pytest.fixture(params=["none", "zstd"])
def compression(request):
    return request.param


@pytest.fixture(params=EVERY, ids=str)
def hostile(request, compression):
    """A topic whose messages are only in objects, one of which was replaced: rig, log, its key and its messages."""
    rig = Rig(chosen=settings(rotate=400, compression=compression))
    log = rig.open()
    append(log, COUNT)
    log._engine.wal.rotate()
    rig.store.maintain()
    assert log._engine.wal.start_offset == COUNT
    first, victim, other = rig.tier.catalog(TOPIC).descriptors()[:3]
    assert first.end_offset < victim.start_offset
    tier = HostileObjects(rig.memory)
    tier.replace(PREFIX + victim.object_id, PREFIX + other.object_id, EVERY[request.param])
    rig.objects._inner = tier
    yield rig, log, PREFIX + victim.object_id, range(victim.start_offset, victim.end_offset + 1), request.param
    rig.store.close(timeout=0)


def test_every_other_message_is_read(hostile):
    """In order; what is lost is said once, with the object's name. All of it comes when the object is back."""
    rig, log, key, lost, name = hostile
    got, losses = [], []
    with little_memory(200 << 20), log.reader(start=0, follow=False) as reader:
        while True:
            try:
                message = next(reader)
            except StopIteration:
                break
            except DataLossError as error:
                losses.append(error)
                continue
            assert message.payload == payload(message.offset)
            got.append(message.offset)
    assert got == sorted(set(got))
    assert set(range(COUNT)) - set(got) <= set(lost)
    assert bool(losses) == (len(got) < COUNT)
    assert all(key.rpartition("/")[2] in str(error) for error in losses)
    assert losses or name in BEGIN_AS_OURS
    rig.objects._inner.heal()
    with log.reader(start=0, follow=False) as reader:
        assert [one.offset for one in reader] == list(range(COUNT))


def test_nothing_is_deleted_for_it(hostile):
    """Not the object, not its neighbours; and the topic goes on."""
    rig, log, _, _, _ = hostile
    before = rig.keys()
    append(log, 5)
    log.flush()
    with little_memory():
        rig.store.maintain()
    assert set(before) <= set(rig.keys())
    assert set(before) <= set(rig.named())


def test_a_catalogue_that_is_made_again_beside_it(hostile):
    """All others are named; of a huge one little is read."""
    rig, _, key, lost, _ = hostile
    facts = MemoryMetadata()
    with little_memory(200 << 20):
        found = rebuild_catalog(rig.objects, ObjectCatalog(facts, root="/danube", topic=TOPIC, commits=facts))
    assert [one.path for one in found.damaged] == [key]
    named = {offset for one in found.descriptors for offset in range(one.start_offset, one.end_offset + 1)}
    assert set(range(COUNT)) - named <= set(lost)
    assert facts.range(DESCRIPTORS)


def test_an_object_that_never_comes_whole(compression):
    """An object store that gives less than it says that there is does not answer: nothing is called lost."""
    rig = Rig(chosen=settings(rotate=400, compression=compression))
    log = rig.open()
    append(log, COUNT)
    log._engine.wal.rotate()
    rig.store.maintain()
    first, victim = rig.tier.catalog(TOPIC).descriptors()[:2]
    tier = HostileObjects(rig.memory)
    tier.replace(PREFIX + victim.object_id, PREFIX + first.object_id, CHANGES[SHORT])
    rig.objects._inner = tier
    with log.reader(start=victim.start_offset, follow=False) as reader:
        with pytest.raises(ObjectsUnavailableError):
            list(reader)
        tier.heal()
        assert [one.offset for one in reader][-1] == COUNT - 1
    rig.store.close(timeout=0)
