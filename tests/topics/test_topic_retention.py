"""Topics without objects: retention by age and size, and settings that are rejected because they have no effect."""

from __future__ import annotations

import pytest
from topic_disks import ROOT, TOPIC, offsets

from quiver.errors import SettingsError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.settings import (
    DeleterSettings,
    MetadataSettings,
    ObjectRetention,
    TopicSettings,
    UploaderSettings,
    WalSettings,
)
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

MIB = 1024 * 1024


def opened(settings, *, fs=None, clock=None, observer=None):
    return TopicStore.open(
        ROOT, settings=settings, fs=fs or CrashFileSystem(), clock=clock or ManualClock(),
        observer=observer or InMemoryObserver(), background=False,
    )  # fmt: skip


def size_of(store):
    return store.topic(TOPIC).stats()["disk_bytes"]


def test_files_are_deleted_by_size():
    """With 16 MB and a limit of 1 MB, the excess is deleted, oldest first, without any other setting."""
    observer = InMemoryObserver()
    with opened({"deleter": {"retention_size_mb": 1}}, observer=observer) as store:
        log = store.topic(TOPIC)
        for _ in range(256):
            log.append(b"x" * 64 * 1024)
            store.maintain()
            assert size_of(store) <= MIB * 9 / 8 + 64 * 1024
        found = offsets(log)
        assert found == list(range(found[0], 256))
        assert size_of(store) >= MIB * 6 / 8
        assert observer.total("danube_wal_delete_total") > 100
        assert found[0] > 200


def test_files_are_deleted_by_age():
    """In a quiet topic, too: its file is closed in time, and deleted when it is old enough, not before."""
    clock = ManualClock()
    with opened({"deleter": {"retention_time_minutes": 60, "check_interval_minutes": 1}}, clock=clock) as store:
        log = store.topic(TOPIC)
        log.append(b"0")
        clock.advance(59 * 60)
        store.maintain()
        assert offsets(log) == [0]
        clock.advance(60 * 60)
        log.append(b"1")
        store.maintain()
        assert offsets(log) == [1]
        clock.advance(2 * 60 * 60)
        store.maintain()
        clock.advance(2 * 60 * 60)
        store.maintain()
        assert offsets(log) == []
        assert log.append(b"2") == 2


def test_a_crash_restores_no_deleted_file():
    """The offsets continue."""
    fs = CrashFileSystem()
    chosen = {"wal": {"rotate_max_bytes": 300}, "deleter": {"retention_size_mb": 0}}
    with opened(chosen, fs=fs) as store:
        log = store.topic(TOPIC)
        for number in range(30):
            log.append(b"%d" % number)
        log.flush()
        store.maintain()
        left = offsets(log)
        assert left[0] > 0
        crashed = fs.clone_after_crash(3)
    with opened({}, fs=crashed) as store:
        assert offsets(store.topic(TOPIC)) == left
        assert store.topic(TOPIC).append(b"x") == 30


def test_files_with_unconfirmed_messages_are_kept():
    """If configured."""
    chosen = {
        "wal": {"rotate_max_bytes": 300},
        "deleter": {"retention_size_mb": 0, "wait_for_subscriptions": True},
        "subscriptions": {"progress_flush_interval_seconds": 0},
    }
    with opened(chosen) as store:
        log = store.topic(TOPIC)
        for number in range(30):
            log.append(b"%d" % number)
        subscription = store.subscribe(TOPIC, "billing", start=0)
        store.maintain()
        assert offsets(log)[0] == 0
        with subscription.consumer("c") as consumer:
            for _ in range(15):
                consumer.receive(0).ack()
        store.maintain()
        assert 0 < offsets(log)[0] <= 15


def test_retention_runs_at_its_interval():
    """The thread checks at this interval, and when it starts."""
    clock = ManualClock()
    with opened({"wal": {"rotate_max_bytes": 300}, "deleter": {"retention_size_mb": 0}}, clock=clock) as store:
        log = store.topic(TOPIC)
        for number in range(30):
            log.append(b"%d" % number)
        log._engine.maintain()
        start = log.start_offset()
        assert start > 0
        for number in range(30):
            log.append(b"%d" % number)
        clock.advance(299)
        log._engine.maintain()
        assert log.start_offset() == start
        clock.advance(1)
        log._engine.maintain()
        assert log.start_offset() > start


@pytest.mark.parametrize("settings", [{}, {"deleter": {"retention_size_mb": None, "retention_time_minutes": None}}])
def test_by_default_nothing_is_deleted(settings):
    """The document's defaults, a day and 10 GiB, are for files whose messages are in objects."""
    clock = ManualClock()
    with opened(settings, clock=clock) as store:
        store.topic(TOPIC).append(b"0")
        store.topic(TOPIC)._engine.wal.rotate()
        clock.advance(1e7)
        store.maintain()
        assert offsets(store.topic(TOPIC)) == [0]


@pytest.mark.parametrize(("settings", "key"), [
    ({"uploader": {"enabled": True}}, "uploader.enabled"),
    ({"uploader": {"interval_seconds": 300}}, "uploader.interval_seconds"),
    (TopicSettings(uploader=UploaderSettings(compression="zstd")), "uploader.compression"),
    ({"objects": {"retention_size_mb": 7}}, "objects.retention_size_mb"),
    (TopicSettings(objects=ObjectRetention(retention_time_minutes=7)), "objects.retention_time_minutes"),
    ({"metadata": {"endpoint": "sqlite:///x"}}, "metadata.endpoint"),
    ({"metadata": {"lease_seconds": 300}}, "metadata.lease_seconds"),
    (TopicSettings(metadata=MetadataSettings(namespace="/x")), "metadata.namespace"),
    ({"topics": {"a/b": {"uploader": {"enabled": False}}}}, "topics.a/b.uploader.enabled"),
    ({"deleter": {"check_interval_minutes": 1}}, "deleter.check_interval_minutes"),
    (TopicSettings(deleter=DeleterSettings(wait_for_subscriptions=True)), "deleter.wait_for_subscriptions"),
    ({"topics": {"a/b": {"deleter": {"check_interval_minutes": 1}}}}, "topics.a/b.deleter.check_interval_minutes"),
    ({"topics": {"a/b": {"deleter": {"retention_size_mb": None, "wait_for_subscriptions": True}}}},
     "topics.a/b.deleter.wait_for_subscriptions"),
])  # fmt: skip
def test_settings_of_objects_are_refused_without_objects(settings, key):
    """The error has the name of the setting."""
    fs = CrashFileSystem()
    with pytest.raises(SettingsError, match=rf"^{key} has no effect"):
        opened(settings, fs=fs)
    assert not fs.exists(ROOT)


@pytest.mark.parametrize("settings", [
    {"deleter": {"retention_size_mb": 1}}, {"topics": {"a/b": {"deleter": {"retention_size_mb": 1}}}},
])  # fmt: skip
def test_retention_of_topics_in_memory_is_refused(settings):
    """The cache has its own limits."""
    with pytest.raises(SettingsError, match="in memory only"):
        TopicStore.open(settings=settings, background=False)


@pytest.mark.parametrize(("settings", "key"), [
    ({"wal": {"rotate_max_bytes": 7}}, "wal.rotate_max_bytes"),
    ({"wal": {"rotate_max_seconds": 7}}, "wal.rotate_max_seconds"),
    ({"wal": {"file_name": "x.log"}}, "wal.file_name"),
    (TopicSettings(wal=WalSettings(fsync_max_batch_bytes=7)), "wal.fsync_max_batch_bytes"),
    ({"topics": {"a/b": {"wal": {"rotate_max_bytes": 7}}}}, "topics.a/b.wal.rotate_max_bytes"),
])  # fmt: skip
def test_settings_of_files_are_refused_without_files(settings, key):
    """They configure names, rotation and syncs of files."""
    with pytest.raises(SettingsError, match=f"^{key} has no effect: these topics are in memory only"):
        TopicStore.open(settings=settings, background=False)


def test_a_topic_may_have_its_own_settings():
    """By name or pattern, instead of the general settings; the last match applies."""
    settings = TopicSettings.from_mapping(
        {
            "storage": {
                "wal": {"cache_capacity": 7, "rotate_max_bytes": "1MiB"},
                "topics": {
                    "logs/*": {"deleter": {"retention_size_mb": 8}, "wal": {"rotate_max_bytes": None}},
                    "logs/audit": {"deleter": {"retention_size_mb": 80}, "wal": {"max_message_size": "1KiB"}},
                    "*/orders": {"wal": {"fsync_interval_ms": 0}, "subscriptions": {"max_redelivery_count": 3}},
                },
            }
        }
    )
    chosen = settings.of("logs/x", has_objects=False)
    assert (chosen.wal.rotate_max_bytes, chosen.wal.cache_capacity) == (MIB, 7)
    assert chosen.deleter == DeleterSettings(5, None, 8)
    assert settings.of("logs/audit", has_objects=False).wal.rotate_max_bytes == 10 * MIB
    assert settings.of("logs/audit", has_objects=True).deleter == DeleterSettings(5, 24 * 60, 80)
    assert settings.of("default/x", has_objects=False).deleter == DeleterSettings(5, None, None)
    assert settings.fsync_interval_ms_min == 0
    with opened(settings) as store:
        assert store.topic(TOPIC)._engine.syncs_each
        assert not store.topic("logs/x")._engine.syncs_each
        assert store.subscribe(TOPIC, "s")._settings.max_redelivery_count == 3
        assert store.subscribe("logs/x", "s")._settings.max_redelivery_count is None
        assert store.topic("logs/audit")._engine.deleter is not None
        assert store.topic("default/x")._engine.deleter is None


@pytest.mark.parametrize(("topics", "words"), [
    ({"orders": {}}, "not a pattern of topics"),
    ({"a/b/c": {}}, "not a pattern of topics"),
    ({"a/b": 7}, r"topics.a/b must be a mapping"),
    ({"a/b": {"wall": {}}}, r"unknown key topics.a/b.wall; did you mean wal"),
    ({"a/b": {"cloud": {}}}, r"unknown key topics.a/b.cloud"),
    ({"a/b": {"wal": 7}}, r"topics.a/b.wal must be a mapping"),
    ({"a/b": {"wal": {"file_name": "x.log"}}}, r"unknown key topics.a/b.wal.file_name"),
    ({"a/b": {"uploader": {"root_prefix": "/x"}}}, r"unknown key topics.a/b.uploader.root_prefix"),
    ({"a/b": {"wal": {"cache_capacity": "x"}}}, r"topics.a/b.wal.cache_capacity: str where int"),
    ({"a/b": {"wal": {"cache_capacity": 0}}}, r"topics.a/b: wal.cache_capacity must be at least 1"),
])  # fmt: skip
def test_invalid_topic_settings_are_reported_with_their_key(topics, words):
    """When the settings are created."""
    with pytest.raises(SettingsError, match=words):
        TopicSettings.from_mapping({"topics": topics})
    if not isinstance(topics.get("a/b"), int):
        with pytest.raises(SettingsError, match=words):
            TopicSettings(topics=topics)


def test_files_are_small_enough_for_retention():
    """Unless their size is configured."""
    for size_mb, rotate in ((0, 64 * 1024), (1, 128 * 1024), (800, 100 * MIB)):
        chosen = TopicSettings(deleter=DeleterSettings(retention_size_mb=size_mb))
        assert chosen.of(TOPIC, has_objects=True).wal.rotate_max_bytes == rotate
    chosen = TopicSettings(wal=WalSettings(rotate_max_bytes=7), deleter=DeleterSettings(retention_size_mb=1))
    assert chosen.of(TOPIC, has_objects=False).wal.rotate_max_bytes == 7
    for minutes, seconds in ((0, 60), (1, 60), (80, 600)):
        chosen = TopicSettings(deleter=DeleterSettings(retention_time_minutes=minutes))
        assert chosen.of(TOPIC, has_objects=False).wal.rotate_max_seconds == seconds
    assert TopicSettings().of(TOPIC, has_objects=True).wal == WalSettings()
