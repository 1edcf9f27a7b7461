"""The catalog is rebuilt from the objects alone."""

from __future__ import annotations

import pytest
from cold_rig import PREFIX, TOPIC, Rig, append, expected, holes, read, settings

from quiver.errors import CorruptionError
from quiver.metadata import acquire
from quiver.metadata.memory import MemoryMetadata
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.catalog_rebuild import rebuild_catalog, topics_with_objects
from quiver.topics.format.descriptor import decode_descriptor, encode_descriptor


def made(compression="none", count=40, rotate=600):
    rig = Rig(chosen=settings(rotate=rotate, compression=compression))
    with rig.opened() as log:
        append(log, count)
        log._engine.wal.rotate()
        rig.store.maintain()
        rig.before = rig.tier.catalog(TOPIC).descriptors()
    return rig


def rebuilt(rig, facts=None):
    facts = facts or MemoryMetadata()
    catalogue = ObjectCatalog(facts, root="/danube", topic=TOPIC, commits=facts)
    return facts, catalogue, rebuild_catalog(rig.memory, catalogue)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize(("count", "rotate"), [(40, 600), (3500, 10**8), (1, 600)])
def test_a_rebuilt_catalog_equals_the_original(compression, count, rotate):
    """Every field except the time of creation; the topic is read and appended to as before."""
    rig = made(compression, count, rotate)

    facts, catalogue, report = rebuilt(rig)

    assert [(one.object_id, one.offset_index, one.size, one.etag) for one in catalogue.descriptors()] == [
        (one.object_id, one.offset_index, one.size, one.etag) for one in rig.before
    ]
    assert (report.damaged, report.left_out, report.holes) == ([], [], [])
    again = Rig(memory=rig.memory, facts=facts, chosen=rig.chosen)
    with again.opened() as log:
        assert read(log) == expected(count)
        append(log, 1)
        assert log._engine.wal.next_offset == count + 1


def test_leftovers_and_foreign_files_are_ignored():
    """Pending objects, objects whose messages another object has, and unrelated files."""
    rig = made()
    first, second = rig.before[:2]
    rig.memory.put(f"{PREFIX}data-40-pending.dnb1", b"half")
    rig.memory.put(f"{PREFIX}README", b"by hand")
    joined = b"".join(rig.memory.get(PREFIX + one.object_id, size_max=1 << 20) for one in (first, second))
    rig.memory.put(f"{PREFIX}data-0-{second.end_offset}.dnb1", joined)

    _, catalogue, report = rebuilt(rig)

    assert sorted(report.left_out) == sorted(
        PREFIX + name for name in ("data-40-pending.dnb1", "README", first.object_id, second.object_id)
    )
    assert holes(catalogue, 40) == []


def test_wrong_entries_are_corrected():
    """Names without objects are removed, and so are invalid descriptors."""
    rig = made()
    facts = MemoryMetadata()
    facts.commit(
        {
            f"/danube/storage/topics/{TOPIC}/objects/00000000000000000099": b"{}",
            f"/danube/storage/topics/{TOPIC}/objects/00000000000000000000": b"not json",
        }
    )
    broken = ObjectCatalog(facts, root="/danube", topic=TOPIC, commits=facts)
    with pytest.raises(CorruptionError, match="rebuild-catalog"):
        broken.descriptors()

    _, catalogue, _ = rebuilt(rig, facts)

    assert [one.object_id for one in catalogue.descriptors()] == [one.object_id for one in rig.before]
    assert len(facts.range("/danube/")) == len(rig.before) + 1


def test_holes_are_reported():
    """An object is missing: the range of its offsets is reported."""
    rig = made()
    removed = rig.before[1]
    rig.memory.delete([PREFIX + removed.object_id])

    _, _, report = rebuilt(rig)

    assert report.holes == [(removed.start_offset, removed.end_offset + 1)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_intact_part_of_a_damaged_object_is_kept(compression):
    """The object is listed, and reported with the damaged byte; a reader loses only what is damaged."""
    rig = made(compression, 3500, 10**8)
    (one,) = rig.before
    data = bytearray(rig.memory.get(PREFIX + one.object_id, size_max=1 << 30))
    data[one.offset_index[2][1] + 20] ^= 0xFF
    rig.memory.put(PREFIX + one.object_id, bytes(data))

    facts, catalogue, report = rebuilt(rig)

    assert [found.object_id for found in catalogue.descriptors()] == [one.object_id]
    assert [found.path for found in report.damaged] == [PREFIX + one.object_id]
    assert report.damaged[0].offset >= one.offset_index[1][1]
    again = Rig(memory=rig.memory, facts=facts, chosen=rig.chosen)
    with again.opened() as log:
        with log.reader(start=0, follow=False, on_lost="skip") as reader:
            seen = [message.offset for message in reader]
        assert len(seen) >= 2000


@pytest.mark.parametrize("content", [b"", b"something else entirely, and long enough", bytes(100)])
def test_files_that_are_not_objects_are_not_listed(content):
    """A valid name is not enough."""
    rig = made()
    rig.memory.put(f"{PREFIX}data-40-49.dnb1", content)
    rig.memory.put(f"{PREFIX}data-50-59.dnb1.zst", content)

    _, catalogue, report = rebuilt(rig)

    assert catalogue.next_offset == 40
    assert set(report.left_out) == {f"{PREFIX}data-40-49.dnb1", f"{PREFIX}data-50-59.dnb1.zst"}
    assert len(report.damaged) == 2


def test_an_object_with_other_offsets_than_its_name_is_not_listed():
    """It was renamed manually: its messages have other offsets."""
    rig = made()
    rig.memory.copy(PREFIX + rig.before[0].object_id, f"{PREFIX}data-40-43.dnb1")

    _, catalogue, report = rebuilt(rig)

    assert catalogue.next_offset == 40
    assert "its messages are not 40" in str(report.damaged[0])


def test_a_second_rebuild_changes_nothing():
    """No key is written again."""
    rig = made()
    facts, _, _ = rebuilt(rig)
    before = facts.range("/")

    rebuilt(rig, facts)

    assert facts.range("/") == before


def test_the_topics_of_an_object_store_are_listed():
    """Their names come from the folders."""
    rig = made()
    rig.memory.put("storage/topics/other/topic.a/objects/data-0-0.dnb1", b"")
    rig.memory.put("storage/topics/stray", b"")
    rig.memory.put("elsewhere/x/y", b"")

    assert topics_with_objects(rig.memory) == [TOPIC, "other/topic.a"]


def test_descriptors_round_trip():
    """Reading returns what was published."""
    for compression in ("none", "lz4"):
        for one in made(compression).before:
            assert decode_descriptor(encode_descriptor(one)).value == one


def test_a_damaged_descriptor_blocks_the_topic_until_a_rebuild():
    """Its contents are not guessed: the error has its name and the remedy, and the topic is released."""
    rig = made()
    key = f"/danube/storage/topics/{TOPIC}/objects/{rig.before[1].start_offset:020d}"
    rig.facts.commit({key: b"{}"})
    again = Rig(disk=rig.disk, memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with pytest.raises(CorruptionError, match="rebuild-catalog") as raised:
        again.open()
    assert raised.value.path == key
    again.close()

    acquire(rig.facts, f"/danube/storage/topics/{TOPIC}/owner", owner="repair", ttl_s=60.0, clock=rig.clock).release()
    rebuilt(rig, rig.facts)

    again = Rig(disk=rig.disk, memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        assert read(log) == expected(40)
