"""Progress files: replaced atomically, owned by one process at a time, and damage is reported."""

import multiprocessing
import os

import pytest

from quiver.errors import CorruptionError, DirectoryInUseError, InvariantError, UnknownSubscriberError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.progress import Progress, SegmentProgress, encode_progress
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing, load_progress, save_progress
from quiver.store.subscribers.state import SegmentRef, Segments
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/store"
OLD = Progress(3, {5: SegmentProgress(70, 1 << 69)})
NEW = Progress(6, {})
SEEDS = range(16)


@pytest.fixture
def disk():
    disk = CrashFileSystem()
    disk.make_dirs(ROOT)
    return disk


def _states(disk, work):
    """Every disk that a power loss at any step of *work* can leave."""
    states = []
    disk.on_step = lambda op, path: states.extend(disk.clone_after_crash(seed) for seed in SEEDS)
    work()
    disk.on_step = None
    return states


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_crash_during_a_write_leaves_the_old_or_the_new_progress(disk, profile):
    save_progress(disk, ROOT, "a", OLD, profile=profile)
    states = _states(disk, lambda: save_progress(disk, ROOT, "a", NEW, profile=profile))
    found = [load_progress(state, ROOT, "a") for state in states]
    assert {progress.oldest_incomplete for progress in found} == {3, 6}
    for seed in SEEDS:
        assert load_progress(disk.clone_after_crash(seed), ROOT, "a") == NEW


def test_a_crash_during_creation_leaves_no_subscriber_or_a_complete_one(disk):
    """On return it is durable; before, a later call creates it again."""
    segments = Segments([SegmentRef(2, 1)])

    def work():
        assert create_if_missing(disk, ROOT, "a", start="latest", segments=segments, profile="spec")

    for state in _states(disk, work):
        progress = load_progress(state, ROOT, "a")
        assert progress is None or progress == Progress(3, {})
        create_if_missing(state, ROOT, "a", start="latest", segments=segments, profile="spec")
        assert load_progress(state, ROOT, "a") == Progress(3, {})
        assert progress_store.find_subscribers(state, ROOT) == ["a"]
    for seed in SEEDS:
        assert load_progress(disk.clone_after_crash(seed), ROOT, "a") == Progress(3, {})
    assert not create_if_missing(disk, ROOT, "a", start="earliest", segments=segments, profile="spec")
    assert load_progress(disk, ROOT, "a") == Progress(3, {})


def test_a_crash_during_deletion_leaves_the_subscriber_or_nothing(disk):
    save_progress(disk, ROOT, "a", OLD, profile="spec")
    lock = progress_store.lock_subscriber(disk, ROOT, "a")
    for state in _states(disk, lambda: progress_store.delete(disk, ROOT, "a")):
        assert load_progress(state, ROOT, "a") in (None, OLD)
    lock.release()
    for seed in SEEDS:
        assert disk.clone_after_crash(seed).list_dir(ROOT) == []


def test_a_crash_while_a_damaged_file_is_replaced_keeps_its_bytes(disk):
    """At every step the damaged file or its copy exists; afterwards both outcomes are the same."""
    bad = bytearray(encode_progress(OLD, profile="spec"))
    bad[20] ^= 1
    file = disk.create(f"{ROOT}/quiver.sub.a")
    file.pwrite(bytes(bad), 0)
    file.sync()
    disk.sync_dir(ROOT)

    def kept(state):
        copies = state.list_dir(f"{ROOT}/quarantine") if state.exists(f"{ROOT}/quarantine") else []
        paths = [f"{ROOT}/quarantine/{name}" for name in copies if name.endswith(".damaged")]
        return [state.read_all(path, size_max=10_000) for path in paths]

    def work():
        progress_store.recreate_damaged(disk, ROOT, "a", profile="spec")

    for state in _states(disk, work):
        if kept(state) == []:
            with pytest.raises(CorruptionError):
                load_progress(state, ROOT, "a")
        elif state.read_all(f"{ROOT}/quiver.sub.a", size_max=10_000) == bad:
            progress_store.recreate_damaged(state, ROOT, "a", profile="spec")
        if kept(state):
            assert kept(state) == [bad]
            assert load_progress(state, ROOT, "a") == Progress(0, {})


def test_a_disk_error_leaves_the_old_progress():
    """Whichever call fails, the file is unchanged, and the state can be written again."""
    for operation in ("create", "pwrite", "sync", "rename"):
        disk = CrashFileSystem()
        disk.make_dirs(ROOT)
        save_progress(disk, ROOT, "a", Progress(0, {}), profile="spec")
        faulty = FaultFileSystem(disk)
        file = SubscriberFile(faulty, ROOT, "a")
        file.acquire()
        file.know([SegmentRef(0, 2)])
        assert file.ack_through(0, 1)
        faulty.fail_on(operation)
        with pytest.raises(OSError, match="."):
            file.save()
        assert load_progress(disk, ROOT, "a") == Progress(0, {})
        assert file.save()
        assert load_progress(disk, ROOT, "a") == Progress(0, {0: SegmentProgress(2, 1)})


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_every_truncation_and_flipped_byte_is_damage_with_an_offset(disk, profile):
    """Never other progress or another exception: an error with path and offset."""
    complete = encode_progress(OLD, profile=profile)
    path = f"{ROOT}/quiver.sub.a"

    def put(data):
        file = disk.create_or_truncate(path)
        file.pwrite(data, 0)

    broken = [complete[:length] for length in range(len(complete))]
    broken += [complete[:at] + bytes([complete[at] ^ 0x40]) + complete[at + 1 :] for at in range(len(complete))]
    broken.append(complete + b"x")
    for data in broken:
        put(data)
        with pytest.raises(CorruptionError) as caught:
            load_progress(disk, ROOT, "a")
        assert caught.value.path == path
        assert 0 <= caught.value.offset <= len(data)
    put(complete)
    assert load_progress(disk, ROOT, "a") == OLD


def test_an_impossibly_large_segment_number_is_damage(disk):
    """Otherwise the next segments would get numbers beyond the limit."""
    save_progress(disk, ROOT, "a", Progress(2**64 - 1, {}), profile="spec")
    with pytest.raises(CorruptionError, match="names a segment above"):
        load_progress(disk, ROOT, "a")


def test_an_oversized_progress_file_is_damage(disk, monkeypatch):
    save_progress(disk, ROOT, "a", OLD, profile="spec")
    monkeypatch.setattr(progress_store, "PROGRESS_BYTES_MAX", 40)
    with pytest.raises(CorruptionError, match="too large"):
        load_progress(disk, ROOT, "a")
    assert progress_store.recreate_damaged(disk, ROOT, "a", profile="spec").copy is None
    assert load_progress(disk, ROOT, "a") == Progress(0, {})


def test_only_progress_files_are_subscribers(disk):
    save_progress(disk, ROOT, "a", OLD, profile="spec")
    for name in ("quiver.sub.b.tmp", "quiver.sub.c.lock", "quiver.sub.", "quiver.sub.d d", "other"):
        disk.create(f"{ROOT}/{name}")
    assert progress_store.find_subscribers(disk, ROOT) == ["a"]


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_an_owner_in_another_process_keeps_the_profile_of_the_file(disk, profile):
    """A process that only knows the directory writes the profile that the readers of the store expect."""
    create_if_missing(disk, ROOT, "a", start=0, segments=Segments(next_seq=0), profile=profile)
    assert progress_store.profile_in_use(disk, ROOT) == profile
    with SubscriberFile(disk, ROOT, "a") as file:
        file.know([SegmentRef(0, 3), SegmentRef(1, 2)])
        file.ack_through(0, 2)
        file.save()
    data = disk.read_all(f"{ROOT}/quiver.sub.a", size_max=1000)
    assert data == encode_progress(Progress(0, {0: SegmentProgress(3, 0b011)}), profile=profile)


def test_the_profile_of_a_directory_without_progress_is_the_default(disk):
    assert progress_store.profile_in_use(disk, ROOT) == "spec"
    assert progress_store.profile_in_use(disk, ROOT, default="otap") == "otap"


def test_an_in_order_reader_continues_at_its_position(disk):
    """Acks are positions: the next bundle to read; at the end of a segment, index 0 of the next one."""
    create_if_missing(disk, ROOT, "a", start="earliest", segments=Segments([SegmentRef(4, 2)]), profile="spec")
    segments = [SegmentRef(4, 2), SegmentRef(5, 3)]
    file = SubscriberFile(disk, ROOT, "a")
    file.acquire()
    file.know(segments)
    assert tuple(getattr(file.position(), name) for name in ("segment", "index")) == (4, 0)
    assert file.ack_through(5, 1)
    assert not file.ack_through(4, 1)
    assert not file.ack_through(5, 1)
    assert file.save()
    assert not file.save()
    file.release()
    file.release()

    again = SubscriberFile(disk, ROOT, "a")
    again.acquire()
    again.know(segments)
    assert (again.position().segment, again.position().index) == (5, 1)
    again.ack_through(6, 0)
    again.save()
    assert load_progress(disk, ROOT, "a") == Progress(6, {})
    # Finished segments are deleted; the position is kept.
    again.know([])
    assert (again.position().segment, again.position().index) == (6, 0)


def test_wrong_use_of_a_subscriber_file_raises(disk):
    file = SubscriberFile(disk, ROOT, "a")
    with pytest.raises(UnknownSubscriberError):
        file.acquire()
    create_if_missing(disk, ROOT, "a", start="latest", segments=Segments(), profile="spec")
    with pytest.raises(InvariantError, match="only the owner of subscriber 'a' may write its progress"):
        file.save()
    file.acquire()
    file.acquire()
    unknown = pytest.raises(InvariantError, match="the segments must be known before progress is read or written")
    with unknown:
        file.position()
    with unknown:
        file.ack_through(1, 0)
    with pytest.raises(UsageError):
        SubscriberFile(disk, ROOT, "no/slash")


def test_progress_does_not_move_back_without_a_rewind(disk):
    """Its subscriber would get bundles again that it has acknowledged."""
    create_if_missing(disk, ROOT, "a", start="earliest", segments=Segments([SegmentRef(4, 2)]), profile="spec")
    file = SubscriberFile(disk, ROOT, "a")
    file.acquire()
    file.know([SegmentRef(4, 2), SegmentRef(5, 3)])
    file.ack_through(5, 1)
    file.save()
    with pytest.raises(InvariantError, match="must not move back without a rewind"):
        file.put(Progress(4, {}))
    assert load_progress(disk, ROOT, "a") == file.written
    file.put(Progress(4, {}), is_rewound=True)
    assert load_progress(disk, ROOT, "a") == Progress(4, {})
    file.release()


def test_a_damaged_file_has_no_owner_until_a_policy_is_chosen(disk):
    disk.create(f"{ROOT}/quiver.sub.a").pwrite(b"QUIVSUB\0 and then nothing that fits", 0)
    file = SubscriberFile(disk, ROOT, "a")
    with pytest.raises(CorruptionError):
        file.acquire()
    assert not file.is_owned
    copy = file.recreate().copy
    assert file.is_owned
    assert disk.exists(copy)
    file.know([SegmentRef(0, 1)])
    assert (file.position().segment, file.position().index) == (0, 0)


def test_two_owners_in_one_process_are_refused(disk):
    create_if_missing(disk, ROOT, "a", start="latest", segments=Segments(), profile="spec")
    first, second = SubscriberFile(disk, ROOT, "a"), SubscriberFile(disk, ROOT, "a")
    first.acquire()
    for attempt in (second.acquire, second.recreate):
        with pytest.raises(DirectoryInUseError, match=str(os.getpid())):
            attempt()
    first.release()
    second.acquire()


def test_concurrent_creation_can_be_tried_again(disk):
    """It succeeds if the other process was quicker."""
    lock = progress_store.lock_subscriber(disk, ROOT, "a")
    with pytest.raises(DirectoryInUseError):
        create_if_missing(disk, ROOT, "a", start="latest", segments=Segments(), profile="spec")
    save_progress(disk, ROOT, "a", OLD, profile="spec")
    assert not create_if_missing(disk, ROOT, "a", start="latest", segments=Segments(), profile="spec")
    lock.release()


def _own_elsewhere(root, ready, done):
    file = SubscriberFile(REAL_FILES, root, "a")
    file.acquire()
    file.know([SegmentRef(0, 2)])
    file.ack_through(0, 1)
    file.save()
    ready.set()
    done.wait(60)


def test_the_owner_in_another_process_is_named_and_its_progress_is_seen(tmp_path):
    """The kernel releases the lock when that process ends, however it ends."""
    root = str(tmp_path)
    create_if_missing(REAL_FILES, root, "a", start="latest", segments=Segments(), profile="spec")
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_own_elsewhere, args=(root, ready, done))
    process.start()
    try:
        assert ready.wait(60)
        file = SubscriberFile(REAL_FILES, root, "a")
        with pytest.raises(DirectoryInUseError, match=str(process.pid)):
            file.acquire()
        assert load_progress(REAL_FILES, root, "a") == Progress(0, {0: SegmentProgress(2, 1)})
    finally:
        process.kill()
        process.join()
    file.acquire()
    file.know([SegmentRef(0, 2)])
    assert (file.position().segment, file.position().index) == (0, 1)
    file.release()
