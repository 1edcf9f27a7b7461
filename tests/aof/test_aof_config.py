"""Every setting: its default, its effect, and its invalid values. Also sizes that adapt, and retention."""

from __future__ import annotations

import dataclasses

import pytest
from aof_as_log import ROOT, open_manager, payloads, segment_files, tiny

from quiver.aof import AofConfig, AofManager, FlushConfig, Retention, TierConfig
from quiver.aof.append.sizing import Sizing
from quiver.aof.retention import SealedAge, choose_expired
from quiver.errors import SettingsError
from quiver.settings import GIB, KIB, MIB
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

EFFECTS = {
    "root_dir": "test_each_log_has_its_own_directory",
    "segment_min_bytes": "test_segment_sizes_adapt_within_their_bounds",
    "segment_max_bytes": "test_segment_sizes_adapt_within_their_bounds",
    "segment_target_bytes": "test_the_first_segment_has_the_target_size",
    "max_segment_age_s": "test_age_settings_are_tested_elsewhere",
    "preallocate_segments": "test_spares_are_created_ahead",
    "id_strategy": "test_ids_are_packed",
    "compression": "test_compression_packs_sealed_segments",
    "tiers": "test_tier_settings_are_tested_elsewhere",
    "retention": "test_retention_by_size_removes_the_oldest_segments",
    "compaction": "test_compaction_settings_are_tested_elsewhere",
    "flush": "test_flush_settings_are_tested_elsewhere",
    "enable_sparse_index": "test_index_settings_are_tested_elsewhere",
}


def test_every_key_has_a_test_of_its_effect():
    """And each such test belongs to a key."""
    assert {field.name for field in dataclasses.fields(AofConfig)} == set(EFFECTS)
    assert set(EFFECTS.values()) <= set(globals())


def test_defaults_equal_the_documents():
    """They are as printed in the document."""
    config = AofConfig()
    assert (config.root_dir, config.preallocate_segments) == ("./data/aof", 1)
    sizes = (config.segment_min_bytes, config.segment_target_bytes, config.segment_max_bytes)
    assert sizes == (64 * KIB, 64 * KIB, 1 * GIB)
    assert config.flush == FlushConfig(8 * MIB, 5, 64 * MIB, 1)
    assert config.retention == Retention("keep_all")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((0, 0, 0), (64 * KIB, 1 * GIB, 64 * KIB)),
        ((100_000, 100_000, 0), (131_072, 131_072, 131_072)),
        ((10 * MIB, 2 * GIB, 123 * MIB), (8 * MIB, 2 * GIB, 128 * MIB)),
        ((128, 128, 128), (64 * KIB, 64 * KIB, 64 * KIB)),
        ((96 * KIB, 96 * KIB, 96 * KIB), (64 * KIB, 64 * KIB, 64 * KIB)),
        ((96 * KIB + 1,) * 3, (128 * KIB,) * 3),
        ((2 * GIB - 1,) * 3, (2 * GIB,) * 3),
        ((8 * MIB, 1 * MIB, 64 * KIB), (8 * MIB, 8 * MIB, 8 * MIB)),
    ],
)
def test_sizes_are_rounded_and_kept_in_order(given, made):
    """To the nearest power of two, or the lower of two; the format limits files to 32 bits."""
    config = AofConfig(segment_min_bytes=given[0], segment_max_bytes=given[1], segment_target_bytes=given[2])
    assert (config.segment_min_bytes, config.segment_max_bytes, config.segment_target_bytes) == made
    assert dataclasses.replace(config, root_dir="x") == dataclasses.replace(config, root_dir="x")


@pytest.mark.parametrize(
    "make",
    [
        lambda: AofConfig(segment_min_bytes=-1),
        lambda: AofConfig(segment_max_bytes="64MiB"),
        lambda: AofConfig(segment_max_bytes=2 * GIB + 1),
        lambda: AofConfig(segment_max_bytes=4 * GIB),
        lambda: AofConfig(segment_min_bytes=3 * GIB),
        lambda: AofConfig(segment_target_bytes=3 * GIB),
        lambda: AofConfig(max_segment_age_s=0),
        lambda: AofConfig(max_segment_age_s="1h"),
        lambda: AofConfig(max_segment_age_s=float("inf")),
        lambda: AofConfig(preallocate_segments=17),
        lambda: AofConfig(preallocate_segments=-1),
        lambda: FlushConfig(flush_interval_ms=-1),
        lambda: FlushConfig(flush_watermark_bytes=-1),
        lambda: FlushConfig(max_unflushed_bytes=-1),
        lambda: FlushConfig(retries_max=-1),
        lambda: FlushConfig(max_concurrent_flushes=0),
        lambda: Retention("time"),
        lambda: Retention("size"),
        lambda: Retention("time", ttl_s=0),
        lambda: AofConfig(id_strategy="byte_index"),
        lambda: AofConfig(compression="lz4"),
        lambda: AofConfig(compression="zstd", retention=Retention("size", max_total_bytes=1)),
        lambda: TierConfig(tier0_max_bytes=-1),
        lambda: TierConfig(warm_max_bytes=0),
        lambda: TierConfig(compression_level=0),
        lambda: TierConfig(compression_level="fast"),
        lambda: TierConfig(tier0_max_bytes="1GiB"),
        lambda: TierConfig(objects=5),
        lambda: TierConfig(objects=["cold/"]),
        lambda: FlushConfig(flush_interval_ms="5ms"),
        lambda: FlushConfig(flush_interval_ms=float("nan")),
        lambda: FlushConfig(flush_watermark_bytes=None),
        lambda: FlushConfig(max_unflushed_bytes=1.5),
        lambda: Retention("time", ttl_s="1d"),
        lambda: Retention("size", max_total_bytes=True),
        lambda: AofConfig(preallocate_segments="2"),
        lambda: AofConfig(segment_target_bytes=None),
        lambda: AofConfig(flush=None),
        lambda: AofConfig(retention="size"),
        lambda: AofConfig(tiers={"tier0_max_bytes": 1}),
        lambda: AofConfig(enable_sparse_index="no"),
        lambda: AofConfig(root_dir=3),
    ],
)
def test_invalid_settings_are_refused(make):
    """When they are created; the error has the name of the key."""
    with pytest.raises(SettingsError):
        make()


def test_each_log_has_its_own_directory():
    """Below the manager's directory, which by default is that of the settings."""
    with AofManager.open(config=tiny(root_dir="/elsewhere"), fs=CrashFileSystem(), background=False) as manager:
        assert (manager.path, manager.log("orders").config.root_dir) == ("/elsewhere", "/elsewhere/orders")
    with open_manager(CrashFileSystem()) as manager:
        assert manager.log("orders").config.root_dir == f"{ROOT}/orders"


def test_the_first_segment_has_the_target_size():
    """The file has that size, and its blocks are reserved."""
    fs = CrashFileSystem()
    config = AofConfig(segment_target_bytes=256 * KIB)
    with open_manager(fs, config) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.flush()
        assert fs.stat(segment_files(fs)[0]).size_bytes == 256 * KIB


def test_segment_sizes_adapt_within_their_bounds():
    """A segment filled quickly makes the next one larger, a slow one smaller, never beyond either bound."""
    sizing = Sizing(bytes_min=64, bytes_max=1024, bytes_first=128)
    for fill_s, expected in ((0.1, 512), (0.1, 1024), (0.1, 1024), (1, 1024), (10, 1024), (200, 512), (200, 256),
                             (30, 256), (1, 512), (500, 256), (500, 128), (500, 64), (500, 64)):  # fmt: skip
        sizing.filled(sizing.next_bytes, fill_s)
        assert sizing.next_bytes == expected
    assert sizing.for_record(100, 160) == 512
    assert sizing.for_record(0, 160) == 256
    assert sizing.for_record(5000, 160) == 1024
    assert Sizing(bytes_min=64, bytes_max=1024, bytes_first=128).for_record(0, 0) == 128


def test_a_large_record_creates_a_large_segment():
    """If it does not fit into the next segment, one with enough space is created."""
    with open_manager(CrashFileSystem(), tiny(segment_max_bytes=128 * KIB)) as manager:
        log = manager.log("orders")
        manager.maintain()
        log.append_record(b"small")
        log.append_record_with_timeout(b"x" * 100_000, 5)
        assert [one.max_size for one in log.segment_snapshot()] == [16 * KIB, 128 * KIB]
        assert [len(one) for one in payloads(log)] == [5, 100_000]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_spares_are_created_ahead(count):
    """As many as configured, in addition to the active segment."""
    fs = CrashFileSystem()
    with open_manager(fs, tiny(preallocate_segments=count)) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        manager.maintain()
        assert log.snapshot().spares == count
        log.flush()
        spares = [name for name in fs.list_dir(f"{ROOT}/orders/segments") if name.endswith(".spare")]
        assert len(spares) == count
    assert [name for name in fs.list_dir(f"{ROOT}/orders/segments") if name.endswith(".spare")] == []


def test_flush_settings_are_tested_elsewhere():
    """In `test_aof_flush`."""
    names = {field.name for field in dataclasses.fields(FlushConfig)}
    assert names == {
        "flush_watermark_bytes", "flush_interval_ms", "max_unflushed_bytes", "max_concurrent_flushes", "retries_max",
    }  # fmt: skip


def test_ids_are_packed():
    """The segment is in the upper half, the offset in its file in the lower."""
    with open_manager(CrashFileSystem(), tiny(id_strategy="packed")) as manager:
        log = manager.log("orders")
        first = log.append_record(b"x")
        log.force_rollover(timeout=5)
        assert (first, log.append_record(b"x")) == (64, 1 << 32 | 64)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_compression_packs_sealed_segments(compression):
    """Next to the segment's file; without compression no segment is packed."""
    fs = CrashFileSystem()
    with open_manager(fs, tiny(compression=compression)) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 1000)
        log.force_rollover(timeout=5)
        manager.maintain()
    packed = [name for name in fs.list_dir(f"{ROOT}/orders/warm") if name.endswith(".zst")]
    assert len(packed) == (compression == "zstd")


def test_age_settings_are_tested_elsewhere():
    """In `test_aof_uploads`: a quiet log is sealed, uploaded and expired."""
    assert AofConfig().max_segment_age_s is None


def test_tier_settings_are_tested_elsewhere():
    """In `test_aof_tiers`."""
    names = {field.name for field in dataclasses.fields(TierConfig)}
    assert names == {"tier0_max_bytes", "warm_max_bytes", "objects", "compression_level"}


def test_index_settings_are_tested_elsewhere():
    """In `test_aof_index`; by default indexes are written."""
    assert AofConfig().enable_sparse_index


def test_compaction_settings_are_tested_elsewhere():
    """In `test_aof_compaction`; by default there is none."""
    assert AofConfig().compaction == "disabled"


HELD = [SealedAge(number, sealed_at=number * 1_000_000_000, size_bytes=100) for number in range(5)]


@pytest.mark.parametrize(
    ("retention", "leaving"),
    [
        (Retention(), []),
        (Retention("time", ttl_s=100), []),
        (Retention("time", ttl_s=8), [0, 1, 2]),
        (Retention("time", ttl_s=1), [0, 1, 2, 3]),
        (Retention("size", max_total_bytes=500), []),
        (Retention("size", max_total_bytes=499), [0]),
        (Retention("size", max_total_bytes=250), [0, 1, 2]),
        (Retention("size", max_total_bytes=1), [0, 1, 2, 3]),
    ],
)
def test_the_oldest_segments_expire_first(retention, leaving):
    """The newest segment never expires."""
    assert choose_expired(retention, HELD, 10_000_000_000) == leaving
    assert choose_expired(retention, [], 0) == []


def rolled(fs, retention, clock, count=4):
    """A log of *count* sealed segments and one more record, after one maintenance pass."""
    manager = open_manager(fs, tiny(retention=retention), clock)
    log = manager.log("orders")
    for number in range(count):
        log.append_record(b"record %d" % number)
        log.force_rollover(timeout=1)
        clock.advance(10)
    log.append_record(b"last")
    manager.maintain()
    return manager, log


@pytest.mark.parametrize("action", ["archive", "expire"])
def test_retention_by_size_removes_the_oldest_segments(action):
    """They are archived under the documented name or deleted; readers start at the rest, also after reopening."""
    fs = CrashFileSystem()
    retention = Retention("size", max_total_bytes=2 * 16 * KIB, action=action)
    manager, log = rolled(fs, retention, ManualClock())
    with manager:
        reader = log.open_reader()
        assert [bytes(one.payload) for one in reader] == [b"record 2", b"record 3", b"last"]
        archived = fs.list_dir(f"{ROOT}/orders/archive")
        assert [name[:20] for name in archived] == ([f"{0:020}", f"{1:020}"] if action == "archive" else [])
        assert len(segment_files(fs)) == 2 + 1 or len(segment_files(fs)) == 2
    with open_manager(fs.clone_after_crash(0)) as again:
        assert payloads(again.log("orders")) == [b"record 2", b"record 3", b"last"]
        assert again.log("orders").snapshot().record_count == 5


def test_segments_expire_without_any_call():
    """The manager's thread checks again as time passes."""
    fs = CrashFileSystem()
    clock = ManualClock(waits="hold")
    config = tiny(retention=Retention("time", ttl_s=20, action="expire"), flush=FlushConfig(flush_interval_ms=0))
    with AofManager.open(ROOT, config, fs=fs, clock=clock) as manager:
        log = manager.log("orders")
        follower = log.tail_follower(0)
        for number in range(2):
            log.append_record_with_timeout(b"%d" % number, None)
            log.force_rollover()
        assert follower.next_sealed_segment() == 0
        for _ in range(1_000):  # the polling thread may lag the clock
            clock.wait_for_waiters(2)
            clock.advance(1)
            left = [bytes(one.payload) for one in log.open_reader()]
            if not left:
                break
        assert left == []


def test_retention_by_time_uses_the_time_of_the_seal():
    """A view that a reader has stays readable."""
    fs = CrashFileSystem()
    clock = ManualClock()
    manager, log = rolled(fs, Retention(), clock)
    with manager:
        kept = next(iter(log.open_reader(views=True)))
    with open_manager(fs, tiny(retention=Retention("time", ttl_s=25)), clock) as manager:
        log = manager.log("orders")
        held = next(iter(log.open_reader(views=True)))
        manager.maintain()
        assert [bytes(one.payload) for one in log.open_reader()] == [b"record 2", b"record 3", b"last"]
        assert bytes(held.payload) == bytes(kept.payload) == b"record 0"
