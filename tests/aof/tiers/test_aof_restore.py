"""A log is restored from its objects: on another disk, or where its manifest was lost."""

from __future__ import annotations

import json
import shutil

import pytest
from aof_as_log import ROOT, payloads, segment_files, tiny
from test_aof_tiers import COLD, damage, fill, objects_in, open_tiered
from tier_samples import cold_disk
from typer.testing import CliRunner

from quiver.aof import AofConfig, AofManager, Reader, Retention, TierConfig
from quiver.aof.format.names import object_key, stream_folder
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles, logs_below
from quiver.aof.restore import register_objects, restore_log, streams_of
from quiver.cli.main import build_app
from quiver.errors import CorruptionError, DirectoryInUseError, UnknownRecordError, UsageError
from quiver.objects import ObjectLocation
from quiver.objects.directory import DirectoryObjects
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.faultfs import FaultFileSystem
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")

NEW = "/new"
LOG = f"{NEW}/orders"
LOCATION = ObjectLocation.from_url(f"file://{COLD}")


def uploading(**changes):
    """Every segment is packed and uploaded, and evicted when possible."""
    return tiny(compression="zstd", tiers=TierConfig(objects=COLD, tier0_max_bytes=0, warm_max_bytes=0), **changes)


def bucket(fs):
    return DirectoryObjects(fs, COLD, clock=ManualClock())


def uploaded(fs, count=4):
    """A closed log whose sealed segments are objects; its number, and the records in its objects: id → payload."""
    with open_tiered(fs, uploading()) as manager:
        log = manager.log("orders")
        written = fill(log, count)
        for _ in range(2):
            manager.maintain()
        lost = log.append_record(b"never uploaded")
        assert len(objects_in(fs)) == count
        return log.stream_id, written, lost


def restored(fs, stream_id, directory=LOG, **options):
    return restore_log(
        fs, directory, bucket(fs), stream_id, clock=ManualClock(), observer=InMemoryObserver(), **options
    )


def opened(fs, config=None):
    return AofManager.open(NEW, config or uploading(), fs=fs, clock=ManualClock(), background=False)


def read(fs, directory=LOG):
    reader = Reader(LogFiles(directory, fs=fs, objects=COLD), 0, on_lost="skip")
    return {record.record_id: bytes(record.payload) for record in reader}


def test_a_restored_log_has_every_record():
    """Under the same ids, for programs and other processes; it is valid, and continues to use its objects."""
    fs = cold_disk()
    stream_id, written, _ = uploaded(fs)
    found = restored(fs, stream_id)
    assert found.is_complete
    assert (len(found.segments), found.records) == (4, 12)
    assert read(fs) == written
    checked = check_log_directory(fs, "orders", LOG, read_records=True, objects=bucket(fs))
    assert checked.is_intact
    assert not checked.findings
    assert checked.stream_id == stream_id
    with opened(fs) as manager:
        log = manager.log("orders")
        assert {record.record_id: bytes(record.payload) for record in log.open_reader()} == written
        log.tiers.delete_oldest([0, 1])
        manager.maintain()
        assert not set(objects_in(fs)) & {one.remote.object_key for one in found.segments[:2]}


def test_restored_ids_are_not_reused():
    """Not even those of records that were never uploaded, or after a close and reopen before the first append."""
    fs = cold_disk()
    stream_id, written, lost = uploaded(fs)
    restored(fs, stream_id)
    for _ in range(2):
        with opened(fs) as manager:
            assert payloads(manager.log("orders")) == list(written.values())
    with opened(fs) as manager:
        log = manager.log("orders")
        with pytest.raises(UnknownRecordError):
            log.read_record(lost)
        first = log.append_record(b"first")
        assert first >> 32 > (lost >> 32) + 1000
        log.append_record_with_timeout(b"a record that does not fit into the first segment" * 200, 5)
        log.force_rollover(timeout=5)
        manager.maintain()
        assert len(payloads(log)) == len(written) + 2
    checked = check_log_directory(fs, "orders", LOG, read_records=True, objects=bucket(fs))
    assert not checked.findings
    assert checked.records == len(written) + 2
    again = restored(fs, stream_id, "/third/orders")
    assert again.is_complete
    assert read(fs, "/third/orders")[first] == b"first"


def test_a_crash_at_any_step_of_a_restore_leaves_all_or_nothing():
    """Leftovers are never mistaken for a log, and the next call succeeds."""
    fs = cold_disk()
    stream_id, written, _ = uploaded(fs)
    moments = []
    fs.on_step = lambda _op, _path: moments.extend([fs.clone_after_crash(1), fs.clone_after_kill()])
    restored(fs, stream_id)
    fs.on_step = None
    made = 0
    for one in moments:
        if one.exists(LOG):
            made += 1
        else:
            if one.exists(NEW):
                with pytest.raises(UsageError, match="holds no append-only log"):
                    logs_below(one, NEW)
            restored(one, stream_id)
        assert one.list_dir(NEW) == ["aof.lock", "orders"]
        assert read(one) == written
    assert 0 < made < len(moments)


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_dir"])
def test_a_failing_disk_leaves_no_log(operation):
    """Whichever call fails; then the restore succeeds."""
    inner = cold_disk()
    stream_id, written, _ = uploaded(inner)
    fs = FaultFileSystem(inner, path_part=".restoring")
    for nth in range(1, 4):
        fs.fail_on(operation, nth)
        try:
            restored(fs, stream_id)
        except OSError:
            assert not inner.exists(LOG)
            assert ".orders.restoring" not in inner.list_dir(NEW)
    fs.heal()
    if not inner.exists(LOG):
        restored(fs, stream_id)
    assert read(inner) == written


@pytest.mark.parametrize("which", [1, -1])
def test_a_damaged_object_loses_only_its_records(which):
    """They are reported; every other segment exists, and the log continues after them."""
    fs = cold_disk()
    stream_id, written, lost = uploaded(fs)
    key = objects_in(fs)[which]
    damage(fs, f"{COLD}/{key}", fs.stat(f"{COLD}/{key}").size_bytes - 5)
    found = restored(fs, stream_id)
    assert [one.path for one in found.damaged] == [key]
    assert not found.is_complete
    assert found.missing == ([(3, 6)] if which == 1 else [])
    assert read(fs) == {one: payload for one, payload in written.items() if one >> 32 != which % 4}
    with opened(fs) as manager:
        assert manager.log("orders").append_record(b"on") >> 32 > lost >> 32


def test_objects_that_contradict_their_keys_are_not_restored():
    """Junk, a partial object, another segment, another log's key, and two of one segment: all others are restored."""
    fs = cold_disk()
    stream_id, written, _ = uploaded(fs)
    tier = bucket(fs)
    keys = objects_in(fs)
    first = tier.get(keys[0], size_max=1 << 20)
    tier.put(object_key(stream_id, 7, 5), b"junk" * 100)
    tier.put(object_key(stream_id, 8, 5), first[:-1])
    tier.put(object_key(stream_id, 9, 5), first)  # segment 0 under another number
    tier.put(object_key(stream_id, 10, 5), b"")
    tier.put(f"{keys[0]}.bak", first)
    tier.put(f"{stream_id:016x}/deeper/{keys[0]}", first)
    tier.put(f"{stream_id + 1:016x}/notes.txt", b"x")
    assert streams_of(tier) == [stream_id]
    found = restored(fs, stream_id)
    assert [one.path for one in found.damaged] == [object_key(stream_id, one, 5) for one in (7, 8, 9, 10)]
    assert "another one than its key names" in found.damaged[2].reason
    assert found.next_segment_id > 10 + 1000
    assert read(fs) == written


def test_a_restore_without_readable_objects_fails():
    """No log is created, and the error is that of its object."""
    fs = cold_disk()
    stream_id, _, _ = uploaded(fs, 1)
    (key,) = objects_in(fs)
    damage(fs, f"{COLD}/{key}", fs.stat(f"{COLD}/{key}").size_bytes - 5)
    with pytest.raises(CorruptionError) as raised:
        restored(fs, stream_id)
    assert raised.value.path == key
    assert not fs.exists(LOG)
    with pytest.raises(UsageError, match="is a segment of a log"):
        restored(fs, stream_id + 1)


def test_existing_and_open_directories_are_refused():
    """A directory that exists, and one that a program has open."""
    fs = cold_disk()
    stream_id, _, _ = uploaded(fs)
    restored(fs, stream_id)
    with pytest.raises(UsageError, match="exists"):
        restored(fs, stream_id)
    with opened(fs) as manager:
        with pytest.raises(DirectoryInUseError):
            restored(fs, stream_id, f"{NEW}/another")
        manager.log("orders")
        with pytest.raises(DirectoryInUseError):
            taken_over(fs, LOG)


def taken_over(fs, directory, **options):
    return register_objects(
        fs, directory, bucket(fs), location=LOCATION, clock=ManualClock(), observer=InMemoryObserver(), **options
    )


@pytest.mark.parametrize("how", ["lost", "damaged", "older"])
def test_a_manifest_without_its_objects_is_completed(how):
    """It is lost, damaged in the middle, or from a backup: all segments are found again, and nothing is added twice."""
    fs = cold_disk()
    stream_id, written, lost = uploaded(fs)
    folder = f"{ROOT}/orders/{stream_folder(stream_id)}"
    chunks = [f"{folder}/{name}" for name in fs.list_dir(folder)]
    if how == "lost":
        for path in chunks:
            fs.remove(path)
    elif how == "damaged":
        damage(fs, chunks[-1], 600)
    else:
        older = cold_disk()
        uploaded(older, 2)
        same = f"{ROOT}/orders/{stream_folder(LogFiles(f'{ROOT}/orders', fs=older).stream_id())}"
        data = older.read_all(f"{same}/{older.list_dir(same)[-1]}", size_max=1 << 20)
        for path in chunks:
            fs.remove(path)
        file = fs.create(chunks[-1].rpartition("/")[0] + "/" + older.list_dir(same)[-1])
        file.pwrite(data, 0)
        file.close()
    looked = taken_over(fs, f"{ROOT}/orders", dry_run=True)
    assert looked.segments
    found = taken_over(fs, f"{ROOT}/orders")
    assert found.is_complete
    assert read(fs, f"{ROOT}/orders") == {**written, lost: b"never uploaded"}
    assert taken_over(fs, f"{ROOT}/orders").segments == []
    assert len(segment_files(fs)) == 2
    with open_tiered(fs, uploading(retention=Retention("size", max_total_bytes=1, action="expire"))) as manager:
        manager.log("orders")
        manager.maintain()
        assert len(objects_in(fs)) == 1  # also those of segments that still have their file


@pytest.mark.parametrize("left", [0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])
@pytest.mark.parametrize("by_command", [False, True])
def test_a_truncated_manifest_is_completed_from_the_objects(left, by_command):
    """A segment that the manifest still listed as packed was not searched, and all its records were lost."""
    fs = cold_disk()
    stream_id, written, lost = uploaded(fs)
    folder = f"{ROOT}/orders/{stream_folder(stream_id)}"
    path = f"{folder}/{fs.list_dir(folder)[-1]}"
    file = fs.open_write(path)
    file.truncate(int(left * file.size()))
    file.sync()
    file.close()
    if by_command:
        assert taken_over(fs, f"{ROOT}/orders", dry_run=True).is_complete
        assert taken_over(fs, f"{ROOT}/orders").is_complete
    with open_tiered(fs, uploading()) as manager:
        found = {record.record_id: bytes(record.payload) for record in manager.log("orders").open_reader()}
    assert found == {**written, lost: b"never uploaded"}
    assert check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=True, objects=bucket(fs)).is_intact


def test_a_log_without_segments_must_be_restored():
    """Appends would reuse ids: the directory is moved away and the log restored."""
    fs = cold_disk()
    uploaded(fs)
    for path in [*segment_files(fs), f"{ROOT}/orders/segments/current.sealed"]:
        fs.remove(path)
    with pytest.raises(UsageError, match="move it away"):
        taken_over(fs, f"{ROOT}/orders")


def test_a_failing_object_store_leaves_no_partial_log():
    """The restore fails completely."""
    for operation in ("list", "get_range"):
        for nth in range(1, 5):
            fs = cold_disk()
            stream_id, written, _ = uploaded(fs, 3)
            faults = FaultObjects(bucket(fs))
            faults.fail_on(operation, nth)
            arguments = {"clock": ManualClock(), "observer": InMemoryObserver()}
            try:
                restore_log(fs, LOG, faults, stream_id, **arguments)
            except Exception:
                assert not fs.exists(LOG)
                restored(fs, stream_id)
            assert read(fs) == written


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments, code=0):
    result = CliRunner().invoke(build_app(), ["aof", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def two_logs(tmp_path):
    """Return two logs of a lost disk with objects in one place; each has its name as the only payload."""
    config = AofConfig(compression="zstd", tiers=TierConfig(objects=str(tmp_path / "cold")), preallocate_segments=0)
    streams = {}
    with AofManager.open(str(tmp_path / "aof"), config, background=False) as manager:
        for name in ("orders", "trades"):
            log = manager.log(name)
            log.append_record(name.encode())
            log.force_rollover(timeout=5)
            streams[name] = f"{log.stream_id:016x}"
        for _ in range(2):
            manager.maintain()
    shutil.rmtree(tmp_path / "aof")
    return streams


def test_the_command_restores_every_log(two_logs, tmp_path):
    """Under its number, or under the given name; JSON output lists what it found."""
    new, place = tmp_path / "new", ("--objects", tmp_path / "cold")
    assert "select one of" in run("restore", new, *place, "--log", "orders", code=2).stderr
    assert not new.exists()
    looked = json.loads(run("restore", new, *place, "--dry-run", "--json").stdout)
    assert [one["stream"] for one in looked] == sorted(two_logs.values())
    assert not new.exists()
    (one,) = json.loads(run("restore", new, *place, "--stream", two_logs["orders"], "--log", "orders", "--json").stdout)
    assert (one["segments"], one["records"], one["damaged"]) == (1, 1, [])
    run("restore", new, *place)
    assert sorted(path.name for path in new.iterdir()) == ["aof.lock", "orders", f"stream-{two_logs['trades']}"]
    for name, log in (("orders", "orders"), ("trades", f"stream-{two_logs['trades']}")):
        assert name in run("tail", new, "--log", log, *place).stdout
    assert "intact" in run("verify", new, *place).stdout


def test_the_command_reports_damage(two_logs, tmp_path):
    """With exit code 1."""
    (path,) = (tmp_path / "cold" / two_logs["orders"]).iterdir()
    path.write_bytes(b"junk")
    result = run("restore", tmp_path / "new", "--objects", tmp_path / "cold", "--stream", two_logs["orders"], code=1)
    assert path.name in result.stderr
    assert "no object of" in run("restore", tmp_path / "new", "--objects", tmp_path, code=2).stderr
