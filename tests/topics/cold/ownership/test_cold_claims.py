"""One test per claim of the document that its first program did not fulfil; the tests are named after the claims."""

from __future__ import annotations

import pytest
from cold_rig import DESCRIPTORS, PREFIX, TOPIC, Rig, append, check_tidy, expected, read, settings

from quiver.errors import DataLossError, ObjectsUnavailableError
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultmetadata import FaultMetadata
from quiver.topics.cold import catalog as catalogue_module
from quiver.topics.cold.catalog import ObjectCatalog


def test_restore_state_from_the_checkpoint_on_startup():
    """Offsets, file numbers and uploads continue, and nothing is overwritten."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        rig.store.maintain()
        append(log, 3)
        log.flush()
        seq = log._engine.wal.files()[-1].seq
    again = Rig(disk=rig.disk.clone_after_kill(), memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        assert log._engine.wal.next_offset == 15
        assert log._engine.wal.files()[-1].seq >= seq
        append(log, 9)
        log.flush()
        again.store.maintain()
        check_tidy(again)
        assert read(log) == expected(24)


def test_start_offset_is_the_hand_off_point_and_is_never_set_back():
    """Later syncs and checkpoints leave it where the deleter put it; older offsets come from objects."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        rig.store.maintain()
        start = log._engine.wal.start_offset
        assert start > 0
        for _ in range(3):
            append(log, 1)
            log.flush()
            log._engine.wal.write_checkpoint()
            assert log._engine.wal.start_offset == start
            assert log._engine.wal.checkpoint().start_offset == start
        assert read(log) == expected(15)


def test_the_reader_requests_descriptors_once_and_reads_only_what_it_needs():
    """Later reads reuse the descriptors, and fetch only the objects that contain the wanted offsets.

    The range itself, and how many descriptors are kept in memory: `test_cold_catalog.py`.
    """
    rig = Rig(chosen=settings(rotate=300))
    with rig.opened() as log:
        append(log, 60)
        log.flush()
        rig.store.maintain()
        ranges = rig.metadata.calls["range"]
        rig.objects.calls.clear()
        with log.reader(start=50, follow=False) as reader:
            assert next(reader).offset == 50
        assert rig.metadata.calls["range"] == ranges
        assert rig.objects.calls["get_range"] <= 1


def test_uploader_max_batch_bytes_limits_the_size_of_objects():
    """An object is closed when it reaches the limit, also in the middle of a file."""
    rig = Rig(chosen=settings(rotate=100_000, batch=200, keep_minutes=None))
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        rig.tier.maintain()
        assert len(rig.keys()) > 3


def test_pending_objects_are_removed_after_a_failure():
    """The next cycle removes them, and every other object that has no descriptor."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 4)
        log.flush()
        rig.objects.fail_on("copy")
        with pytest.raises(ObjectsUnavailableError):
            rig.tier.maintain()
        assert rig.keys() == ["data-0-pending.dnb1"]
        rig.tier.maintain()
        check_tidy(rig)


def test_uploads_are_never_duplicated():
    """After a crash at the worst moment and with the checkpoint lost, no two objects contain the same message."""
    rig = Rig(chosen=settings(keep_minutes=None))
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        rig.tier.maintain()
    disk = rig.disk.clone_after_kill()
    disk.remove("/topics/default/orders/uploader.ckpt")
    again = Rig(disk=disk, memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    before = rig.keys()
    with again.opened() as log:
        append(log, 2)
        log.flush()
        again.tier.maintain()
        check_tidy(again)
        assert set(before) <= set(again.keys())


def test_a_failed_copy_keeps_the_pending_object_and_the_local_file():
    """However often it fails, the uploaded data stays until a complete copy exists."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        for _ in range(3):
            rig.objects.fail_on("copy", times=5)
            with pytest.raises(ObjectsUnavailableError):
                rig.tier.maintain()
            assert rig.keys() == ["data-0-pending.dnb1"]
            assert log._engine.wal.start_offset == 0
        rig.objects.heal()
        rig.store.maintain()
        check_tidy(rig)
        assert read(log) == expected(9)


def test_an_upload_in_the_middle_of_a_flush_ends_at_a_frame_boundary():
    """Incomplete or unsynced data is left for the next cycle, which continues at the right position."""
    rig = Rig(chosen=settings(rotate=100_000, keep_minutes=None))
    with rig.opened() as log:
        for count in (1, 2, 3):
            append(log, count)
            log.flush()
            append(log, 1)
            rig.tier.maintain()
        log.flush()
        rig.tier.maintain()
        check_tidy(rig)
        assert rig.tier.catalog(TOPIC).next_offset == 9


def test_a_descriptor_stays_small():
    """In a topic of tiny messages the index has one entry per thousand messages, and the file bounds the object."""
    rig = Rig(chosen=settings(rotate=10_000_000))
    with rig.opened() as log:
        for _ in range(50):
            log.append_batch([b"x"] * 500)
        log._engine.wal.rotate()
        rig.tier.maintain()
        (entry,) = [one for one in rig.facts.range(DESCRIPTORS) if not one.key.endswith("cur")]
        assert len(entry.value) < 1000


def test_a_restart_never_reuses_an_offset():
    """All local files are lost: the descriptors record the next offset of the topic."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 12)
        log.flush()
        rig.tier.maintain()
    again = Rig(disk=CrashFileSystem(), memory=rig.memory, facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        append(log, 1)
        log.flush()
        again.tier.maintain()
        check_tidy(again)
        assert [one.start_offset for one in again.tier.catalog(TOPIC).descriptors()].count(0) == 1
        assert read(log) == expected(13)


def test_nothing_is_skipped_after_the_end_of_the_objects():
    """A hole between the last object and the first local file is an error with its range, not a jump."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 30)
        log.flush()
        rig.store.maintain()
        last = rig.tier.catalog(TOPIC).descriptors()[-2]
        rig.tier.catalog(TOPIC).withdraw([last])
        with (
            log.reader(start=0, follow=False) as reader,
            pytest.raises(DataLossError, match=f"{last.start_offset} to "),
        ):
            list(reader)


def test_a_corrupt_object_does_not_stop_the_reader_for_good():
    """The same error on every attempt would stall a subscription: it is reported once, and the reader continues."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 30)
        log.flush()
        rig.store.maintain()
        rig.memory.put(PREFIX + rig.named()[0], b"")
        with log.reader(start=0, follow=False) as reader:
            with pytest.raises(DataLossError):
                next(reader)
            assert next(reader).offset == rig.tier.catalog(TOPIC).descriptors()[1].start_offset


def test_metadata_of_many_objects_is_read_in_pages(monkeypatch):
    """Nothing between two pages is left out."""
    monkeypatch.setattr(catalogue_module, "_PAGE", 50)
    rig = Rig(chosen=settings(rotate=1))
    with rig.opened() as log:
        append(log, 110)
        log.flush()
        rig.tier.maintain()
    metadata = FaultMetadata(rig.facts)
    catalogue = ObjectCatalog(metadata, root="/danube", topic=TOPIC)

    assert [one.start_offset for one in catalogue.descriptors()] == list(range(110))
    assert metadata.calls["range"] == 3
