"""The broker's file as in the document: each key, its default, and its effect."""

from __future__ import annotations

import pytest
import yaml
from topic_disks import DIRECTORY, TOPIC, open_topics

from quiver.errors import SettingsError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.settings import (
    CloudSettings,
    DeleterSettings,
    SubscriptionSettings,
    TopicSettings,
    UploaderSettings,
    WalSettings,
)
from quiver.topics.store import TopicStore

PRINTED = """
storage:
  wal:
    dir: /var/lib/danube/wal
    cache_capacity: 2048
    fsync_interval_ms: 5000
    fsync_max_batch_bytes: 10485760  # 10 MiB
    rotate_max_bytes: 52428800        # 50 MiB
    rotate_max_seconds: 3600          # 1 hour

  uploader:
    interval_seconds: 300  # 5 minutes

  cloud:
    backend: s3
    root: s3://my-bucket/danube
    options:
      region: us-east-1
      endpoint: https://s3.amazonaws.com
      access_key: ${AWS_ACCESS_KEY_ID}
      secret_key: ${AWS_SECRET_ACCESS_KEY}
"""

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "the id", "AWS_SECRET_ACCESS_KEY": "the secret"}


def test_the_file_in_the_document_loads():
    """All of its keys, with values from the environment for the placeholders."""
    settings = TopicSettings.from_mapping(yaml.safe_load(PRINTED), ENVIRONMENT)
    assert settings.wal == WalSettings(
        dir="/var/lib/danube/wal", cache_capacity=2048, fsync_interval_ms=5000, fsync_max_batch_bytes=10 << 20,
        rotate_max_bytes=50 << 20, rotate_max_seconds=3600,
    )  # fmt: skip
    assert settings.uploader == UploaderSettings(interval_seconds=300)
    assert settings.cloud is not None
    assert (settings.cloud.backend, settings.cloud.root) == ("s3", "s3://my-bucket/danube")
    assert settings.cloud.options["access_key"] == "the id"
    assert settings.cloud.options["secret_key"] == "the secret"


def test_secrets_are_not_shown():
    """Neither by the settings nor by their errors."""
    settings = TopicSettings.from_mapping(yaml.safe_load(PRINTED), ENVIRONMENT)
    assert "the secret" not in f"{settings!r} {settings}"
    with pytest.raises(SettingsError) as caught:
        TopicSettings.from_mapping({"cloud": {"backend": "s4", "root": "r", "options": {"key": "the secret"}}})
    assert "the secret" not in str(caught.value)


def test_defaults_equal_the_documents():
    """For the log, the uploader, the deleter and the progress of subscriptions."""
    settings = TopicSettings()
    assert settings == TopicSettings.from_mapping({}) == TopicSettings.from_mapping({"storage": {}})
    wal = settings.wal
    assert (wal.dir, wal.file_name, wal.cache_capacity) == (None, "wal.log", 1024)
    assert (wal.fsync_interval_ms, wal.fsync_max_batch_bytes) == (5000, 10 << 20)
    assert (wal.rotate_max_bytes, wal.rotate_max_seconds) == (None, None)
    assert settings.uploader.interval_seconds == 300
    assert settings.uploader.root_prefix == "/danube"
    assert settings.deleter == DeleterSettings(5, 24 * 60, 10 * 1024)
    assert settings.subscriptions == SubscriptionSettings(5.0, 1000, 1000, 30.0, 1.0, None)


@pytest.mark.parametrize(("mapping", "words"), [
    ({"wal": {"cache_capcity": 1}}, "did you mean cache_capacity"),
    ({"wall": {}}, "did you mean wal"),
    ({"wal": []}, "wal must be a mapping"),
    ({"wal": {"cache_capacity": 0}}, "at least 1"),
    ({"wal": {"cache_capacity": "many"}}, "int belongs"),
    ({"wal": {"cache_capacity": True}}, "int belongs"),
    ({"wal": {"rotate_max_bytes": "huge"}}, "not a size"),
    ({"wal": {"file_name": "../x"}}, "cannot name log files"),
    ({"wal": {"max_message_size": "64MiB"}}, "a frame can hold"),
    ({"uploader": {"interval_seconds": 0}}, "at least 1"),
    ({"uploader": {"compression": "rar"}}, "none, zstd, lz4"),
    ({"uploader": {"root_prefix": "danube"}}, "begin with a slash"),
    ({"deleter": {"check_interval_minutes": 0}}, "at least 1"),
    ({"deleter": {"retention_time_minutes": -1}}, "at least 0"),
    ({"objects": {"retention_size_mb": 0}}, "at least 1"),
    ({"cloud": {"backend": "ftp", "root": "x"}}, "one of fs, memory"),
    ({"cloud": {"root": "x"}}, "backend"),
    ({"metadata": {"lease_seconds": 0}}, "at least 1"),
    ({"subscriptions": {"ack_timeout_seconds": 0}}, "positive"),
    ({"subscriptions": {"progress_min_offset_delta": 0}}, "at least 1"),
    ({"storage": {"wal": {"dir": "${HOME_OF_NOBODY}"}}}, "no HOME_OF_NOBODY .*environment=os.environ"),
    ("broker.yaml", "a mapping, not str: parse the broker's file first"),
])  # fmt: skip
def test_invalid_settings_are_reported_with_their_key(mapping, words):
    """And with the closest known key."""
    with pytest.raises(SettingsError, match=words):
        TopicSettings.from_mapping(mapping)


# ── effects of the log's keys ────────────────────────────────────────────────────────────────────────────


def synced(fs: CrashFileSystem) -> int:
    """Return how many messages would remain after a power loss."""
    with open_topics(fs.clone_after_crash(0)) as store:
        return store.topic(TOPIC).current_offset()


def test_without_a_dir_nothing_is_written():
    """`wal.dir` is the root directory; without it topics are only in memory."""
    fs = CrashFileSystem()
    with TopicStore.open(settings={"wal": {"dir": "/here"}}, fs=fs, clock=ManualClock(), background=False) as store:
        store.topic(TOPIC).append(b"1")
    assert "wal.log" in fs.list_dir(f"/here/{TOPIC}")
    steps = fs.steps
    with TopicStore.open(fs=fs, clock=ManualClock(), background=False) as store:
        log = store.topic(TOPIC)
        log.append(b"1", durable=True)
        assert [message.payload for message in log.reader("earliest", follow=False)] == [b"1"]
    assert fs.steps == steps


def test_file_name_names_the_first_file():
    """`wal.file_name`; the other files have a number in their names."""
    fs = CrashFileSystem()
    with open_topics(fs, file_name="orders.txt", rotate_max_bytes=1) as store:
        for number in range(3):
            store.topic(TOPIC).append(b"%d" % number)
    listed = fs.list_dir(DIRECTORY)
    assert {"orders.txt", "orders.1.txt", "orders.2.txt"} <= set(listed)
    with open_topics(fs, file_name="orders.txt") as store:
        assert store.topic(TOPIC).current_offset() == 3


def test_cache_capacity_and_bytes_limit_the_cache():
    """`wal.cache_capacity` and `cache_max_bytes` limit the messages in memory."""
    with open_topics(CrashFileSystem(), cache_capacity=5) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 50)
        assert log.stats()["danube_wal_cache_size"] == 5
        assert [offset for offset, _ in log.read_cached_since(46)[0]] == [47, 48, 49]
        assert log.read_cached_since(0) == ([(n, m) for n, m in log.read_cached_since(44)[0]], 49)
        assert log.read_cached_since(49) == ([], 49)
    with open_topics(CrashFileSystem(), cache_max_bytes=3_000) as store:
        log = store.topic(TOPIC)
        for _ in range(20):
            log.append(b"x" * 900)
        assert log.stats()["danube_wal_cache_size"] in {2, 3}
        assert log.stats()["cache_bytes"] <= 3_000
        log.append(b"x" * 9_000)
        assert log.stats()["danube_wal_cache_size"] == 1


def test_fsync_interval_bounds_the_age_of_unsynced_messages():
    """`wal.fsync_interval_ms`; 0 syncs each append."""
    fs, clock = CrashFileSystem(), ManualClock()
    with open_topics(fs, clock=clock, fsync_interval_ms=1000) as store:
        log = store.topic(TOPIC)
        log.append(b"1")
        clock.advance(0.9)
        store.maintain()
        assert (synced(fs), log.durable_offset()) == (0, 0)
        clock.advance(0.2)
        store.maintain()
        assert (synced(fs), log.durable_offset()) == (1, 1)
    fs = CrashFileSystem()
    with open_topics(fs, fsync_interval_ms=0) as store:
        store.topic(TOPIC).append(b"1")
        store.topic(TOPIC).append_batch([b"2", b"3"])
        assert synced(fs) == 3


def test_a_sync_is_due_by_time_and_by_size():
    """After the interval since the first unsynced append, or immediately after a number of bytes; per file."""
    reports: list[bool] = []
    with open_topics(CrashFileSystem(), fsync_max_batch_bytes=1_000, rotate_max_bytes=5_000) as store:
        log = store.topic("default/orders")
        log._engine.wal._on_dirty = reports.append
        log.append(bytes(100))
        log.append(bytes(100))
        assert reports == [False]
        while reports == [False]:
            log.append(bytes(100))
        assert reports == [False, True]
        assert 1_000 <= log.stats()["disk_bytes"] < 1_300
        log.flush()
        log.append(bytes(100))
        assert reports == [False, True, False]
        log.append_batch([bytes(500)] * 3)
        assert reports == [False, True, False, True]
        log._engine.wal.rotate()
        del reports[:]
        log.append(bytes(100))
        assert reports == [False]
        log.flush()
        log.append(bytes(2_000))
        assert reports == [False, True]


def test_an_opened_file_counts_as_synced():
    """Only new messages are waited for, however long the file is."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic("default/orders").append(bytes(5_000))
    reports: list[bool] = []
    with open_topics(fs, fsync_max_batch_bytes=1_000) as store:
        log = store.topic("default/orders")
        log._engine.wal._on_dirty = reports.append
        log.append(b"x")
        assert reports == [False]


def test_fsync_max_batch_bytes_bounds_unsynced_bytes():
    """`wal.fsync_max_batch_bytes`, however long the interval."""
    fs = CrashFileSystem()
    with open_topics(fs, fsync_max_batch_bytes=10_000) as store:
        log = store.topic(TOPIC)
        for _ in range(9):
            log.append(b"x" * 1000)
        assert synced(fs) == 0
        log.append(b"x" * 1000)
        assert synced(fs) == 10


def test_rotate_max_bytes_bounds_the_file_size():
    """`wal.rotate_max_bytes`; each file begins with the expected offset."""
    with open_topics(CrashFileSystem(), rotate_max_bytes=300) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x"] * 2)
        for _ in range(5):
            log.append(b"x" * 300)
        found = log._engine.wal.files()
        assert [file.first_offset for file in found] == [0, *(file.next_offset for file in found[:-1])]
        assert [file.seq for file in found] == list(range(len(found)))
        assert len(found) > 4
        assert [file.sealed for file in found] == [True] * (len(found) - 1) + [False]


def test_rotate_max_seconds_rotates_idle_topics():
    """`wal.rotate_max_seconds`; an empty file is never rotated."""
    clock = ManualClock()
    with open_topics(CrashFileSystem(), clock=clock, rotate_max_seconds=60) as store:
        log = store.topic(TOPIC)
        clock.advance(100)
        store.maintain()
        assert len(log._engine.wal.files()) == 1
        log.append(b"1")
        clock.advance(59)
        store.maintain()
        assert len(log._engine.wal.files()) == 1
        clock.advance(2)
        store.maintain()
        assert len(log._engine.wal.sealed_ranges()) == 1
        clock.advance(200)
        store.maintain()
        assert len(log._engine.wal.files()) == 2


def test_the_repr_of_cloud_settings_omits_the_options():
    """The options may contain secrets."""
    assert repr(CloudSettings("fs", "/cold", {"a": "b"})) == "CloudSettings(backend='fs', root='/cold')"
