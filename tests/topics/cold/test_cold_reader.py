"""Objects are read from any offset, by the index, in chunks, and verified; errors contain name, byte and offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cold_rig import DESCRIPTORS, PREFIX, TOPIC, Rig, append, expected, payload, read, settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from quiver.errors import DataLossError, UsageError
from quiver.topics.cold.blocks import BLOCK_BYTES_MAX, find_block_end, pack_block, unpack_block
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.pieces import ColdLost, ColdPiece
from quiver.topics.cold.reader import ObjectReader
from quiver.topics.format.frame import take_frames

KINDS = ["none", "zstd", "lz4"]


def cold(count, *, rotate=100_000_000, compression="none", batch=None):
    """A topic whose first *count* messages are only in objects."""
    rig = Rig(chosen=settings(rotate=rotate, compression=compression, batch=batch))
    log = rig.open()
    append(log, count)
    log._engine.wal.rotate()
    rig.store.maintain()
    assert log._engine.wal.start_offset == count
    return rig, log


def reader_of(rig, read_bytes=4 << 20):
    return ObjectReader(rig.objects, rig.tier.catalog(TOPIC), observer=rig.observer, read_bytes=read_bytes)


def bodies(reader, start, end):
    found = []
    while start < end:
        piece = reader.take(start, end)
        assert isinstance(piece, ColdPiece), piece
        assert piece.first_offset == start
        assert piece.bodies
        found += piece.bodies
        start += len(piece.bodies)
    assert start == end
    return found


def change(rig, name, position, byte=None, *, cut=None):
    data = bytearray(rig.memory.get(PREFIX + name, size_max=1 << 30))
    if cut is not None:
        data = data[:cut]
    else:
        data[position] ^= 0xFF if byte is None else byte
    rig.memory.put(PREFIX + name, bytes(data))


@pytest.mark.parametrize("compression", KINDS)
def test_the_index_finds_any_offset(compression):
    """Every start returns exactly the messages from it on, and at most a thousand messages are read in vain."""
    rig, log = cold(3500, compression=compression)
    (descriptor,) = rig.tier.catalog(TOPIC).descriptors()
    assert [offset for offset, _ in descriptor.offset_index] == [0, 1000, 2000, 3000]

    for start in (0, 1, 999, 1000, 1001, 2500, 3400):
        assert read(log, start) == expected(3500, start)
        before = dict(descriptor.offset_index)[start // 1000 * 1000]
        read_bytes = rig.observer.total("danube_cloud_reader_bytes_read_total")
        rig.observer.counts.clear()
        assert read_bytes == descriptor.size - before


@pytest.mark.parametrize("compression", KINDS)
@pytest.mark.parametrize("read_bytes", [1, 17, 100, 4096])
def test_chunks_of_any_size_give_the_same_messages(read_bytes, compression):
    """A message may span two or more of them."""
    rig, _ = cold(30, rotate=600, compression=compression)
    complete = bodies(reader_of(rig), 0, 30)

    assert bodies(reader_of(rig, read_bytes), 0, 30) == complete
    assert bodies(reader_of(rig, read_bytes), 13, 21) == complete[13:21]


def test_a_plain_object_equals_the_log_byte_for_byte():
    """It contains only the frames of the file."""
    rig = Rig(chosen=settings(rotate=100_000, keep_minutes=None))
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        file = log._engine.wal.files()[0]
        data = rig.memory.get(PREFIX + "data-0-19.dnb1", size_max=1 << 20)

        assert data == rig.disk.read_all(file.path, size_max=1 << 20)[: file.size_bytes]
        assert [place[0] for place in take_frames(data)[0]] == list(range(20))


def test_objects_are_closed_by_size():
    """`max_batch_bytes`: the message that reaches it is the last one."""
    rig, log = cold(20, batch=300)
    sizes = [one.size for one in rig.tier.catalog(TOPIC).descriptors()]
    frame = max(len(body) + 16 for body in bodies(reader_of(rig), 0, 20))

    assert len(sizes) > 4
    assert all(300 <= size < 300 + frame for size in sizes[:-1])
    assert read(log) == expected(20)


def test_one_reader_moves_from_objects_to_files_to_memory():
    """The iterator returns exact offsets while files are rotated, uploaded and deleted."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 10)
        log.flush()
        with log.reader(start=0, follow=True) as reader:
            seen = [next(reader).payload for _ in range(3)]
            rig.store.maintain()  # the rest of the current file moves to objects
            append(log, 10)
            seen += [next(reader).payload for _ in range(9)]
            log.flush()
            rig.store.maintain()
            append(log, 3)
            seen += [next(reader).payload for _ in range(11)]
            assert seen == expected(23)
            assert reader.poll() == []


@pytest.mark.parametrize("name", ["data-0-999.dnb1"])
def test_a_flipped_bit_loses_one_message(name):
    """The error contains the object's name, the byte, and the offset; all other messages are read."""
    rig, log = cold(1000)
    frame = rig.tier.catalog(TOPIC).descriptors()[0].size // 1000
    change(rig, name, 500 * frame)

    with log.reader(start=0, follow=False) as reader:
        seen = []
        with pytest.raises(DataLossError) as raised:
            seen.extend(message.offset for message in reader)
        lost = raised.value
        seen += [message.offset for message in reader]

    missing = sorted(set(range(1000)) - set(seen))
    assert len(missing) == 1
    assert PREFIX + name == lost.path
    assert abs(lost.offset - 500 * frame) <= 2 * frame
    assert f"message {missing[0]} is lost" in str(lost)
    assert rig.observer.total("danube_cloud_reader_errors_total") >= 1


@pytest.mark.parametrize("compression", KINDS)
def test_a_flipped_byte_anywhere_is_detected(compression):
    """The returned messages equal the appended ones, in order, and the missing ones are reported as lost."""
    rig, log = cold(6, compression=compression)
    (one,) = rig.tier.catalog(TOPIC).descriptors()
    sound = rig.memory.get(PREFIX + one.object_id, size_max=1 << 20)

    for position in range(one.size):
        change(rig, one.object_id, position)
        with log.reader(start=0, follow=False, on_lost="skip") as reader:
            seen = {message.offset: message.payload for message in reader}
            lost = {offset for first, after in reader.lost for offset in range(first, after)}
        assert all(payload(offset) == reported for offset, reported in seen.items())
        assert set(seen) | lost == set(range(6))
        assert not set(seen) & lost
        rig.memory.put(PREFIX + one.object_id, sound)


@pytest.mark.parametrize("compression", KINDS)
def test_a_truncated_object_gives_its_intact_messages(compression):
    """An object that is shorter than in its descriptor returns what it has, and the error contains its length."""
    rig, log = cold(6, compression=compression)
    (one,) = rig.tier.catalog(TOPIC).descriptors()
    sound = rig.memory.get(PREFIX + one.object_id, size_max=1 << 20)

    for cut in range(one.size):
        change(rig, one.object_id, 0, cut=cut)
        with log.reader(start=0, follow=False, on_lost="skip") as reader:
            seen = [message.payload for message in reader]
            assert seen == expected(len(seen))
            assert reader.lost == [(len(seen), 6)]
        rig.memory.put(PREFIX + one.object_id, sound)


def test_the_error_of_a_missing_object_has_its_name():
    """Its offsets are lost, and the next object is read."""
    rig, log = cold(30, rotate=600)
    names = rig.named()
    first = rig.tier.catalog(TOPIC).descriptors()[0]
    rig.memory.delete([PREFIX + names[0]])

    with log.reader(start=0, follow=False) as reader:
        with pytest.raises(DataLossError, match="the object is missing") as raised:
            next(reader)
        assert raised.value.path == PREFIX + names[0]
        assert [message.offset for message in reader] == list(range(first.end_offset + 1, 30))


def test_damage_before_the_wanted_offset_has_no_effect():
    """The index points to a position before the offset; damage between the two is ignored."""
    rig, log = cold(900)
    frame = rig.tier.catalog(TOPIC).descriptors()[0].size // 900
    change(rig, "data-0-899.dnb1", 100 * frame)

    assert read(log, 500) == expected(900, 500)


def test_a_damaged_header_loses_no_message():
    """The message itself contains its offset."""
    rig, log = cold(6)
    change(rig, "data-0-5.dnb1", 0)

    assert read(log) == expected(6)


def test_the_error_for_a_hole_between_objects_has_its_range():
    """Nothing is skipped silently."""
    rig, log = cold(30, rotate=600)
    names = [one.start_offset for one in rig.tier.catalog(TOPIC).descriptors()]
    rig.facts.commit({f"{DESCRIPTORS}{names[1]:020d}": None})
    rig.tier.catalog(TOPIC).refresh()

    with log.reader(start=0, follow=False) as reader:
        seen = []
        with pytest.raises(DataLossError, match=rf"messages {names[1]} to {names[2] - 1} are lost"):
            seen.extend(message.offset for message in reader)
        assert seen == list(range(names[1]))
        assert next(reader).offset == names[2]


def test_overlapping_descriptors_repeat_no_message():
    """A writer that lost its position left them: each offset is read once."""
    rig, log = cold(30, rotate=600)
    data = b"".join(rig.memory.get(PREFIX + name, size_max=1 << 20) for name in rig.named()[:2])
    first, second = rig.tier.catalog(TOPIC).descriptors()[:2]
    name = f"data-0-{second.end_offset}.dnb1"
    rig.memory.put(PREFIX + name, data)
    longer = rig.facts.get(f"{DESCRIPTORS}{0:020d}").value.replace(first.object_id.encode(), name.encode())
    longer = longer.replace(f'"end_offset":{first.end_offset}'.encode(), f'"end_offset":{second.end_offset}'.encode())
    longer = longer.replace(f'"size":{first.size}'.encode(), f'"size":{len(data)}'.encode())
    rig.facts.commit({f"{DESCRIPTORS}{0:020d}": longer})
    rig.tier.catalog(TOPIC).refresh()

    assert read(log) == expected(30)


def test_a_reader_by_time_starts_at_the_first_later_message():
    """Wherever that message is stored."""
    rig = Rig(chosen=settings(rotate=600))
    with rig.opened() as log:
        begin = datetime.fromtimestamp(rig.clock.now_ns() / 1e9, UTC)
        for _ in range(40):
            append(log, 1)
            rig.clock.advance(1.0)
        log._engine.wal.rotate()
        rig.store.maintain()
        assert log._engine.wal.start_offset == 40
        reader = reader_of(rig)

        for number in (0, 1, 7, 20, 39):
            at = begin + timedelta(seconds=number)
            assert reader.offset_at(round(at.timestamp() * 1000)) == number
            assert read_from(log, at) == expected(40, number)
            assert read_from(log, at - timedelta(milliseconds=500)) == expected(40, number)
        assert reader.offset_at(round((begin.timestamp() + 40) * 1000)) is None


def read_from(log, start):
    with log.reader(start=start, follow=False) as reader:
        return [message.payload for message in reader]


def test_a_reader_in_another_process_finds_new_objects():
    """A reader whose catalog another process writes reads the catalog again when it finds no object."""
    rig, log = cold(10)
    theirs = ObjectCatalog(rig.metadata, root="/danube", topic=TOPIC)
    reader = ObjectReader(rig.objects, theirs, observer=rig.observer, follows_others=True)
    assert bodies(reader, 0, 10)
    assert reader.take(10, 20) is None

    append(log, 10)
    log.flush()
    rig.store.maintain()

    assert len(bodies(reader, 10, 20)) == 10
    assert reader.next_offset(20) is None
    assert reader.next_offset(3) == 3


def test_messages_deleted_by_retention_are_not_damage():
    """The descriptor is removed before the object: a reader that finds the gap reads the catalog again."""
    rig, _ = cold(30, rotate=600)
    catalogue = ObjectCatalog(rig.metadata, root="/danube", topic=TOPIC)
    catalogue.refresh()
    reader = ObjectReader(rig.objects, catalogue, observer=rig.observer)
    first = rig.tier.catalog(TOPIC).descriptors()[0]
    rig.tier.catalog(TOPIC).withdraw([first])
    rig.memory.delete([PREFIX + first.object_id])

    assert reader.take(0, 30) is None
    assert reader.next_offset(0) == first.end_offset + 1


def test_a_lost_range_ends_at_an_index_entry():
    """In a packed object nothing after the damage in a block can be read; the next block can."""
    rig, _ = cold(2500, compression="zstd")
    (one,) = rig.tier.catalog(TOPIC).descriptors()
    change(rig, one.object_id, one.offset_index[1][1] + 10)

    found = reader_of(rig).take(1200, 2500)

    assert isinstance(found, ColdLost)
    assert (found.first_offset, found.next_offset) == (1200, 2000)
    assert found.name == PREFIX + one.object_id
    assert bodies(reader_of(rig), 2000, 2500)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=5), st.sampled_from(["zstd", "lz4"]))
def test_packed_blocks_are_unpacked_and_their_ends_found(blocks, compression):
    """Each block decodes alone, with its end; trailing junk is not a block."""
    packed = [pack_block(block, compression) for block in blocks]
    data = b"".join(packed)
    at = 0
    for block, one in zip(blocks, packed, strict=True):
        assert find_block_end(data, at, compression).value == at + len(one)
        assert unpack_block(one, compression) == block
        at += len(one)
    assert type(find_block_end(data + b"junk!", at, compression)).__name__ == "Damage"
    for cut in range(min(len(packed[0]), 40)):
        assert type(find_block_end(packed[0][:cut], 0, compression)).__name__ == "NeedMore"
        with pytest.raises(ValueError, match="decompressed") if cut else pytest.raises((ValueError, AssertionError)):
            assert unpack_block(packed[0][:cut], compression)


def test_a_block_that_unpacks_to_too_many_bytes_is_refused():
    """A few bytes may unpack to any size."""
    bomb = pack_block(bytes(BLOCK_BYTES_MAX + 1), "zstd")

    with pytest.raises(ValueError, match="more than"):
        unpack_block(bomb, "zstd")
    with pytest.raises(UsageError):
        pack_block(b"", "none")
