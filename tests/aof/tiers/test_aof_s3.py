"""Tiers on a real S3 server: segments are uploaded, read, hydrated and deleted there."""

from __future__ import annotations

import shutil

import pytest
from aof_as_log import payloads, tiny
from typer.testing import CliRunner

from quiver.aof import AofManager, Reader, Retention, TierConfig
from quiver.aof.reading.files import LogFiles
from quiver.cli.main import build_app
from quiver.objects import ObjectLocation, open_objects
from quiver.testing.clock import ManualClock
from s3_server import S3Server

pytestmark = pytest.mark.slow


def test_segments_are_evicted_read_and_expired_in_a_bucket(tmp_path, s3_server: S3Server):
    """Of four segments three are evicted and read in both ways, and two expire."""
    root = s3_server.url()
    options = s3_server.options()
    where = {"backend": "s3", "root": root, "options": options}
    clock = ManualClock()
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=where))
    path = str(tmp_path / "aof")
    with AofManager.open(path, config, background=False, clock=clock) as manager:
        log = manager.log("orders")
        for number in range(4):
            log.append_records_with_timeout([b"%d.%d" % (number, part) * 500 for part in range(5)], 5)
            log.force_rollover(timeout=5)
        written = payloads(log)
        manager.maintain()
        assert list(log.tiers.snapshot().residency.values()).count("uploaded_to_tier2") == 3
        assert [bytes(one.payload) for one in Reader(LogFiles(log.config.root_dir, objects=where), 0)] == written
        assert payloads(log) == written
    config = tiny(
        tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=where),
        retention=Retention("size", max_total_bytes=2 * 16 * 1024, action="expire"),
    )
    with AofManager.open(path, config, background=False, clock=clock) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert payloads(log) == written[10:]
    objects = open_objects(ObjectLocation.from_url(root, options))
    assert len(list(objects.list_below(""))) == 2
    objects.close()


def test_logs_are_restored_from_a_bucket(tmp_path, s3_server: S3Server):
    """Two logs without their disk; then one of them without its manifest."""
    root = s3_server.url()
    options = [word for key, value in s3_server.options().items() for word in ("--option", f"{key}={value}")]
    where = {"backend": "s3", "root": root, "options": s3_server.options()}
    config = tiny(compression="zstd", tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=where))
    streams = {}
    with AofManager.open(str(tmp_path / "aof"), config, background=False, clock=ManualClock()) as manager:
        for name in ("orders", "trades"):
            log = manager.log(name)
            for number in range(3):
                log.append_records_with_timeout([b"%d.%d" % (number, part) * 500 for part in range(5)], 5)
                log.force_rollover(timeout=5)
            streams[name] = f"{log.stream_id:016x}"
        for _ in range(2):
            manager.maintain()
        written = payloads(manager.log("orders"))
    new = tmp_path / "new"
    restore = ["aof", "restore", str(new), "--objects", root, *options]
    for more in (["--stream", streams["orders"], "--log", "orders"], [], []):
        result = CliRunner().invoke(build_app(), [*restore, *more])
        assert result.exit_code == 0, result.output
    orders = LogFiles(str(new / "orders"), objects=where)
    assert [bytes(one.payload) for one in Reader(orders, 0)] == written
    shutil.rmtree(new / "orders" / "manifest")
    result = CliRunner().invoke(build_app(), restore)
    assert result.exit_code == 0, result.output
    assert [bytes(one.payload) for one in Reader(orders, 0)] == written


def test_missing_and_damaged_objects_lose_only_their_records(tmp_path, s3_server: S3Server):
    """One loses its segment, the other its bad records; all others are read, in the log and in another process."""
    where = {"backend": "s3", "root": s3_server.url(), "options": s3_server.options()}
    config = tiny(tiers=TierConfig(tier0_max_bytes=0, warm_max_bytes=0, objects=where))
    path = str(tmp_path / "aof")
    with AofManager.open(path, config, background=False, clock=ManualClock()) as manager:
        log = manager.log("orders")
        for number in range(5):
            log.append_records_with_timeout([b"%d.%d" % (number, part) * 500 for part in range(5)], 5)
            log.force_rollover(timeout=5)
        written = payloads(log)
        manager.maintain()
    objects = open_objects(ObjectLocation.from_url(where["root"], where["options"]))
    keys = sorted(info.key for info in objects.list_below(""))
    objects.delete([keys[1]])
    data = objects.get(keys[2], size_max=1 << 20)
    objects.delete([keys[2]])
    objects.put(keys[2], data[: len(data) // 2] + bytes(30) + data[len(data) // 2 + 30 :])
    objects.close()
    with AofManager.open(path, config, background=False, clock=ManualClock()) as manager:
        log = manager.log("orders")
        for reader in (
            Reader(LogFiles(log.config.root_dir, objects=where), 0, on_lost="skip"),
            log.open_reader(on_lost="skip"),
        ):
            found = [bytes(one.payload) for one in reader]
            kept = [one for one in found if one in written[10:15]]
            assert len(kept) < 5
            assert found == written[:5] + kept + written[15:]
            assert reader.skipped >= 6
