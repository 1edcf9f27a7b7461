"""Evicted segments are read as before, under the same ids; no segment loses its only copy; any step may crash."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from aof_as_log import ROOT, open_manager, payloads, segment_files, tiny
from tier_samples import COLD, cold_disk

from lanes import every, with_stride
from quiver.aof import AofManager, Reader, Retention, TierConfig
from quiver.aof.format.describe import AOF_FILES
from quiver.aof.format.names import stream_folder
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.errors import (
    CorruptionError,
    ObjectsUnavailableError,
    SettingsError,
    StoreClosedError,
    UnknownRecordError,
    UsageError,
)
from quiver.objects.directory import DirectoryObjects
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")

WARM = f"{ROOT}/orders/warm"
SIZE = 16 * 1024


def tiered(**changes):
    """Everything that can be evicted is evicted immediately."""
    return tiny(tiers=TierConfig(**{"tier0_max_bytes": 0, **changes}))


def open_tiered(fs, config, objects=None, clock=None) -> AofManager:
    return AofManager.open(
        ROOT, config, fs=fs, clock=clock or ManualClock(), background=False,
        objects=None if objects is None else lambda: objects,
    )  # fmt: skip


def fill(log, count, *, start=0) -> dict[int, bytes]:
    """Write *count* sealed segments of three records each; return id → payload."""
    written = {}
    for number in range(start, start + count):
        records = [b"%d.%d." % (number, part) * (50 + part) for part in range(3)]
        written |= dict(zip(log.append_records_with_timeout(records, 5), records, strict=True))
        log.force_rollover(timeout=5)
    return written


def warm_files(fs) -> list[str]:
    return [f"{WARM}/{name}" for name in fs.list_dir(WARM) if name.endswith(".zst")]


def objects_in(fs) -> list[str]:
    return [info.key for info in DirectoryObjects(fs, COLD, clock=ManualClock()).list_below("")]


def damage(fs, path, offset) -> None:
    """Flip one bit of a file."""
    file = fs.open_write(path)
    (byte,) = file.pread(1, offset)
    file.pwrite(bytes([byte ^ 4]), offset)
    file.close()


@pytest.mark.parametrize("cold", [False, True])
def test_evicted_segments_are_read_as_before(cold):
    """By id, in order and by time, also after a restart. The disk has fewer segments than the log."""
    fs = cold_disk()
    changes = {"objects": COLD, "warm_max_bytes": 0} if cold else {}
    with open_tiered(fs, tiered(**changes)) as manager:
        log = manager.log("orders")
        written = fill(log, 5)
        manager.maintain()
        assert len(segment_files(fs)) == 1
        assert len(warm_files(fs)) == (0 if cold else 4)
        assert len(objects_in(fs)) == (5 if cold else 0)
        residency = log.tiers.snapshot().residency
        away = "uploaded_to_tier2" if cold else "staged_for_tier0"
        assert list(residency.values()) == [away] * 4 + ["resident_in_tier0"]
    with open_tiered(fs, tiered(**changes)) as manager:
        log = manager.log("orders")
        assert len(segment_files(fs)) == 1
        for record_id, payload in written.items():
            assert log.read_record(record_id).payload == payload
        assert len(segment_files(fs)) == 5
        assert payloads(log) == list(written.values())
        assert [record.record_id for record in log.open_reader()] == list(written)
        manager.maintain()
        assert len(segment_files(fs)) == 1
        assert log.append_record(b"on") > max(written)
        assert payloads(log) == [*written.values(), b"on"]


def test_a_search_by_time_hydrates_nothing():
    """Segments that end before the time are skipped without hydration."""
    fs = cold_disk()
    clock = ManualClock()
    with open_tiered(fs, tiered(), clock=clock) as manager:
        log = manager.log("orders")
        fill(log, 3)
        clock.advance(10)
        now = clock.now_ns()
        later = fill(log, 1, start=3)
        manager.maintain()
        assert log.find_record(now) == min(later)
        assert log.tiers.snapshot().counts.hydrations == 0


def test_the_budget_keeps_the_most_recently_read_segments():
    """Three files of sealed segments are kept: the newest, and those that were read."""
    fs = cold_disk()
    with open_tiered(fs, tiered(tier0_max_bytes=3 * SIZE)) as manager:
        log = manager.log("orders")
        written = list(fill(log, 6))
        manager.maintain()
        log.read_record(written[3])
        log.read_record(written[0])
        manager.maintain()
        residency = log.tiers.snapshot().residency
        assert [number for number, where in residency.items() if where == "resident_in_tier0"] == [0, 1, 5]


def test_a_reader_continues_while_its_segment_is_evicted():
    """Its mapping stays valid."""
    fs = cold_disk()
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        reader = iter(log.open_reader())
        found = [next(reader)]
        log.tiers.evict(0)
        log.tiers.evict(1)
        found += list(reader)
        assert [record.payload for record in found] == list(written.values())


def test_evict_and_hydrate_move_one_segment():
    """The newest sealed segment and missing ones are refused."""
    fs = cold_disk()
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        fill(log, 3)
        manager.maintain()
        assert len(segment_files(fs)) == 3
        log.tiers.evict(1)
        log.tiers.evict(1)
        assert len(segment_files(fs)) == 2
        log.tiers.hydrate(1)
        assert len(segment_files(fs)) == 3
        with pytest.raises(UsageError, match="newest"):
            log.tiers.evict(2)
        for call in (log.tiers.evict, log.tiers.hydrate):
            with pytest.raises(UnknownRecordError):
                call(9)
    with open_manager(cold_disk()) as manager, pytest.raises(UsageError, match="no tiers"):
        _ = manager.log("orders").tiers


def test_a_damaged_file_is_never_packed():
    """The copy could become the only one: the file stays, and the damage is reported."""
    fs = cold_disk()
    with open_tiered(fs, tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        fill(log, 3)
        damage(fs, segment_files(fs)[0], 64 + 30)
        with pytest.raises(CorruptionError):
            log.tiers.evict(0)
        assert len(segment_files(fs)) == 3
        assert warm_files(fs) == []


def test_a_segment_that_cannot_move_does_not_block_others():
    """A damaged file, and a packed file that was removed before its upload: all others are moved."""
    fs = cold_disk()
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        written = fill(manager.log("orders"), 4)
        manager.maintain()
    fs.remove(warm_files(fs)[0])
    fs.remove(warm_files(fs)[0])
    damage(fs, segment_files(fs)[0], 64 + 30)
    with open_tiered(fs, tiered(objects=COLD)) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert len(segment_files(fs)) == 2
        assert log.tiers.snapshot().counts.failures > 0
        found = [record.payload for record in log.open_reader(on_damage="skip")]
        assert found == list(written.values())[1:]


def test_a_missing_warm_file_is_fetched():
    """The manifest records NeedsRecovery, a fetch, StagedForTier0, and the result."""
    fs = cold_disk()
    with open_tiered(fs, tiered(objects=COLD)) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        manager.maintain()
        for number, path in enumerate(warm_files(fs)[:2]):
            if number:
                damage(fs, path, 10)
            else:
                fs.remove(path)
        assert payloads(log) == list(written.values())
        assert log.tiers.snapshot().counts.downloads == 2


@pytest.mark.parametrize("how", ["damaged", "gone"])
@pytest.mark.parametrize("where", ["evict", "upload"])
def test_a_corrupt_copy_is_replaced_while_the_file_exists(how, where):
    """It was compared when it was created, possibly years ago: it is read again before it becomes the only copy."""
    fs = cold_disk()
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        written = fill(manager.log("orders"), 3)
        manager.maintain()
    path = warm_files(fs)[0]
    if how == "gone":
        fs.remove(path)
    else:
        damage(fs, path, 20)
    tiers = TierConfig() if where == "evict" else TierConfig(objects=COLD)
    with open_tiered(fs, tiny(tiers=tiers, compression="zstd")) as manager:
        log = manager.log("orders")
        manager.maintain()
        manager.maintain()
        if where == "upload":
            assert log.tiers.snapshot().object_segments == 3
        log.tiers.evict(0)
        assert len(segment_files(fs)) == 2
        assert payloads(log) == list(written.values())


def test_a_corrupt_copy_of_a_damaged_file_evicts_nothing():
    """Neither equals the sealed segment: both are kept for manual inspection."""
    fs = cold_disk()
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        fill(manager.log("orders"), 3)
        manager.maintain()
    damage(fs, warm_files(fs)[0], 20)
    damage(fs, segment_files(fs)[0], 64 + 30)
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        with pytest.raises(CorruptionError):
            manager.log("orders").tiers.evict(0)
        assert len(segment_files(fs)) == len(warm_files(fs)) == 3


def test_the_manifest_has_the_history_of_a_segment():
    """Every step that began, ended or failed; a step that fails repeatedly is recorded once."""
    fs = cold_disk()
    objects = FaultObjects(DirectoryObjects(fs, COLD, clock=ManualClock()))
    with open_tiered(fs, tiered(objects=COLD, warm_max_bytes=0), objects) as manager:
        log = manager.log("orders")
        objects.fail_on("put_parts", 1, times=2)
        fill(log, 2)
        for _ in range(4):
            manager.maintain()
            manager._clock.advance(10)
        (first, *_) = payloads(log)
        log.tiers.evict(0)
        counts = log.tiers.snapshot().counts
        assert first
        assert (counts.upload_failures, counts.uploads, counts.hydrations) == (2, 2, 1)
        reported = counts.as_dict()
        assert (reported["hydration_latency_samples"], reported["hydration_latency_p99_ms"]) == (1, 0)
        stream_id = log.stream_id
    path = f"{ROOT}/orders/{stream_folder(stream_id)}"
    chunk = f"{path}/{fs.list_dir(path)[-1]}"
    described = AOF_FILES.describe(chunk, fs.map_read(chunk).view(), rows_max=99)
    kinds = [one["kind"] for one in described.tables["records"] if one["segment_id"] == 0]
    for kind in (
        "SEGMENT_OPENED", "SEAL_SEGMENT", "COMPRESSION_STARTED", "COMPRESSION_DONE", "UPLOAD_STARTED", "UPLOAD_FAILED",
        "UPLOAD_DONE", "HYDRATION_STARTED",
    ):  # fmt: skip
        assert kinds.count(kind) == 1, (kind, kinds)


def test_the_object_of_an_interrupted_upload_is_deleted_with_its_segment():
    """The object exists without a row: only the note of the begun upload names it."""
    fs = cold_disk()
    keep = tiny(tiers=TierConfig(objects=COLD), compression="zstd")
    expire = replace(keep, retention=Retention("size", max_total_bytes=1, action="expire"))
    with open_tiered(fs, keep) as manager:
        log = manager.log("orders")
        crashed: list[CrashFileSystem] = []
        fs.on_step = lambda op, path: crashed.append(fs.clone_after_crash(0)) if ".mlog" in path else None
        fill(log, 2)
        manager.maintain()
        fs.on_step = None
    after = next(one for one in crashed if objects_in(one))
    objects = FaultObjects(DirectoryObjects(after, COLD, clock=ManualClock()))
    objects.fail_on("put_parts", 1, times=99)  # so that no later upload records the object
    with open_tiered(after, expire, objects) as manager:
        fill(manager.log("orders"), 2, start=2)
        manager.maintain()
        manager.maintain()
        assert [key for key in objects_in(after) if "segment-00000000000000000000-" in key] == []


def test_a_missing_object_needs_recovery_until_it_returns():
    """Readers get an error, and checks report it, also from other processes and after reopening."""
    fs = cold_disk()
    config = tiered(objects=COLD, warm_max_bytes=0)
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        written = fill(log, 2)
        manager.maintain()
        key, _ = objects_in(fs)
        kept = fs.read_all(f"{COLD}/{key}", size_max=1 << 20)
        fs.remove(f"{COLD}/{key}")
        assert log.tiers.snapshot().residency[0] == "uploaded_to_tier2"
        with pytest.raises(CorruptionError):
            log.read_record(min(written))
        assert log.tiers.snapshot().residency[0] == "needs_recovery"
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        assert log.tiers.snapshot().residency[0] == "needs_recovery"
        checked = check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=False)
        assert checked.segments[0].state == "missing"
        assert not checked.is_intact
        file = fs.create(f"{COLD}/{key}")
        file.pwrite(kept, 0)
        file.close()
        assert payloads(log) == list(written.values())
        assert log.tiers.snapshot().residency[0] == "resident_in_tier0"
        log.tiers.evict(0)
        manager.maintain()
        assert log.tiers.snapshot().residency[0] == "uploaded_to_tier2"


def test_a_damaged_only_copy_is_reported():
    """A warm file without an object: readers of that segment get an error, others continue."""
    fs = cold_disk()
    with open_tiered(fs, tiered()) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        manager.maintain()
        fs.remove(warm_files(fs)[0])
        with pytest.raises(CorruptionError):
            log.read_record(min(written))
        assert log.tiers.snapshot().residency[0] == "needs_recovery"
        assert log.read_record(max(written)).payload == written[max(written)]


def test_a_damaged_object_is_never_hydrated():
    """For any flipped bit the reader gets an error, and nothing of the object is written to the disk."""
    for offset in (5, 100, -20):
        fs = cold_disk()
        with open_tiered(fs, tiered(objects=COLD, warm_max_bytes=0)) as manager:
            log = manager.log("orders")
            written = fill(log, 2)
            manager.maintain()
            key, _ = objects_in(fs)
            path = f"{COLD}/{key}"
            damage(fs, path, offset % fs.stat(path).size_bytes)
            with pytest.raises(CorruptionError):
                list(log.open_reader())
            with suppress(CorruptionError):  # records with a valid checksum are read
                assert log.read_record(min(written)).payload == written[min(written)]
            assert len(segment_files(fs)) == 1


@pytest.mark.parametrize("how", ["damaged", "gone", "short"])
@pytest.mark.parametrize("where", ["trim", "evict"])
def test_a_corrupt_object_is_replaced_while_another_copy_exists(how, where):
    """It is read back completely before it becomes the only copy; if it is different, it is uploaded again."""
    fs = cold_disk()
    config = tiny(tiers=TierConfig(objects=COLD), compression="zstd")
    with open_tiered(fs, config) as manager:
        written = fill(manager.log("orders"), 3)
        manager.maintain()
    path = f"{COLD}/{objects_in(fs)[0]}"
    if how == "damaged":
        damage(fs, path, 20)
    elif how == "gone":
        fs.remove(path)
    else:
        file = fs.open_write(path)
        file.truncate(40)
        file.close()
    if where == "evict":
        damage(fs, warm_files(fs)[0], 20)
    changes = {"tier0_max_bytes": 0, "warm_max_bytes": 0} if where == "trim" else {}
    with open_tiered(fs, tiny(tiers=TierConfig(objects=COLD, **changes), compression="zstd")) as manager:
        log = manager.log("orders")
        if where == "evict":
            log.tiers.evict(0)
            assert log.tiers.snapshot().residency[0] == "staged_for_tier0"
        manager.maintain()
        manager.maintain()
        left = "uploaded_to_tier2" if where == "trim" else "staged_for_tier0"
        assert log.tiers.snapshot().residency[0] == left
        assert len(warm_files(fs)) == (0 if where == "trim" else 3)
        assert log.tiers.snapshot().object_segments == 3
        assert payloads(log) == list(written.values())


def test_an_object_is_read_back_once():
    """A segment that is evicted repeatedly is not fetched each time."""
    fs = cold_disk()
    read: list[str] = []

    class Counted(DirectoryObjects):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            read.append(key)
            return super().get_range(key, start, length)

    objects = Counted(fs, COLD, clock=ManualClock())
    with open_tiered(fs, tiered(objects=COLD, warm_max_bytes=0), objects) as manager:
        log = manager.log("orders")
        written = fill(log, 2)
        manager.maintain()
        assert read
        log.read_record(min(written))
        read.clear()
        manager.maintain()
        assert log.tiers.snapshot().residency[0] == "uploaded_to_tier2"
        assert read == []


def test_custom_events_are_recorded_in_the_manifest():
    """They survive a restart; invalid ones are refused. The age of the newest is reported."""
    fs, clock = cold_disk(), ManualClock()
    with open_tiered(fs, tiered(), clock=clock) as manager:
        tiers = manager.log("orders").tiers
        tiers.write_custom_event(7, b"\x00\xff", segment_id=3)
        for schema, blob in ((-1, b""), (1 << 32, b""), (True, b""), (1, "text"), (1, bytes(65_536))):
            with pytest.raises(UsageError):
                tiers.write_custom_event(schema, blob)
        stream_id = manager.log("orders").stream_id
    clock.advance(5)
    with open_tiered(fs, tiered(), clock=clock) as manager:
        log = manager.log("orders")
        assert 4.9 < log.tiers.snapshot().replay_chunk_lag_seconds < 5.1
        assert log.snapshot().figures()["replay_chunk_lag_seconds"] > 4.9
    folder = f"{ROOT}/orders/{stream_folder(stream_id)}"
    (name,) = fs.list_dir(folder)
    description = AOF_FILES.describe(name, memoryview(fs.read_all(f"{folder}/{name}", size_max=1 << 20)))
    assert "CUSTOM_EVENT" in str(description.tables) or "custom_event" in str(description.tables)
    with pytest.raises(StoreClosedError):
        tiers.write_custom_event(1, b"")


@pytest.mark.parametrize("cold", [False, True])
def test_the_oldest_segments_are_deleted_on_request(cold):
    """With their copies, and never with a hole; the remaining records keep their ids, also after reopening."""
    fs = cold_disk()
    config = tiered(objects=COLD, warm_max_bytes=0) if cold else tiered()
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        written = fill(log, 4)
        manager.maintain()
        for wrong, error in (
            ([7], UnknownRecordError),
            ([1], UsageError),
            ([0, 1, 2, 3], UsageError),
            ([0, 2], UsageError),
        ):
            with pytest.raises(error):
                log.tiers.delete_oldest(wrong)
        log.tiers.delete_oldest([])
        assert payloads(log) == list(written.values())
        log.tiers.delete_oldest([1, 0])
        manager.maintain()
        assert payloads(log) == list(written.values())[6:]
        assert objects_in(fs)[2:] == warm_files(fs)[1:] == []
    with open_tiered(fs, config) as manager:
        assert payloads(manager.log("orders")) == list(written.values())[6:]


def test_without_disk_space_a_segment_is_read_from_memory():
    """A full disk hides no record."""
    inner = cold_disk()
    fs = FaultFileSystem(inner, error=errno.ENOSPC, forever=True)
    with open_tiered(fs, tiered(objects=COLD, warm_max_bytes=0)) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        manager.maintain()
        fs.fail_on("pwrite")
        assert payloads(log) == list(written.values())
        fs.heal()
        assert len(segment_files(inner)) == 1


def test_segments_are_found_after_tiers_are_switched_off():
    """The log is opened without tiers."""
    fs = cold_disk()
    with open_tiered(fs, tiered()) as manager:
        written = fill(manager.log("orders"), 3)
        manager.maintain()
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == list(written.values())
    with open_manager(fs, tiny(retention=Retention("size", max_total_bytes=1, action="expire"))) as manager:
        manager.log("orders")
        manager.maintain()
        assert payloads(manager.log("orders")) == list(written.values())[6:]
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == list(written.values())[6:]
    assert warm_files(fs) == []
    with (
        open_manager(fs, tiny(retention=Retention("size", max_total_bytes=1))) as manager,
        pytest.raises(SettingsError, match="no file to archive"),
    ):
        manager.log("orders")


@pytest.mark.parametrize("cold", [False, True])
def test_a_lost_manifest_loses_no_segment(cold):
    """Warm files and objects describe themselves: all are found again, and none was deleted."""
    fs = cold_disk()
    config = tiered(objects=COLD, warm_max_bytes=0) if cold else tiered()
    with open_tiered(fs, config) as manager:
        written = fill(manager.log("orders"), 4)
        manager.maintain()
        stream = manager.log("orders").stream_id
    folder = f"{ROOT}/orders/manifest/{stream:020}"
    for name in fs.list_dir(folder):
        fs.remove(f"{folder}/{name}")
    with open_tiered(fs, config) as manager:
        assert payloads(manager.log("orders")) == list(written.values())
        manager.maintain()
        assert len(segment_files(fs)) == 1
        assert len(objects_in(fs)) == (4 if cold else 0)


def test_a_damaged_segment_is_restored_from_its_copy():
    """Recovery seals the rest of it; the verified copy has more."""
    fs = cold_disk()
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        written = fill(manager.log("orders"), 3)
        manager.maintain()
    path = segment_files(fs)[1]
    damage(fs, path, fs.stat(path).size_bytes - 90)
    with open_tiered(fs, tiny(compression="zstd")) as manager:
        assert payloads(manager.log("orders")) == list(written.values())


@pytest.mark.parametrize("operation", ["put_parts", "head", "delete", "get_range"])
@pytest.mark.parametrize("how", ["fail", "lose_answer", "truncate", "repeat"])
def test_a_failing_object_store_loses_nothing(operation, how):
    """For every failing call, nothing is lost or left over, and in the end all work is done."""
    for nth in range(1, 4):
        fs = cold_disk()
        clock = ManualClock()
        objects = FaultObjects(DirectoryObjects(fs, COLD, clock=clock))
        config = tiny(
            tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=COLD),
            retention=Retention("size", max_total_bytes=3 * SIZE, action="expire"),
        )
        with open_tiered(fs, config, objects, clock) as manager:
            log = manager.log("orders")
            objects.fail_on(operation, nth, how=how)
            written = fill(log, 3)
            for _ in range(3):
                clock.advance(10)
                manager.maintain()
            for _ in range(3):
                try:
                    assert payloads(log) == list(written.values())
                except (ObjectsUnavailableError, CorruptionError):
                    continue
            written |= fill(log, 2, start=3)
            for _ in range(4):
                clock.advance(10)
                manager.maintain()
            objects.heal()
            clock.advance(10)
            manager.maintain()
            kept = list(written.values())[6:]
            assert payloads(log) == kept
            manager.maintain()
            assert len(objects_in(fs)) == 3
        with open_tiered(fs, config, DirectoryObjects(fs, COLD, clock=clock), clock) as manager:
            assert payloads(manager.log("orders")) == kept


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_dir", "remove"])
def test_a_failing_disk_loses_nothing(operation):
    """For every failing call of a transition, every record exists, and in the end all segments moved."""
    for nth in range(1, 8):
        inner = cold_disk()
        fs = FaultFileSystem(inner)
        clock = ManualClock()
        with open_tiered(fs, tiny(), clock=clock) as manager:
            written = fill(manager.log("orders"), 3)
        with open_tiered(fs, tiered(objects=COLD, warm_max_bytes=0), clock=clock) as manager:
            log = manager.log("orders")
            fs.fail_on(operation, nth)
            for _ in range(2):
                clock.advance(10)
                manager.maintain()
                try:
                    assert payloads(log) == list(written.values())
                except OSError:
                    continue
            fs.heal()
            clock.advance(10)
            manager.maintain()
            assert payloads(log) == list(written.values())
            clock.advance(10)
            manager.maintain()
            assert len(segment_files(inner)) == 1
        with open_tiered(inner.clone_after_crash(0), tiered(objects=COLD), clock=clock) as manager:
            assert payloads(manager.log("orders")) == list(written.values())


@with_stride(3)
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("expires", [False, True])
def test_a_crash_at_any_step_of_a_transition_loses_nothing(cold, expires, stride):
    """Pack, upload, evict, trim, fetch, hydrate, retire: after a crash at each step the log has the same records."""
    fs = cold_disk()
    changes = {"objects": COLD, "warm_max_bytes": 0} if cold else {}
    retention = Retention("size", max_total_bytes=2 * SIZE, action="expire") if expires else Retention()
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, **changes), retention=retention)
    with open_tiered(fs, tiny()) as manager:
        written = fill(manager.log("orders"), 3)
    moments: list[tuple[str, list[CrashFileSystem]]] = []
    with open_tiered(fs, config) as manager:
        log = manager.log("orders")
        fs.on_step = lambda op, path: moments.append(
            (f"{op} {path}", [*(fs.clone_after_crash(seed) for seed in (0, 2)), fs.clone_after_kill()])
        )
        manager.maintain()
        log.read_record(max(written) - (1 << 32))
        manager.maintain()
        fs.on_step = None
    assert len(moments) > 40
    kept = list(written.values())[3:] if expires else list(written.values())
    for label, disks in every(stride, moments):
        for index, one in enumerate(disks):
            with open_tiered(one, config) as manager:
                log = manager.log("orders")
                found = payloads(log)
                assert found in (kept, list(written.values())), (label, index)
                log.append_record(b"more")
                manager.maintain()
                assert payloads(log) in ([*kept, b"more"], [*found, b"more"]), (label, index)
            with open_tiered(one, config) as manager:
                assert payloads(manager.log("orders")) == [*kept, b"more"], (label, index)


def test_other_processes_read_while_segments_move(tmp_path):
    """While segments are evicted and hydrated, a reader gets each record in order."""
    cold = str(tmp_path / "cold")
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, objects=cold, warm_max_bytes=0))
    failures: list[BaseException] = []
    with AofManager.open(str(tmp_path / "aof"), config) as manager:
        log = manager.log("orders")
        written = fill(log, 5)
        stop = threading.Event()

        def keep_moving() -> None:
            try:
                while not stop.is_set():
                    assert payloads(log) == list(written.values())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=keep_moving)
        thread.start()
        files = LogFiles(str(tmp_path / "aof" / "orders"), objects=cold)
        for _ in range(12):
            assert [bytes(one.payload) for one in Reader(files, 0)] == list(written.values())
        stop.set()
        thread.join(60)
    assert not failures


def test_threads_read_and_append_while_segments_move(tmp_path):
    """Real files and threads: each record in order, under its id, while segments are evicted and hydrated."""
    tiers = TierConfig(tier0_max_bytes=2 * SIZE, objects=str(tmp_path / "cold"), warm_max_bytes=0)
    config = tiny(tiers=tiers)
    failures: list[BaseException] = []
    with AofManager.open(str(tmp_path / "aof"), config) as manager:
        log = manager.log("orders")
        written = fill(log, 4)
        stop = threading.Event()

        def keep_reading() -> None:
            try:
                while not stop.is_set():
                    known = list(written.values())
                    found = payloads(log)
                    assert found[: len(known)] == known
                    first = min(written)
                    assert log.read_record(first).payload == written[first]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=keep_reading) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(4, 16):
            records = [b"%d." % number * 40, b"x" * 9_000]
            for record in records:
                written[log.append_record_with_timeout(record, 30)] = record
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert payloads(log) == list(written.values())
        assert log.tiers.snapshot().counts.evictions > 0
    with AofManager.open(str(tmp_path / "aof"), config) as manager:
        assert payloads(manager.log("orders")) == list(written.values())
