"""Stores that fail, lose answers, truncate, repeat and become unavailable: no message is lost, and appends continue."""

from __future__ import annotations

import contextlib

import pytest
from cold_rig import Rig, append, check_tidy, expected, holes, read, settings

from quiver.errors import (
    CorruptionError,
    InvariantError,
    MetadataUnavailableError,
    ObjectsUnavailableError,
    QuiverError,
)
from quiver.objects.memory import MemoryObjects
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import FaultObjects
from quiver.topics.cold import source as object_source
from quiver.topics.cold.source import SourceRange
from quiver.topics.format.checkpoint import UploaderCheckpoint, encode_uploader_checkpoint

OBJECT_CALLS = ["put_parts", "copy", "head", "get_range", "list", "delete"]


def work(rig, log):
    for _ in range(3):
        append(log, 5)
        log.flush()
        with contextlib.suppress(QuiverError):
            rig.store.maintain()


def healthy_calls():
    rig = Rig()
    with rig.opened() as log:
        before = rig.objects.calls.copy()
        work(rig, log)
        return {name: rig.objects.calls[name] - before[name] for name in OBJECT_CALLS}


def mend_and_check(rig, log):
    rig.objects.heal()
    rig.metadata.heal()
    rig.store.maintain()
    rig.store.maintain()
    check_tidy(rig)
    assert read(log) == expected(15)
    assert rig.tier.catalog("default/orders").next_offset == 15


@pytest.mark.parametrize("how", ["fail", "lose_answer", "truncate", "repeat", "slow"])
@pytest.mark.parametrize("operation", OBJECT_CALLS)
def test_a_fault_in_any_object_store_call_is_recovered(operation, how):
    """After a fault in any call, the next cycle recovers, and all messages exist."""
    calls = healthy_calls()[operation]
    assert calls

    for nth in range(1, calls + 1):
        rig = Rig()
        with rig.opened() as log:
            rig.objects.fail_on(operation, nth, how=how)
            work(rig, log)
            mend_and_check(rig, log)


@pytest.mark.parametrize("operation", OBJECT_CALLS)
def test_an_object_store_outage_costs_only_disk_space(operation):
    """Appends and reads continue, no local file is deleted, and everything is uploaded afterwards."""
    rig = Rig()
    with rig.opened() as log:
        rig.objects.fail_on(operation, times=10_000)
        work(rig, log)
        assert read(log) == expected(15)
        if operation != "delete":
            assert log._engine.wal.start_offset == 0
        mend_and_check(rig, log)


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("kind", ["get", "range", "commit", "lose_answer"])
def test_a_fault_in_any_metadata_call_is_recovered(kind, nth):
    """A commit whose answer was lost may have happened: the catalog is read again before anything else."""
    rig = Rig()
    with rig.opened() as log:
        if kind == "lose_answer":
            rig.metadata.lose_answer(nth)
        else:
            rig.metadata.fail_on(kind, nth)
        work(rig, log)
        mend_and_check(rig, log)


def test_a_metadata_outage_of_minutes_loses_nothing():
    """Appends continue for four minutes, local files stay, and everything is uploaded when it is back."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 5)
        rig.metadata.is_away = True
        for _ in range(24):
            rig.clock.advance(10.0)
            append(log, 1)
            log.flush()
            with pytest.raises(MetadataUnavailableError):
                rig.tier.maintain()
        assert rig.clock.monotonic() >= 240.0
        assert log._engine.wal.start_offset == 0
        assert read(log) == expected(29)

        rig.metadata.is_away = False
        rig.store.maintain()
        check_tidy(rig)
        assert read(log) == expected(29)


def test_an_object_that_differs_from_the_log_is_not_published():
    """The object is read back and compared with the log; the local file stays, and it is uploaded again."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 5)
        log.flush()
        whole_copy = rig.memory.copy

        def bad_copy(source, target, *, if_absent=False):
            whole_copy(source, target, if_absent=if_absent)
            data = bytearray(rig.memory.get(target, size_max=1 << 20))
            data[20] ^= 1
            return rig.memory.put(target, bytes(data))

        rig.memory.copy = bad_copy
        with pytest.raises(CorruptionError, match="other bytes than were sent"):
            rig.tier.maintain()
        assert rig.named() == []
        assert log._engine.wal.start_offset == 0

        rig.memory.copy = whole_copy
        rig.store.maintain()
        check_tidy(rig)
        assert read(log) == expected(5)


def test_a_failing_disk_does_not_stop_the_upload():
    """The checkpoint is only a hint: without it the upload continues from the catalog."""
    rig = Rig()
    rig.disk = FaultFileSystem(rig.disk, {"pwrite": 1}, path_part="uploader.ckpt", forever=True)
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        rig.tier.maintain()
        check_tidy(rig)
        assert rig.tier.catalog("default/orders").next_offset == 9


def test_a_wrong_checkpoint_is_detected():
    """It is only a hint: one that points into a message is replaced by the log's own marks."""
    rig = Rig(chosen=settings(rotate=100_000))
    with rig.opened() as log:
        append(log, 5)
        log.flush()
        rig.tier.maintain()
        append(log, 5)
        log.flush()
    lie = UploaderCheckpoint(4, 0, 33, "data-0-4.dnb1", 0)
    file = rig.disk.create_or_truncate("/topics/default/orders/uploader.ckpt")
    file.pwrite(encode_uploader_checkpoint(lie), 0)
    file.close()

    again = Rig(disk=rig.disk, memory=rig.memory.clone(), facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        again.tier.maintain()
        check_tidy(again)
        assert again.named() == ["data-0-4.dnb1", "data-5-9.dnb1"]
        assert again.observer.total("danube_uploader_errors_total") == 0
        assert read(log) == expected(10)


def test_an_upload_continues_at_the_byte_where_it_ended():
    """Not at the start of the file: the checkpoint has the file and the byte, also after a restart."""
    rig = Rig(chosen=settings(rotate=100_000, keep_minutes=None))
    reads = []
    with rig.opened(hand_over=False) as log:
        append(log, 5)
        log.flush()
        rig.tier.maintain()
        size = log._engine.wal.files()[0].size_bytes
        append(log, 5)
        log.flush()
    disk = rig.disk
    again = Rig(disk=disk, memory=rig.memory.clone(), facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        scanner = object_source.FrameScanner

        class Watched(scanner):
            def __init__(self, *args, **keywords):
                reads.append(keywords["position"])
                super().__init__(*args, **keywords)

        object_source.FrameScanner = Watched
        try:
            again.tier.maintain()
        finally:
            object_source.FrameScanner = scanner
        assert reads == [size]
        assert again.named() == ["data-0-4.dnb1", "data-5-9.dnb1"]


def test_an_unsynced_frame_is_not_uploaded():
    """After a power loss its offset may be given to another message: the object would differ from the log."""
    rig = Rig(chosen=settings(rotate=100_000))
    with rig.opened() as log:
        append(log, 3)
        log.flush()
        append(log, 3)

        rig.tier.maintain()

        assert rig.named() == ["data-0-2.dnb1"]


def test_the_upload_skips_and_reports_damage_in_the_log():
    """The next object starts after the damage; the file is deleted when the rest is uploaded."""
    rig = Rig(chosen=settings(rotate=100_000))
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        log._engine.wal.rotate()
        path = log._engine.wal.files()[0].path
        file = rig.disk.open_write(path)
        frame = log._engine.wal.files()[0].size_bytes // 9
        byte = file.pread(1, 4 * frame + 60)
        file.pwrite(bytes([byte[0] ^ 0xFF]), 4 * frame + 60)
        file.close()

        rig.tier.maintain()

        names = rig.named()
        assert len(names) == 2
        (hole,) = holes(rig.tier.catalog("default/orders"), 9)
        assert hole[1] - hole[0] == 1
        assert log._engine.wal.start_offset == 9  # all readable messages of the file are in objects
        with log.reader(start=0, follow=False, on_lost="skip") as reader:
            assert [one.offset for one in reader] == [n for n in range(9) if n != hole[0]]
            assert reader.lost == [hole]


def test_reading_continues_after_an_outage_of_the_object_store():
    """The reader raises an error, and the same reader continues at its position."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        rig.store.maintain()
        with log.reader(start=0, follow=False) as reader:
            rig.objects.fail_on("get_range")
            with pytest.raises(ObjectsUnavailableError):
                next(iter(reader))
            assert [one.payload for one in reader] == expected(9)


def test_an_empty_object_store_is_not_a_loss():
    """An unmounted disk or another bucket: reads fail and succeed later, and nothing is uploaded there."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        rig.store.maintain()
        assert log._engine.wal.start_offset > 0
    mounted = rig.memory
    rig.memory = MemoryObjects()
    with rig_on(rig).opened() as log:
        append(log, 3)
        log.flush()
        with log.reader(start=0, follow=False) as reader, pytest.raises(ObjectsUnavailableError, match="is it mounted"):
            next(iter(reader))
        with pytest.raises(ObjectsUnavailableError, match="is it mounted"):
            rig.store.maintain()
        assert rig.keys() == []
    rig.memory = mounted
    with rig_on(rig).opened() as log:
        rig.store.maintain()
        check_tidy(rig)
        assert read(log) == expected(12)


def rig_on(rig):
    """The same process, restarted with the current objects of *rig*."""
    rig.objects = FaultObjects(rig.memory, clock=rig.clock)
    return rig


def test_a_truncated_answer_is_not_a_truncated_object():
    """The object is complete: the reader requests it again instead of reporting lost messages."""
    rig = Rig()
    with rig.opened() as log:
        append(log, 9)
        log.flush()
        rig.store.maintain()
        with log.reader(start=0, follow=False) as reader:
            rig.objects.fail_on("get_range", how="truncate")
            with pytest.raises(ObjectsUnavailableError, match="were asked for"):
                next(iter(reader))
            assert [one.payload for one in reader] == expected(9)


def test_close_does_not_wait_for_a_backlog():
    """The running cycle ends after its current object; the rest is uploaded after the next open."""
    rig = Rig(chosen=settings(rotate=300, keep_minutes=None))
    log = rig.open()
    append(log, 40)
    log.flush()
    uploader = rig.tier._find("default/orders").uploader
    rig.objects.on_call = lambda operation, key: uploader.stop() if operation == "copy" else None
    rig.tier.maintain()
    assert len(rig.named()) == 1
    rig.close()

    again = Rig(disk=rig.disk, memory=rig.memory.clone(), facts=rig.facts, chosen=rig.chosen)
    with again.opened() as log:
        again.tier.maintain()
        check_tidy(again)
        assert read(log) == expected(40)


def test_no_object_replaces_another_one():
    rig = Rig()
    with rig.opened() as log:
        append(log, 40)
        rig.tier.upload(log.topic)
        owned = rig.tier._owned[log.topic]
        before = rig.named()
        span = owned.wal.locate(1)
        with pytest.raises(InvariantError, match="no object replaces or overlaps another one"):
            owned.uploader._upload(SourceRange(span, 1, span.next_offset, None))
        assert rig.named() == before
