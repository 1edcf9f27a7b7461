"""A crash, an outage or a full disk interrupts a step between tiers, and the next step is not the same one."""

from __future__ import annotations

import errno

import pytest
from aof_as_log import ROOT, payloads, segment_files, tiny
from test_aof_tiers import COLD, WARM, damage, fill, objects_in, open_tiered, tiered, warm_files
from tier_samples import cold_disk

from quiver.aof import Reader, Retention, TierConfig
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.objects.directory import DirectoryObjects
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")

TRIMMED = {"compression": "zstd", "compaction": "head_trim", "retention": Retention(action="expire")}


def test_a_segment_that_a_crash_kept_keeps_its_object():
    """
    The segment was to be retired and its object deleted; after the crash this is not requested again, so the segment
    stays. Its object, uploaded again under the same key, may be its only copy by then.
    """
    fs = cold_disk()
    moments: list[CrashFileSystem] = []
    with open_tiered(fs, tiny(tiers=TierConfig(objects=COLD), **TRIMMED)) as manager:
        log = manager.log("orders")
        fill(log, 4)
        manager.maintain()
        fs.on_step = lambda _op, _path: moments.extend([fs.clone_after_crash(1), fs.clone_after_kill()])
        log.trim_before(2 << 32)
        manager.maintain()
        fs.on_step = None
    kept = set()
    leaving = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=COLD), **TRIMMED)
    for one in moments:
        with open_tiered(one, leaving) as manager:
            log = manager.log("orders")
            count = sum(segment.record_count for segment in log.segment_snapshot())
            for _ in range(2):
                manager.maintain()
            assert len(payloads(log)) == count
            kept.add(count)
    assert kept == {6, 9, 12}


def test_a_full_disk_keeps_no_partial_packed_file():
    """It would use the last space."""
    inner = cold_disk()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, path_part=".tmp", forever=True)
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        fs.fail_on("pwrite", 2)
        with pytest.raises(OSError, match="No space"):
            log.tiers.evict(0)
        assert [name for name in inner.list_dir("/aof/orders/warm") if "zst" in name] == []
        fs.heal()
        log.tiers.evict(0)
        assert len(warm_files(inner)) == 1
        assert payloads(log) == list(written.values())


class MovedOnLook:
    """Files whose writer moves segments when a reader first accesses a file with this suffix."""

    def __init__(self, fs, suffix, move):
        self._fs = fs
        self._suffix = suffix
        self._move = move

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def _look(self, path):
        if path.endswith(self._suffix) and self._move is not None:
            move, self._move = self._move, None
            move()

    def stat(self, path):
        self._look(path)
        return self._fs.stat(path)

    def map_read(self, path):
        self._look(path)
        return self._fs.map_read(path)


@pytest.mark.parametrize("when", ["while it is looked for", "between the syncs of the manifest"])
def test_a_retired_segment_is_not_damage_for_other_processes(when):
    """A reader of another process has outdated information: it checks again and reads what exists."""
    fs = cold_disk()
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        written = list(fill(log, 4).values())
        log.tiers.evict(0)
        log.tiers.evict(1)
        directory = f"{ROOT}/orders"
        if when == "while it is looked for":
            seen = LogFiles(directory, fs=MovedOnLook(fs, ".zst", lambda: log.tiers.delete_oldest([0])))
        else:
            seen = LogFiles(directory, fs=fs)
            fs.on_step = lambda op, path: seen.tiers() if op == "sync" and ".mlog" in path else None
            log.tiers.delete_oldest([0])
            fs.on_step = None
        assert [bytes(one.payload) for one in Reader(seen, 0)] == written[3:]


@pytest.mark.parametrize("read_records", [False, True])
@pytest.mark.parametrize("away", [0, 2])
@pytest.mark.parametrize("move", ["evict", "retire"])
def test_verify_accepts_a_log_whose_segments_move(move, away, read_records):
    """Reading a complete log takes time: segments evicted meanwhile are neither an error nor damage."""
    fs = cold_disk()
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        fill(log, 5)
        for number in range(away):
            log.tiers.evict(number)

        def go_on() -> None:
            if move == "evict":
                log.tiers.evict(3)
            else:
                log.tiers.delete_oldest([0, 1, 2])

        seen = MovedOnLook(fs, ".zst" if away else ".seg", go_on)
        checked = check_log_directory(seen, "orders", f"{ROOT}/orders", read_records=read_records)
        assert (checked.is_intact, checked.findings) == (True, ())
        assert checked.records == (6 if move == "retire" and seen._move is None else 15)


def lose_manifest(fs, log) -> None:
    """Remove every chunk of the manifest."""
    folder = f"{ROOT}/orders/manifest/{log.stream_id:020}"
    for name in fs.list_dir(folder):
        fs.remove(f"{folder}/{name}")


@pytest.mark.parametrize("turns", [1, 3])
def test_objects_are_searched_for_when_they_become_available(turns):
    """The manifest is lost, and the log is first opened without objects: it remembers that objects may exist."""
    fs = cold_disk()
    cold = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=COLD))
    with open_tiered(fs, cold) as manager:
        log = manager.log("orders")
        written = list(fill(log, 4).values())
        manager.maintain()
    lose_manifest(fs, log)
    for turn in range(turns):
        with open_tiered(fs, tiny(compression="zstd")) as manager:
            log = manager.log("orders")
            written += fill(log, 1, start=4 + turn).values()
            manager.maintain()
            log.tiers.rewrite_manifest()
            log.tiers.rewrite_manifest()
            assert payloads(log) == written[9:]
    for _ in range(2):
        with open_tiered(fs, cold) as manager:
            assert payloads(manager.log("orders")) == written
            manager.maintain()
    objects = FaultObjects(DirectoryObjects(fs, COLD, clock=ManualClock()))
    with open_tiered(fs, cold, objects) as manager:
        manager.log("orders")
        assert objects.calls["list"] == 0  # it has searched once


def test_a_damaged_object_does_not_prevent_opening():
    """The manifest is lost and one object is damaged: the others are found, and the log continues."""
    fs = cold_disk()
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=COLD))
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        written = list(fill(log, 4).values())
        manager.maintain()
    lose_manifest(fs, log)
    file = fs.open_write(f"{COLD}/{objects_in(fs)[1]}")
    file.truncate(40)
    file.close()
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        assert [one.payload for one in log.open_reader(on_lost="skip")] == [*written[:3], *written[6:]]
        assert [first >> 32 for first, _ in log.snapshot().missing] == [0]  # after the last record of segment 0
        log.append_record(b"more")
    assert len(objects_in(fs)) == 4


def test_a_deleted_segment_is_not_registered_again():
    """The object still exists because of an outage; the damaged manifest still records the deletion."""
    fs = cold_disk()
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=COLD))
    objects = FaultObjects(DirectoryObjects(fs, COLD, clock=ManualClock()))
    with open_tiered(fs, config, objects) as manager:
        log = manager.log("orders")
        written = list(fill(log, 4).values())
        manager.maintain()
        objects.fail_on("delete", 1, times=99)
        log.tiers.delete_oldest([0])
        manager.maintain()
        log.tiers.write_custom_event(1, b"the last record")
    folder = f"{ROOT}/orders/manifest/{log.stream_id:020}"
    (name,) = fs.list_dir(folder)
    path = f"{folder}/{name}"
    damage(fs, path, fs.stat(path).size_bytes - 5)
    with open_tiered(fs, config) as manager:
        for _ in range(2):
            assert payloads(manager.log("orders")) == written[3:]
            manager.maintain()
    assert len(objects_in(fs)) == 3


@pytest.mark.parametrize("where", ["header", "footer"])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_log_continues_after_the_copy_of_its_newest_segment(where, turns):
    """The file is damaged; its complete copy is restored, and later records continue the numbers."""
    fs = cold_disk()
    config = tiny(compression="zstd")
    with open_tiered(fs, config) as manager:
        written = list(fill(manager.log("orders"), 3).values())
        manager.maintain()
    path = segment_files(fs)[-1]
    damage(fs, path, 4 if where == "header" else fs.stat(path).size_bytes - 90)
    for turn in range(turns):
        with open_tiered(fs, config) as manager:
            log = manager.log("orders")
            assert len(segment_files(fs)) >= 3
            assert log.snapshot().appended_records == 0
            record_id = log.append_record(b"%d" % turn)
            written.append(b"%d" % turn)
            log.flush_until(record_id)
            assert payloads(log) == written
            assert log.find_record_number(len(written) - 1) == record_id
            assert log.snapshot().record_count == len(written)
            killed = fs.clone_after_kill()
            if turn:
                log.force_rollover(timeout=5)
        with open_tiered(killed, config) as manager:
            assert payloads(manager.log("orders")) == written


class NoRoomToPack(FaultFileSystem):
    """A disk that has space for all files except packed ones."""

    def create_or_truncate(self, path, **how):
        if ".zst" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().create_or_truncate(path, **how)


def test_a_full_disk_is_freed_through_objects():
    """Segments filled it before they were packed, and a packed file does not fit: the segment itself is uploaded."""
    inner = cold_disk()
    fs = NoRoomToPack(inner)
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, objects=COLD, warm_max_bytes=0))
    moments: list[CrashFileSystem] = []
    with open_tiered(fs, config, DirectoryObjects(inner, COLD, clock=ManualClock())) as manager:
        log = manager.log("orders")
        written = list(fill(log, 4).values())
        inner.on_step = lambda _op, _path: moments.extend([inner.clone_after_crash(1), inner.clone_after_kill()])
        manager.maintain()
        inner.on_step = None
        assert len(segment_files(inner)) == 1
        assert list(log.tiers.snapshot().residency.values()).count("uploaded_to_tier2") == 3
        assert payloads(log) == written
    for one in moments[::3]:
        with open_tiered(one, config) as manager:
            log = manager.log("orders")
            assert payloads(log) == written
            manager.maintain()
            log.tiers.delete_oldest([0, 1, 2])
            manager.maintain()
            assert payloads(log) == written[9:]
        assert objects_in(one)[1:] == warm_files(one) == []


class NoRoomForChunks(FaultFileSystem):
    """A full disk on which a packed file uses the space that a chunk of the manifest needs."""

    full = False

    def create_or_truncate(self, path, **how):
        if self.full and ".mlog" in path and any(name.endswith(".zst") for name in self.list_dir(WARM)):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().create_or_truncate(path, **how)


def test_packed_files_are_removed_for_the_manifest():
    """Without the manifest no segment can be evicted. Packed files are second copies: their segments have files."""
    inner = cold_disk()
    fs = NoRoomForChunks(inner, error=errno.ENOSPC, path_part=".mlog")
    objects = FaultObjects(DirectoryObjects(inner, COLD, clock=ManualClock()))
    clock = ManualClock()
    with open_tiered(fs, tiny(compression="zstd", tiers=TierConfig(objects=COLD)), objects, clock) as manager:
        log = manager.log("orders")
        objects.fail_on("put_parts", 1, times=10_000)
        written = list(fill(log, 4).values())
        manager.maintain()
        assert len(warm_files(inner)) == 4
        objects.heal()
        fs.full = True
        fs.fail_on("sync")  # the chunk cannot be continued
        for _ in range(3):
            clock.advance(10)
            manager.maintain()
        assert len(objects_in(inner)) == 4
        assert len(segment_files(inner)) == 4
        assert payloads(log) == written
    with open_tiered(inner, tiny(compression="zstd", tiers=TierConfig(objects=COLD)), objects, clock) as manager:
        assert payloads(manager.log("orders")) == written
        assert manager.log("orders").tiers.snapshot().upload_queue_depth == 0


def test_a_segment_is_read_while_the_manifest_has_no_space():
    """It is read from its object, and the fetched file is removed because it cannot be registered."""
    inner = cold_disk()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, path_part=".mlog", forever=True)
    config = tiered(objects=COLD, warm_max_bytes=0)
    with open_tiered(fs, config, DirectoryObjects(inner, COLD, clock=ManualClock())) as manager:
        log = manager.log("orders")
        written = list(fill(log, 3).values())
        manager.maintain()
        assert len(segment_files(inner)) == 1
        fs.fail_on("pwrite")
        assert payloads(log) == written
        assert warm_files(inner) == []


def test_a_full_disk_keeps_no_partial_chunks_of_the_manifest():
    """Each attempt has its own number: the leftovers would use the last space, and grow with each attempt."""
    inner = cold_disk()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, path_part=".tmp", forever=True)
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        written = list(fill(log, 3).values())
        folder = f"{ROOT}/orders/manifest/{log.stream_id:020}"
        for _ in range(5):
            log.tiers.evict(0)
            log.tiers.hydrate(0)
            fs.fail_on("sync")
            before = inner.list_dir(folder)
            with pytest.raises(OSError, match="No space"):
                log.tiers.rewrite_manifest()
            assert inner.list_dir(folder) == before
            fs.heal()
        assert payloads(log) == written
