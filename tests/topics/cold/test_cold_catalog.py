"""The catalog of a topic with very many objects: summaries in memory, an index only for the object being read."""

from __future__ import annotations

import tracemalloc

import pytest
from cold_rig import PREFIX, TOPIC, Rig, append, expected, read, settings

from quiver.errors import CorruptionError, MetadataUnavailableError
from quiver.metadata.memory import MemoryMetadata
from quiver.testing.faultmetadata import FaultMetadata
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.format.descriptor import ObjectDescriptor, descriptor_key, encode_descriptor, object_id

ROOT = "/danube"
EACH = 1000


def descriptor(number: int, *, entries: int = 1) -> ObjectDescriptor:
    """Object *number* of a thousand messages, with the given number of index entries."""
    start = number * EACH
    index = tuple((start + at, at * 10) for at in range(entries))
    return ObjectDescriptor(
        object_id(start, start + EACH - 1), start, start + EACH - 1, 10 * EACH, None, 7, True, index
    )


def filled(count: int, *, entries: int = 1) -> FaultMetadata:
    """A metadata store with the given number of objects."""
    facts = MemoryMetadata()
    for number in range(count):
        facts.commit(
            {descriptor_key(ROOT, TOPIC, number * EACH): encode_descriptor(descriptor(number, entries=entries))}
        )
    return FaultMetadata(facts)


def test_many_objects_with_large_indexes_need_little_memory():
    """Three thousand objects with half a million index entries need about forty bytes per object."""
    store = filled(3000, entries=200)
    catalog = ObjectCatalog(store, root=ROOT, topic=TOPIC)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert catalog.next_offset == 3000 * EACH
        for number in range(0, 3000, 100):
            span = catalog.at_or_after(number * EACH + 5)
            assert span is not None
            assert catalog.descriptor_of(span) == descriptor(number, entries=200)
        assert tracemalloc.get_traced_memory()[0] - before < 3000 * 50 + 200_000
    finally:
        tracemalloc.stop()


def test_a_range_of_offsets_requests_only_its_descriptors():
    """`get_object_descriptors_range` of the document, including the object in which the range starts."""
    store = filled(3000)
    catalog = ObjectCatalog(store, root=ROOT, topic=TOPIC)
    catalog.refresh()
    before = store.calls["range"]
    found = list(catalog.between(1_500_500, 1_503_001))
    assert found == [descriptor(number) for number in range(1500, 1504)]
    assert store.calls["range"] - before == 1
    assert list(ObjectCatalog(store, root=ROOT, topic=TOPIC).between(5, 6)) == [descriptor(0)]


def test_objects_are_readable_during_a_metadata_outage():
    """Indexes exist only in the metadata, so objects are read from their start."""
    rig = Rig(chosen=settings(rotate=300))
    with rig.opened() as log:
        append(log, 60)
        log.flush()
        rig.store.maintain()
        assert log._engine.wal.start_offset > 20
        rig.metadata.is_away = True
        assert read(log) == expected(60)
        assert read(log, 17) == expected(60, 17)
        rig.metadata.heal()


def test_a_packed_object_is_not_readable_during_a_metadata_outage():
    """Only the metadata store has the positions of blocks: the error is transient, never a loss."""
    rig = Rig(chosen=settings(rotate=300, compression="zstd"))
    with rig.opened() as log:
        append(log, 60)
        log.flush()
        rig.store.maintain()
        rig.metadata.fail_on("get")
        with log.reader(start=0, follow=False) as reader:
            with pytest.raises(MetadataUnavailableError):
                next(reader)
            assert [one.offset for one in reader] == list(range(60))


def test_a_withdrawn_descriptor_reloads_the_catalog():
    """Another process removed it: the catalog is read again, and the next object is used."""
    rig = Rig(chosen=settings(rotate=300))
    with rig.opened() as log:
        append(log, 60)
        log.flush()
        rig.store.maintain()
        first = rig.tier.catalog(TOPIC).spans()[0]
        rig.facts.commit({descriptor_key(ROOT, TOPIC, first.start_offset): None})
        rig.memory.delete([PREFIX + first.object_id])
        reader = rig.tier.reader(TOPIC)
        assert reader.take(0, 60) is None
        assert reader.next_offset(0) == first.end_offset + 1


def test_a_descriptor_under_a_wrong_key_is_corruption():
    """A lookup of its first message would not find it."""
    facts = MemoryMetadata()
    facts.commit({descriptor_key(ROOT, TOPIC, 5000): encode_descriptor(descriptor(3))})
    with pytest.raises(CorruptionError, match="begins with message 3000, but its key has another offset"):
        ObjectCatalog(facts, root=ROOT, topic=TOPIC).refresh()


def test_own_changes_update_the_catalog_without_a_request():
    """In any order; an object that starts before the last one causes the catalog to be read again."""
    store = filled(3)
    catalog = ObjectCatalog(store, root=ROOT, topic=TOPIC, commits=store)
    assert len(catalog) == 3
    before = store.calls["range"]
    catalog.publish(descriptor(4))
    assert (catalog.next_offset, store.calls["range"]) == (5 * EACH, before)
    catalog.publish(descriptor(3))
    assert [span.start_offset for span in catalog.spans()] == [number * EACH for number in range(5)]
    assert store.calls["range"] > before
    catalog.withdraw(catalog.spans()[:2])
    assert catalog.start_offset == 2 * EACH
    assert catalog.at_or_after(0) == catalog.spans()[0]
