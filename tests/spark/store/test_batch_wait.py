"""A stream waits until a batch is large or old enough; everything that waits is still unacknowledged."""

from __future__ import annotations

import os
import time

import pytest
from stores import StoreMaker

from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.store.batch_wait import BatchWait
from quiver.spark.store.source import StoreLog
from quiver.store.format.cores import core_directory
from quiver.store.reading.partitions import BundleRange
from quiver.store.reading.stream_options import parse_options
from quiver.testing.clock import ManualClock

HOUR_S = 3600


def log_of(root, **options):
    return StoreLog(parse_options({"path": root, "mode": "bundles", "subscriber": "exp", **options}))


def make_old(path, age_s=2 * HOUR_S):
    then = time.time() - age_s
    os.utime(path, (then, then))


@pytest.fixture(params=["one core", "two cores"])
def stores(request, tmp_path):
    """The stores of the cores, and their directory."""
    if request.param == "one core":
        return [StoreMaker(tmp_path)], str(tmp_path)
    cores = [StoreMaker(tmp_path / core_directory(n), f"5c0f0000-0000-0000-0000-00000000000{n}") for n in range(2)]
    return cores, str(tmp_path)


def test_a_batch_waits_until_it_is_old(stores):
    """The age is that of its oldest segment; then it has everything, and the next one waits again."""
    makers, root = stores
    log = log_of(root, maxTriggerDelay="1h")
    start = log.initial()
    assert log.latest(start, unlimited=False) == start
    paths = [maker.rows(2) for maker in makers]
    assert log.latest(start, unlimited=False) == start
    make_old(paths[-1])
    makers[0].rows(1)
    end = log.latest(start, unlimited=False)
    assert end != start
    assert sum(r.stop - r.start for spans in log.plan(start, end) for r in spans) == 2 * len(makers) + 1
    makers[0].rows(1)
    assert log.latest(end, unlimited=False) == end
    log.release()


def test_a_batch_waits_until_it_is_large(stores):
    """The bytes of all cores count."""
    makers, root = stores
    log = log_of(root, maxTriggerDelay="1h", minBytesPerTrigger="30KB")
    start = log.initial()
    for _ in range(40 // len(makers)):
        for maker in makers:
            maker.rows(1)
        if log.latest(start, unlimited=False) != start:
            break
    pending = log._subscriber.pending(start, log.latest(start, unlimited=False))
    assert 30_000 <= sum(one.size_bytes for one in pending) < 32_000
    log.release()


def test_a_full_batch_and_available_now_do_not_wait(stores):
    """A limit that ends a batch makes it full, and a run over the existing data reads all of it."""
    makers, root = stores
    log = log_of(root, maxTriggerDelay="1h", maxBundlesPerTrigger="2")
    start = log.initial()
    makers[0].rows(1)
    assert log.latest(start, unlimited=False) == start
    makers[0].rows(3)
    end = log.latest(start, unlimited=False)
    assert end != start
    log.available_now()
    for _ in range(3):
        start, end = end, log.latest(end, unlimited=False)
    assert end == start
    log.release()


def test_waiting_acknowledges_nothing(tmp_path):
    """A new process reads the same bundles."""
    maker = StoreMaker(tmp_path)
    log = log_of(maker.root, maxTriggerDelay="1h")
    start = log.initial()
    path = maker.rows(2)
    assert log.latest(start, unlimited=False) == start
    log.release()
    make_old(path)
    again = log_of(maker.root, maxTriggerDelay="1h")
    assert again.initial() == start
    assert again.latest(start, unlimited=False) != start
    again.release()


def test_bundles_without_a_local_file_do_not_wait():
    """They are in an object tier, or missing: then the plan reports it."""
    wait = BatchWait(REAL_FILES, size_bytes_min=None, delay_s_max=1.0, clock=ManualClock())
    assert wait.is_over([])
    assert wait.is_over([BundleRange(0, "/missing/segments/0.qseg", 0, 1, 10)])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"minBytesPerTrigger": "1MB"}, "needs maxTriggerDelay"),
        ({"maxTriggerDelay": "0s"}, "not above 0"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"minPartitionBytes": "0"}, "at least 1 byte"),
    ],
)
def test_impossible_waits_are_refused(options, reason):
    """With the option."""
    with pytest.raises(UsageError, match=reason):
        log_of("store", **options)
