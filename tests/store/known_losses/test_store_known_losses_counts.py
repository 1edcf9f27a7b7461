"""
Wrong figures of another engine with the same formats, and figures that it relied on wrongly.

Each test describes the error.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from quiver import Settings
from quiver.metrics import OpenTelemetryObserver, observe_store
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileStat
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, fill, open_manual

pytestmark = pytest.mark.usefixtures("quiet")

SMALL = Settings(segment_bytes_max=1_000_000, wal_rotate_bytes=2_000, wal_bytes_max=80_000, delete_grace_s=0.0)
opened = partial(open_manual, settings=SMALL)


class LateSizes(CrashFileSystem):
    """A file system that reports the size of a log file as it was when the file was created."""

    def stat(self, path: str) -> FileStat:
        found = super().stat(path)
        return replace(found, size_bytes=38) if path.endswith("/quiver.wal") else found


def test_the_writer_counts_the_size_of_its_log_itself() -> None:
    """Upstream #2487: a file size that was read too early put the cursor "beyond the tail"."""
    fs = LateSizes()
    with opened(fs) as store:
        for turn in range(6):
            fill(store, range(10 * turn, 10 * turn + 10))
            store.seal()
        fill(store, range(60, 65))
        left = fs.clone_after_kill()
    with opened(left) as store:
        store.seal()
        assert drain(store) == list(range(65))


def test_bundles_that_expire_while_the_store_is_closed_are_counted() -> None:
    """Upstream #3728, #3516: segments over age at open were not counted, and log entries only partly."""
    fs, clock = CrashFileSystem(), ManualClock()
    aged = replace(SMALL, max_age_s=100.0)
    with opened(fs, settings=aged, clock=clock) as store:
        store.register("s", start="earliest")
        fill(store, range(8))
        store.seal()
        assert drain(store, most=3) == [0, 1, 2]
        store.maintain()
        fill(store, range(8, 12))
        left = fs.clone_after_kill()
    seen = InMemoryObserver()
    with opened(left, settings=aged, clock=ManualClock(now_ns=clock.now_ns() + 101 * 10**9), observer=seen) as store:
        store.seal()
        store.maintain()
        assert drain(store) == []
    assert seen.total("quiver.subscriber.dropped_bundles_total") == 5 + 4
    assert seen.total("quiver.segment.dropped_total") == 2
    assert seen.total("quiver.gc.evictions_total") == 2


def test_after_a_restart_delivered_bundles_are_not_counted_as_pending() -> None:
    """Upstream #2193: after a restart the gauges contained every bundle on disk, acknowledged or not."""
    fs = CrashFileSystem()
    with opened(fs) as store:
        store.register("s", start="earliest")
        fill(store, range(8))
        store.seal()
        before = store.stats()["subscribers"]["s"]["lag_bytes"]
        assert drain(store, most=6) == list(range(6))
        store.maintain()
        left = fs.clone_after_kill()
    with opened(left) as store:
        figures = store.stats()["subscribers"]["s"]
        assert figures["pending_bundles"] == 2
        assert 0 < figures["lag_bytes"] < before / 2


def test_losses_are_counters_and_disk_use_is_a_gauge() -> None:
    """Upstream #3397, #3117: losses were gauges, and the disk use was not available."""
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("quiver")
    capped = replace(SMALL, segment_bytes_max=2_000, size_cap_bytes=20_000, size_cap_policy="drop_oldest")
    with opened(CrashFileSystem(), settings=capped, observer=OpenTelemetryObserver(meter)) as store:
        observe_store(store, meter)
        store.register("s", start="earliest")
        fill(store, range(200))
        collected = reader.get_metrics_data()
        assert collected is not None
        found = {
            metric.name: metric.data
            for resource in collected.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        for name in ("quiver.subscriber.dropped_bundles_total", "quiver.segment.dropped_total"):
            data = found[name]
            assert isinstance(data, Sum)
            assert data.is_monotonic
            assert sum(point.value for point in data.data_points) > 0
        (full,) = found["quiver.core.cap_fraction"].data_points
        assert full.value == pytest.approx(store.stats()["disk_bytes"] / 20_000)
