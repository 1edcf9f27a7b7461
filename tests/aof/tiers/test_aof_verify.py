"""`quiver aof verify` reports what was read, what is damaged, and what was not read."""

from __future__ import annotations

import json

import pytest
from aof_as_log import ROOT, tiny
from test_aof_restore import bucket, uploaded, uploading
from test_aof_tiers import COLD, damage, objects_in, open_tiered
from tier_samples import cold_disk
from typer.testing import CliRunner

from quiver.aof import AofConfig, AofManager, TierConfig
from quiver.aof.format.names import stream_folder
from quiver.aof.reading.check import check_log_directory
from quiver.cli.main import build_app
from quiver.errors import ObjectsUnavailableError
from quiver.objects.directory import DirectoryObjects
from quiver.testing.clock import ManualClock
from quiver.testing.faultobjects import FaultObjects

pytestmark = pytest.mark.usefixtures("quiet")

LOG = f"{ROOT}/orders"


def checked(fs, objects=None):
    return check_log_directory(fs, "orders", LOG, read_records=True, objects=objects)


def found(report):
    return [(one.kind, one.path) for one in report.findings]


def test_unread_objects_are_not_reported_as_valid():
    """Each is listed; a check without reading makes no claim about them."""
    fs = cold_disk()
    uploaded(fs)
    keys = objects_in(fs)
    report = checked(fs)
    assert found(report) == [("not read", key) for key in keys[:3]]
    assert (report.is_intact, report.damaged, report.unread, report.unread_records) == (False, False, 3, 9)
    assert not check_log_directory(fs, "orders", LOG, read_records=False).findings


def test_verify_with_objects_reads_every_object():
    """Including those of segments that have their file as well."""
    fs = cold_disk()
    uploaded(fs)
    assert checked(fs, bucket(fs)).is_intact
    keys = objects_in(fs)
    for at, key in enumerate(keys):
        damage(fs, f"{COLD}/{key}", 70 + at)
    report = checked(fs, bucket(fs))
    assert found(report) == [("damaged", key) for key in keys]
    assert report.damaged
    assert not report.unread


def test_a_missing_object_is_damage_and_an_empty_location_is_an_error():
    """One missing object of several was lost. Without any object, the location is wrong."""
    fs = cold_disk()
    uploaded(fs)
    keys = objects_in(fs)
    fs.remove(f"{COLD}/{keys[1]}")
    report = checked(fs, bucket(fs))
    assert found(report) == [("damaged", keys[1])]
    assert "missing" in report.findings[0].reason
    fs.make_dirs("/elsewhere")
    with pytest.raises(ObjectsUnavailableError, match="is it the right place"):
        checked(fs, DirectoryObjects(fs, "/elsewhere", clock=ManualClock()))


def test_objects_after_an_outage_are_listed_as_unread():
    """Objects read before and after the outage count."""
    fs = cold_disk()
    uploaded(fs)
    faults = FaultObjects(bucket(fs))
    faults.fail_on("get_range", 5)
    report = checked(fs, faults)
    assert [kind for kind, _ in found(report)] == ["not reached"]
    assert (report.damaged, report.unread) == (False, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: bytes(len(data)),
        lambda data: data * 2,
    ],
)
def test_objects_with_other_bytes_are_damage(change):
    """Truncated, too long, or entirely different: they are reported with the key, and never raise."""
    fs = cold_disk()
    uploaded(fs)
    tier = bucket(fs)
    key = objects_in(fs)[0]
    tier.put(key, change(tier.get(key, size_max=1 << 20)))
    assert found(checked(fs, tier)) == [("damaged", key)]


def test_the_exit_code_distinguishes_damaged_and_unread(tmp_path):
    """0: all was read. 3: nothing is damaged, and something was not read. 1: something is damaged."""
    cold = tmp_path / "cold"
    tiers = TierConfig(objects=str(cold), tier0_max_bytes=0, warm_max_bytes=0)
    with AofManager.open(str(tmp_path / "aof"), AofConfig(tiers=tiers), background=False) as manager:
        log = manager.log("orders")
        for text in (b"one", b"two", b"three"):
            log.append_record(text)
            log.force_rollover(timeout=5)
        for _ in range(2):
            manager.maintain()

    def verify(*arguments, code):
        result = CliRunner().invoke(build_app(), ["aof", "verify", str(tmp_path / "aof"), *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.stdout

    assert "NOT ALL READ, 3 records, 2 of them not read" in verify(code=3)
    (reported,) = json.loads(verify("--json", code=3))
    assert (reported["intact"], reported["damaged"], reported["unread_segments"], reported["unread_records"]) == (
        False,
        False,
        2,
        2,
    )
    assert "intact, 3 records" in verify("--objects", cold, code=0)
    path = next(cold.rglob("segment-00000000000000000000-*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "DAMAGED" in verify("--objects", cold, code=1)
    assert "NOT ALL READ" in verify(code=3)


def test_objects_of_a_lost_manifest_are_reported():
    """The log was reported as valid although readers missed three segments."""
    fs = cold_disk()
    stream_id, _, _ = uploaded(fs)
    folder = f"{LOG}/{stream_folder(stream_id)}"
    for name in fs.list_dir(folder):
        fs.remove(f"{folder}/{name}")
    assert found(checked(fs)) == [("not read", folder)]
    report = checked(fs, bucket(fs))
    assert found(report) == [("damaged", key) for key in objects_in(fs)[:3]]
    with open_tiered(fs, uploading()) as manager:
        manager.log("orders")
    assert checked(fs, bucket(fs)).is_intact


def test_objects_of_deleted_segments_are_not_missed():
    """They are to be deleted, and the object store does not answer: no reader may find them."""
    fs = cold_disk()
    uploaded(fs)
    with open_tiered(fs, tiny(tiers=TierConfig(tier0_max_bytes=0))) as manager:
        manager.log("orders").tiers.delete_oldest([0, 1])
    assert len(objects_in(fs)) == 4
    assert checked(fs, bucket(fs)).is_intact
