"""Contradicting settings are refused with a reason; settings may change between two runs."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from quiver import CapacityError, Settings, StoreFailedError
from quiver import open as open_store
from quiver.errors import SettingsError
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/settings"
MIB = 1024 * 1024
opened = partial(open_small, root=ROOT)
bundle_of = partial(numbered, size=200)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"retention.size_cap": "100MiB"}, "must hold wal.rotation_target and two segments"),
        ({"wal.max_size": "100MiB"}, "so 134217728 bytes; it is 104857600"),
        ({"wal.max_rotated_files": 1}, "the active file and one more"),
        ({"retention.max_segments": 2}, "one that is read, one that is written, one that fills"),
        ({"retention.size_cap": "1GiB", "retention.steady_state_headroom": "1GiB"}, "to which it yields"),
        ({"retention.size_cap": "1GiB", "subscriber.audit.max_size": "1GiB"}, "which counts the trail too"),
        ({"format_profile": "otap", "segment.compression": "lz4"}, "has no lz4"),
        ({"segment.max_bundle_count": 65_537}, "1 to 65536"),
        ({"segment.target_size": "2GiB"}, "at most 1GiB"),
        ({"segment.compression": "gzip"}, "none, lz4 or zstd"),
        ({"retention.size_cap_policy": "drop_newest"}, "backpressure or drop_oldest"),
        ({"durability": "memory"}, "wal or segment_only"),
        ({"retention.max_age": 0}, "must be positive"),
        ({"retention.max_age": "1h", "retention.max_retain_after_ingestion_hours": 2}, "contradicts another key"),
        ({"retention.size_cpa": "1GiB"}, "did you mean retention.size_cap"),
    ],
)
def test_contradicting_settings_are_refused_with_a_reason(mapping: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.from_mapping(mapping)


def test_a_location_given_as_text_is_refused_with_a_reason() -> None:
    """Only the mapping accepts a URL; the class takes an `ObjectLocation`."""
    with pytest.raises(SettingsError, match="must be an ObjectLocation"):
        Settings(cold_objects="/cold")  # type: ignore[arg-type]


def test_the_keys_of_the_documentation_are_accepted() -> None:
    """Nested or dotted, with units of sizes and durations."""
    given = Settings.from_mapping({
        "retention": {
            "size_cap": "500GiB", "size_cap_policy": "drop_oldest", "max_retain_after_ingestion_hours": 72,
            "steady_state_headroom": "64MiB", "delete_grace": "5s",
        },
        "segment.compression": "zstd",
        "durability": "segment_only",
    })  # fmt: skip
    assert given.max_age_s == 72 * 3600
    assert given.size_cap_bytes == 500 * 1024 * MIB
    assert (given.size_cap_policy, given.segment_compression) == ("drop_oldest", "zstd")
    assert (given.steady_state_headroom_bytes, given.delete_grace_s) == (64 * MIB, 5.0)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_store_opens_with_any_other_compression(compression: str) -> None:
    fs = CrashFileSystem()
    with opened(fs, segment_compression=compression) as store:
        for number in range(20):
            store.ingest(bundle_of(number))
    for other in ("zstd", "none"):
        with opened(fs, segment_compression=other, delete_grace_s=1e9) as store:
            assert drain(store, f"by-{other}") == list(range(20))


def test_durability_may_change_with_a_backlog_in_the_log() -> None:
    """The bundles of the log are sealed first; then the log is empty, and no crash duplicates a bundle."""
    fs = CrashFileSystem()
    store = opened(fs)
    store.register("s", start="earliest")
    for number in range(30):
        store.ingest(bundle_of(number), durable=True)
    number = 30
    for durability in ("segment_only", "wal", "segment_only"):
        fs = fs.clone_after_kill()
        store = opened(fs, durability=durability)
        if durability == "segment_only":
            assert store.stats()["open_bundles"] == 0
            assert list(store.recent_wal_entries()) == []
        for _ in range(5):
            store.ingest(bundle_of(number), durable=True)
            number += 1
        if durability == "segment_only":
            store.seal()
    fs = fs.clone_after_crash(0)
    with opened(fs) as store:
        store.seal()
        assert drain(store, "s") == list(range(number))


def test_segment_only_stores_refuse_at_the_cap() -> None:
    fs = CrashFileSystem()
    with opened(fs, durability="segment_only", size_cap_bytes=40_000) as store:
        store.register("s", start="earliest")
        number = 0
        with pytest.raises(CapacityError, match="held by s"):
            for number in range(1_000):
                store.ingest(bundle_of(number))
        assert store.disk_bytes <= 44_000
        store.seal()
        assert drain(store, "s") == list(range(number))
        store.ingest(bundle_of(number))
    with opened(fs, durability="segment_only", size_cap_bytes=40_000, size_cap_policy="drop_oldest") as store:
        for number in range(1_000, 1_400):
            store.ingest(bundle_of(number))
            assert store.disk_bytes <= 44_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("thread", ["maintain", "log"])
def test_a_background_thread_that_dies_fails_the_store(tmp_path, monkeypatch, thread: str) -> None:
    """Ingest raises an error with the cause, also if it was waiting already."""
    store = open_store(
        tmp_path, Settings(segment_bytes_max=4_000, wal_rotate_bytes=8_000, wal_bytes_max=16_000, segments_max=3)
    )
    store.register("s", start="earliest")
    died = threading.Event()

    def die() -> None:
        died.set()
        raise RuntimeError("nobody thought of this")

    with pytest.raises(StoreFailedError) as failed:
        for number in range(10_000):
            try:
                store.ingest(bundle_of(number))
            except CapacityError:
                break
        monkeypatch.setattr(store._background, "_maintain" if thread == "maintain" else "_flush", die)
        store._background.wake()
        store._background.mark_dirty()
        while True:
            store.ingest(bundle_of(0), timeout=60)
    assert died.is_set()
    causes = [failed.value.__cause__, failed.value.__cause__.__cause__]
    assert isinstance(causes[1], RuntimeError)
    assert "RuntimeError: nobody thought of this" in str(failed.value)
    with pytest.raises(StoreFailedError, match="nobody thought of this"):
        store.ingest(bundle_of(0))
    store.close()
