"""
Tiers on a real S3 server: segments go there, are read there, come back, and are deleted there.
"""

from __future__ import annotations

import pytest
from aof_as_log import payloads, tiny

from quiver.aof import AofManager, Reader, Retention, TierConfig
from quiver.aof.files import LogFiles
from quiver.objects import ObjectLocation, open_objects
from quiver.testing.clock import ManualClock
from s3_server import S3Server

pytestmark = pytest.mark.slow


def test_a_bucket(tmp_path, s3_server: S3Server):
    """Four segments: three leave, are read in both ways, and two expire."""
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
            log.force_rollover(timeout_s=5)
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
    assert len(list(objects.list_below(""))) == 1
    objects.close()
