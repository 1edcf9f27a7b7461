"""Opening a topic's directory after crashes and damage."""

from __future__ import annotations

import pytest
from topic_disks import DIRECTORY, ROOT, TOPIC, offsets, open_topics, payloads

from disk_files import overwrite, read_file
from quiver.errors import DataLossError, StoreFailedError
from quiver.observe import InMemoryObserver
from quiver.primitives.scan import Frame
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.topics.format.checkpoint import decode_wal_checkpoint
from quiver.topics.format.frame import take_frames
from quiver.topics.recovery import recover
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

WAL = f"{DIRECTORY}/wal.log"
CHECKPOINT = f"{DIRECTORY}/wal.ckpt"
QUARANTINE = f"{DIRECTORY}/quarantine"


def filled(count: int, *, payload: bytes = b"", **wal: int) -> CrashFileSystem:
    """A topic that was closed with *count* messages in it."""
    fs = CrashFileSystem()
    with open_topics(fs, **wal) as store:
        log = store.topic(TOPIC)
        for number in range(count):
            log.append(payload or b"%d" % number)
    return fs


def test_offsets_continue_after_close_and_after_a_kill():
    """The next offset was never used before."""
    fs = CrashFileSystem()
    for expected in range(4):
        store = open_topics(fs)
        assert store.topic(TOPIC).append(b"%d" % expected) == expected
        if expected % 2:
            store.close()
        else:
            fs = fs.clone_after_kill()
    with open_topics(fs) as store:
        assert payloads(store.topic(TOPIC)) == [b"0", b"1", b"2", b"3"]


def test_the_checkpoint_is_only_a_hint():
    """Missing, truncated, of another topic or outdated: the log is the same without it."""
    fs = filled(30, rotate_max_bytes=500)
    sound = read_file(fs, CHECKPOINT)
    yesterday = read_file(filled(3), CHECKPOINT)
    for data in (b"", sound[:-1], yesterday, b"x" * 100):
        disk = fs.clone_after_kill()
        disk.remove(CHECKPOINT)
        if data:
            disk.create(CHECKPOINT).close()
            overwrite(disk, CHECKPOINT, 0, data)
        with open_topics(disk, rotate_max_bytes=500) as store:
            assert offsets(store.topic(TOPIC)) == list(range(30))
            assert store.topic(TOPIC).append(b"next") == 30


def test_the_checkpoint_describes_the_files():
    """In the document's fields."""
    fs = filled(30, rotate_max_bytes=1500)
    answer = decode_wal_checkpoint(read_file(fs, CHECKPOINT))
    assert isinstance(answer, Frame)
    reported = answer.value
    assert (reported.start_offset, reported.last_offset, reported.file_seq) == (0, 29, len(reported.rotated_files))
    assert reported.file_path == reported.active_file_name == f"wal.{reported.file_seq}.log"
    assert next(first for _, _, first in reported.rotated_files) == 0
    assert reported.last_rotation_at is not None


def test_the_offset_of_a_lost_synced_message_is_not_reused():
    """The tail is damaged after the checkpoint was written: its offset is reported as lost."""
    fs = filled(10)
    data = read_file(fs, WAL)
    last = take_frames(data)[0][-1]
    overwrite(fs, WAL, last[1] + 20, b"\xff\xff")
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        assert log.append(b"next") == 10
        with log.reader("earliest", follow=False) as reader:
            found = []
            with pytest.raises(DataLossError, match="message 9 is lost"):
                found.extend(message.offset for message in iter(lambda: next(reader), None))
            found.extend(message.offset for message in reader)
        assert offsets(log) == [*range(9), 10]
    assert [name for name in fs.list_dir(QUARANTINE) if name.startswith("wal.log.")]


@pytest.mark.parametrize("wal", [{}, {"rotate_max_bytes": 200}], ids=["one file", "many files"])
def test_damage_at_any_byte_loses_only_its_message(wal):
    """
    Any byte of any file is damaged: all other messages are read, in order, and the lost one is reported; later appends
    do not reuse an offset.
    """
    fs = filled(9, **wal)
    names = [name for name in fs.list_dir(DIRECTORY) if name.endswith(".log")]
    for name in names:
        path = f"{DIRECTORY}/{name}"
        data = read_file(fs, path)
        frames = take_frames(data)[0]
        for at in range(len(data)):
            disk = fs.clone_after_kill()
            overwrite(disk, path, at, bytes([data[at] ^ 0x21]))
            hit = next(offset for offset, start, end in frames if start <= at < end)
            observer = InMemoryObserver()
            with TopicStore.open(ROOT, settings={"wal": wal}, fs=disk, observer=observer, background=False) as store:
                log = store.topic(TOPIC)
                assert log.append(b"next") == 9
                found = offsets(log)
                expected = [offset for offset in range(10) if offset != hit]
                assert found in (expected, list(range(10))), (name, at, hit)
                # The message has the offset of a damaged header; then nothing is lost.
                assert (found == expected) is (observer.total("danube_wal_damage_total") > 0), (name, at)


def test_damage_over_many_frames_is_one_lost_range():
    """A block of the disk is lost: the messages before and after it are read, and the range is reported."""
    fs = filled(400)
    data = read_file(fs, WAL)
    overwrite(fs, WAL, 4096, bytes(4096))
    hit = [offset for offset, start, end in take_frames(data)[0] if end > 4096 and start < 8192]
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        assert offsets(log) == [offset for offset in range(400) if offset not in hit]
        with log.reader("earliest", follow=False, on_lost="skip") as reader:
            assert len(list(reader)) == 400 - len(hit)
            assert reader.lost == [(hit[0], hit[-1] + 1)]
        with log.reader(hit[3], follow=False) as reader, pytest.raises(DataLossError, match=f"{hit[3]} to {hit[-1]}"):
            next(reader)


def test_damage_is_copied_once_before_any_change():
    """A second open finds the same damage and stores no second copy."""
    fs = filled(20)
    overwrite(fs, WAL, 300, b"\xff\xff\xff\xff")
    for _ in range(3):
        with open_topics(fs) as store:
            assert len(offsets(store.topic(TOPIC))) == 19
    assert len(fs.list_dir(QUARANTINE)) == 1


def test_a_missing_file_is_a_lost_range():
    """Reported once; everything else is read."""
    fs = filled(12, rotate_max_bytes=300)
    fs.remove(f"{DIRECTORY}/wal.1.log")
    with open_topics(fs, rotate_max_bytes=300) as store:
        log = store.topic(TOPIC)
        found = offsets(log)
        assert log.append(b"next") == 12
    missing = [offset for offset in range(12) if offset not in found]
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert 0 < len(missing) < 12


def test_a_file_truncated_between_frames_is_a_lost_range():
    """All frames are valid, but messages are missing."""
    fs = filled(12, rotate_max_bytes=300)
    path = f"{DIRECTORY}/wal.1.log"
    frames = take_frames(read_file(fs, path))[0]
    file = fs.open_write(path)
    file.truncate(frames[-1][1])
    file.close()
    with open_topics(fs, rotate_max_bytes=300) as store:
        assert offsets(store.topic(TOPIC)) == [offset for offset in range(12) if offset != frames[-1][0]]


def test_zeros_after_the_tail_are_not_messages():
    """The file system had extended the file before it wrote the bytes."""
    fs = filled(3)
    overwrite(fs, WAL, len(read_file(fs, WAL)), bytes(10_000))
    with open_topics(fs) as store:
        assert payloads(store.topic(TOPIC)) == [b"0", b"1", b"2"]
        assert store.topic(TOPIC).append(b"3") == 3
    assert not fs.exists(QUARANTINE)


def test_a_torn_first_message_of_a_new_file_is_truncated():
    """A crash right after a rotation: the tip is that of the previous file."""
    fs = CrashFileSystem()
    store = open_topics(fs, rotate_max_bytes=100)
    log = store.topic(TOPIC)
    log.append(b"x" * 100)
    log.append(b"y" * 100)
    disk = fs.clone_after_kill()
    disk.remove(CHECKPOINT) if disk.exists(CHECKPOINT) else None
    file = disk.open_write(f"{DIRECTORY}/wal.1.log")
    file.truncate(50)
    file.close()
    with open_topics(disk, rotate_max_bytes=100) as again:
        assert offsets(again.topic(TOPIC)) == [0]
        assert again.topic(TOPIC).append(b"z") == 1
    store.close()


def test_leftovers_of_a_deletion_are_removed():
    """The checkpoint excludes them; the crash happened before they were removed."""
    fs = CrashFileSystem()
    store = open_topics(fs, rotate_max_bytes=100)
    log = store.topic(TOPIC)
    for _ in range(5):
        log.append(b"x" * 100)
    disks: list[CrashFileSystem] = []
    fs.on_step = lambda op, path: disks.append(fs.clone_after_kill()) if op == "remove" else None
    assert [file.seq for file in log._engine.wal.release_below(3)] == [0, 1, 2]
    fs.on_step = None
    assert log._engine.wal.start_offset == 3
    assert len(disks) == 3
    for disk in disks:
        with open_topics(disk, rotate_max_bytes=100) as again:
            assert again.topic(TOPIC)._engine.wal.start_offset == 3
            assert offsets(again.topic(TOPIC)) == [3, 4]
        assert not disk.exists(WAL)
    store.close()


def test_offsets_are_not_reused_when_all_files_are_missing():
    """The checkpoint prevents it."""
    fs = filled(7)
    fs.remove(WAL)
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        assert log.append(b"next") == 7
        assert offsets(log) == [7]


def test_a_higher_offset_in_objects_is_respected():
    """The offsets of the object store were used, too."""
    fs = filled(3)
    recovered = recover(fs, DIRECTORY, file_name="wal.log", observer=InMemoryObserver(), next_offset_min=50)
    assert (recovered.next_offset, recovered.active, recovered.seq) == (50, None, 1)


def test_a_failed_sync_is_final():
    """No append succeeds after it; opening again writes the messages of the failed sync once more."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk)
    store = open_topics(fs)
    log = store.topic(TOPIC)
    log.append(b"0", durable=True)
    log.append(b"1")
    fs.fail_on("sync")
    with pytest.raises(StoreFailedError):
        log.flush()
    for attempt in (lambda: log.append(b"2"), lambda: log.append_batch([b"2"]), log.flush, log._engine.wal.rotate):
        with pytest.raises(StoreFailedError):
            attempt()
    with log.reader(2) as reader, pytest.raises(StoreFailedError):
        next(reader)
    with pytest.raises(StoreFailedError):
        store.close()
    with open_topics(disk) as again:
        assert payloads(again.topic(TOPIC)) == [b"0", b"1"]
        # Pages that the kernel considers clean would be lost here.
        with open_topics(disk.clone_after_crash(0)) as third:
            assert payloads(third.topic(TOPIC)) == [b"0", b"1"]
