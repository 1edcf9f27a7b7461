"""The complete tier on real stores: a directory and a file by default, a bucket of a real S3 server, a real etcd."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace

import pytest
from cold_rig import append, expected, read, settings

from etcd_server import etcd_binary, start_etcd, two_urls
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import (
    AccessDeniedError,
    DirectoryInUseError,
    MetadataUnavailableError,
    ObjectsUnavailableError,
    SettingsError,
    UsageError,
)
from quiver.objects import ObjectLocation, open_objects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.opening import open_cold_tier, owner_of
from quiver.topics.settings import TopicSettings, UploaderSettings
from quiver.topics.store import TopicStore
from s3_server import S3Server, prepare_weed, start_weed, stop

NAME = "default/orders"


def through(store_of, *, check_keys=None):
    """Append, upload, delete, read; close, open, continue; hand over to another directory."""
    with store_of("one") as store:
        log = store.topic(NAME)
        append(log, 30)
        log.flush()
        store.maintain()
        assert log._engine.wal.start_offset > 0
        assert read(log) == expected(30)
    with store_of("one") as store:
        log = store.topic(NAME)
        append(log, 30)
        log.flush()
        store.maintain()
        assert read(log) == expected(60)
        assert read(log, 17) == expected(60, 17)
        with store_of("two") as other, pytest.raises(DirectoryInUseError):
            other.topic(NAME)
        store.unload(NAME)
        with store_of("two") as other:
            log = other.topic(NAME)
            assert read(log) == expected(60)
            append(log, 10)
            log.flush()
            other.maintain()
            assert read(log) == expected(70)


def test_the_tier_works_with_a_directory_and_a_file(tmp_path):
    """The names that users type: both are optional, with the metadata next to the topics."""

    def store_of(name):
        return TopicStore.open(
            tmp_path / name, objects=f"file://{tmp_path}/cold", metadata=f"sqlite://{tmp_path}/shared.db",
            settings=settings(rotate=600), background=False,
        )  # fmt: skip

    through(store_of)
    assert (tmp_path / "cold/storage/topics/default/orders/objects").is_dir()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_tier_works_with_a_bucket_and_a_file(tmp_path, s3_server: S3Server, compression):
    """Configured by the broker's file, against a real S3 server."""
    url = s3_server.url()
    chosen = settings(rotate=600, compression=compression)
    location = {"backend": "s3", "root": url, "options": s3_server.options()}

    def store_of(name):
        return TopicStore.open(
            tmp_path / name, objects=location, metadata=f"sqlite://{tmp_path}/shared.db", settings=chosen,
            background=False,
        )  # fmt: skip

    through(store_of)
    tier = open_objects(ObjectLocation.from_mapping(location), writable=False)
    keys = [info.key for info in tier.list_below("")]
    assert all(key.startswith("storage/topics/default/orders/objects/data-") for key in keys)
    assert not [key for key in keys if "pending" in key]


def test_the_tier_works_with_a_bucket_and_an_etcd(tmp_path, s3_server: S3Server, etcd_server: str):
    """Skipped where etcd is not installed."""
    url = s3_server.url()
    namespace = f"/{secrets.token_hex(4)}"
    chosen = TopicSettings.from_mapping(
        {
            "storage": {
                "wal": {"rotate_max_bytes": 600, "cache_capacity": 2},
                "deleter": {"retention_time_minutes": 0},
                "cloud": {"backend": "s3", "root": url, "options": s3_server.options()},
                "metadata": {"endpoint": etcd_server.replace("http://", "etcd://"), "namespace": namespace},
            }
        }
    )

    through(lambda name: TopicStore.open(tmp_path / name, settings=chosen, background=False))


@pytest.mark.slow
def test_a_dead_s3_server_stops_no_append(tmp_path):
    """
    It is killed between two uploads: appends and local reads continue, no local file is deleted, and the upload catches
    up.
    """
    folder = tmp_path / "s3"
    binary, server, ports = prepare_weed(folder)
    location = {"backend": "s3", "root": "s3://quiver-test/x", "options": server.options(timeout_s="2")}
    process = start_weed(binary, folder, server, ports)
    try:
        with TopicStore.open(
            tmp_path / "t", objects=location, settings=settings(rotate=600), clock=ManualClock(), background=False
        ) as store:
            log = store.topic(NAME)
            append(log, 20)
            log.flush()
            store.maintain()
            start = log._engine.wal.start_offset
            assert start > 0
            stop(process)

            append(log, 20)
            log.flush()
            with pytest.raises(ObjectsUnavailableError) as raised:
                store.maintain()
            assert server.secret_key not in str(raised.value)
            assert log._engine.wal.start_offset == start
            assert read(log, start) == expected(40, start)
            with log.reader(start=0, follow=False) as reader, pytest.raises(ObjectsUnavailableError):
                next(reader)

            process = start_weed(binary, folder, server, ports)
            store.maintain()
            assert log._engine.wal.start_offset > start
            assert read(log) == expected(40)
    finally:
        stop(process)


@pytest.mark.etcd
def test_a_dead_etcd_stops_no_append(tmp_path):
    """Appends continue, nothing is published or deleted; when it is back with its data, the upload catches up."""
    binary = etcd_binary()
    assert binary is not None
    client, peer = two_urls()
    process = start_etcd(binary, tmp_path, client, peer)
    try:
        with TopicStore.open(
            tmp_path / "t", objects=str(tmp_path / "cold"), metadata=client.replace("http://", "etcd://"),
            settings=settings(rotate=600), clock=ManualClock(), background=False,
        ) as store:  # fmt: skip
            log = store.topic(NAME)
            append(log, 20)
            log.flush()
            store.maintain()
            start = log._engine.wal.start_offset
            stop(process)

            append(log, 20)
            log.flush()
            with pytest.raises(MetadataUnavailableError):
                store.maintain()
            assert log._engine.wal.start_offset == start
            assert read(log) == expected(40)

            process = start_etcd(binary, tmp_path, client, peer)
            store.maintain()
            assert log._engine.wal.start_offset > start
            assert read(log) == expected(40)
    finally:
        stop(process)


def test_many_topics_share_two_threads(tmp_path):
    """All topics are uploaded and released in the background, however many there are."""
    chosen = replace(settings(rotate=600), uploader=UploaderSettings(interval_seconds=1))
    before = set(threading.enumerate())  # some of them may end meanwhile
    tier_done = threading.Event()
    wanted = 20

    class Counting(InMemoryObserver):
        def count(self, name, amount=1, **attributes):
            super().count(name, amount, **attributes)
            if name == "danube_uploader_objects_created_total" and self.total(name) >= wanted:
                tier_done.set()

    observer = Counting()
    with TopicStore.open(tmp_path / "t", objects=str(tmp_path / "cold"), settings=chosen, observer=observer) as store:
        for number in range(wanted):
            log = store.topic(f"default/t{number}")
            log.append(b"x")
            log.flush()
        assert len(set(threading.enumerate()) - before) <= 3  # one thread of the store, two of the tier
        assert tier_done.wait(timeout=60)
    assert set(threading.enumerate()) <= before


def test_credentials_are_checked_when_the_topics_are_opened(tmp_path, s3_server: S3Server):
    """Otherwise a thread would find the error five minutes later, without a caller. The directory is released again."""
    wrong = {"backend": "s3", "root": s3_server.url(), "options": s3_server.options(secret_key="wrong")}
    with pytest.raises(AccessDeniedError):
        TopicStore.open(tmp_path / "t", objects=wrong)
    TopicStore.open(tmp_path / "t", background=False).close()


def test_objects_in_memory_delete_no_local_file(tmp_path):
    """They end with the process: the next process still has every message, and uploads all again."""
    clock = ManualClock()
    for first in (0, 20):
        with TopicStore.open(
            tmp_path, objects="memory://", settings={"wal": {"rotate_max_bytes": 300}}, background=False, clock=clock
        ) as store:
            log = store.topic(NAME)
            append(log, 20)
            log.flush()
            clock.advance(200_000)
            store.maintain()
            assert log._engine.wal.start_offset == 0
            assert read(log) == expected(first + 20)


@pytest.mark.parametrize("chosen", [
    {"deleter": {"retention_time_minutes": 60}}, {"topics": {"a/*": {"deleter": {"retention_size_mb": 1}}}},
])  # fmt: skip
def test_retention_with_objects_in_memory_is_refused(tmp_path, chosen):
    """It would never delete a local file."""
    with pytest.raises(SettingsError, match="deleter has no effect"):
        TopicStore.open(tmp_path, objects="memory://", settings=chosen, background=False)


def test_a_tier_without_a_place_for_objects_is_an_error():
    """The tier is configured, but its location is missing."""
    disk = CrashFileSystem()
    disk.make_dirs("/topics")
    with pytest.raises(SettingsError, match="backend is one of"):
        open_cold_tier(
            "/topics", TopicSettings(), fs=disk, clock=SYSTEM_CLOCK, observer=InMemoryObserver(), background=False
        )


def test_settings_of_objects_without_files_are_refused(tmp_path):
    """Topics in memory have no files to upload; settings of objects without objects are refused, too."""
    place = {"backend": "fs", "root": str(tmp_path / "cold")}
    for given in ({"objects": place}, {"metadata": "memory://"}, {"settings": {"storage": {"cloud": place}}}):
        with pytest.raises(UsageError, match="need a directory"):
            TopicStore.open(**given)
    with pytest.raises(UsageError, match="give objects, too"):
        TopicStore.open(tmp_path / "topics", metadata="memory://")
    assert not list(tmp_path.iterdir())


def test_a_directory_keeps_its_owner_name():
    """The name is created once; a restart finds it, and it survives a power loss."""
    disk = CrashFileSystem()
    disk.make_dirs("/topics")
    name = owner_of(disk, "/topics")

    assert owner_of(disk, "/topics") == name
    assert owner_of(disk.clone_after_crash(seed=1), "/topics") == name
    assert len(name) == 16


def test_a_read_only_catalog_writes_nothing(tmp_path):
    """A process that does not own a topic cannot change its records."""
    from quiver.errors import FencedError
    from quiver.metadata import open_metadata

    catalog = ObjectCatalog(open_metadata("memory://"), root="/danube", topic=NAME)

    with pytest.raises(FencedError):
        catalog.withdraw([])
    assert REAL_FILES
