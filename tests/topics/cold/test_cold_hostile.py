"""A foreign process replaces objects of a topic: only their messages are lost, and only while they are replaced."""

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
    """Make an object whose first message claims the largest allowed length, which is more than the object contains."""
    size = FRAME_PAYLOAD_BYTES_MAX.to_bytes(4, "little")
    return Made(TEBIBYTE, begin=own[:8] + size + own[12:])


def longer_than_any(own, _other):
    """Make an object whose first message claims more than the largest allowed length."""
    return Made(TEBIBYTE, begin=own[:8] + b"\xff" * 4 + own[12:])


SHORT = "shorter than it says"
EVERY = {name: change for name, change in CHANGES.items() if name != SHORT} | {
    "a message of the largest size": long_message,
    "a message larger than any": longer_than_any,
}
BEGIN_AS_OURS = {"longer", "twice", "a tebibyte that begins as ours"}
"""These contain all messages at their right positions."""


@pytest.fixture(params=["none", "zstd"])
def compression(request):
    return request.param


@pytest.fixture(params=EVERY, ids=str)
def hostile(request, compression):
    """A topic whose messages are only in objects, one of which is replaced: rig, log, and its key, messages, change."""
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


def test_all_other_messages_are_read(hostile):
    """They are in order, and the loss is reported once with the object's name. All return with the original object."""
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


def test_a_replaced_object_causes_no_deletion(hostile):
    """Neither the object nor its neighbours are deleted, and the topic accepts appends."""
    rig, log, _, _, _ = hostile
    before = rig.keys()
    append(log, 5)
    log.flush()
    with little_memory():
        rig.store.maintain()
    assert set(before) <= set(rig.keys())
    assert set(before) <= set(rig.named())


def test_a_rebuilt_catalog_omits_only_the_replaced_object(hostile):
    """All other objects are listed, and a huge object is not read completely."""
    rig, _, key, lost, _ = hostile
    facts = MemoryMetadata()
    with little_memory(200 << 20):
        found = rebuild_catalog(rig.objects, ObjectCatalog(facts, root="/danube", topic=TOPIC, commits=facts))
    assert [one.path for one in found.damaged] == [key]
    named = {offset for one in found.descriptors for offset in range(one.start_offset, one.end_offset + 1)}
    assert set(range(COUNT)) - named <= set(lost)
    assert facts.range(DESCRIPTORS)


def test_a_store_that_sends_fewer_bytes_is_unavailable_and_loses_nothing(compression):
    """The object store sends less than the size it reports: the reader gets a transient error instead of a loss."""
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
