"""How many requests the object tier of a store needs, counted on the wire in front of a real S3 server."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_cold_rig import LIST, Rig, bundle_of, listed

import quiver
from counting_proxy import CountingProxy
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from s3_server import S3Server

SEGMENTS = 6


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[CountingProxy]:
    """A proxy in front of the S3 server."""
    with CountingProxy(s3_server.endpoint).running() as running:
        yield running


def _settings(s3_server: S3Server, proxy: CountingProxy, **changed: Any) -> quiver.Settings:
    location = ObjectLocation.from_url(s3_server.url(), {**s3_server.options(), "endpoint": proxy.endpoint})
    return quiver.Settings(cold_objects=location, segment_open_s_max=3600.0, delete_grace_s=0.0, **changed)


def _fill(store: quiver.Store, start: int) -> None:
    for number in range(start, start + SEGMENTS):
        store.ingest(bundle_of(number), durable=True)
        store.seal()


def test_a_segment_costs_one_put_and_one_head(tmp_path: Path, s3_server: S3Server, proxy: CountingProxy) -> None:
    """A pass adds one HEAD, which checks that earlier objects are there; nothing is read back."""
    with quiver.open(tmp_path / "store", _settings(s3_server, proxy), background=False) as store:
        _fill(store, 0)
        store.maintain()
        proxy.reset()
        _fill(store, SEGMENTS)
        store.maintain()
        assert store.stats()["cold"]["segments"] == 2 * SEGMENTS
        assert proxy.requests == Counter({"PUT": SEGMENTS, "HEAD": SEGMENTS + 1})
        assert proxy.received_bytes == 0


def test_a_change_is_appended_to_the_list() -> None:
    """The list is written completely with the first change after opening, and then after many changes."""
    rig = Rig()
    with rig.open() as store:
        rig.fill(store, 1)
        store.maintain()
        inode = rig.fs.stat(LIST).inode
        sizes = []
        for _ in range(3):
            rig.fill(store, 1)
            store.maintain()
            sizes.append(rig.fs.stat(LIST).size_bytes)
        assert rig.fs.stat(LIST).inode == inode
        assert [after - before for before, after in itertools.pairwise(sizes)] == [4 * 96] * 2
        assert list(listed(rig.fs).values()) == ["verified"] * 4
    with rig.open() as store:
        rig.fill(store, 1)
        store.maintain()
        assert rig.fs.stat(LIST).inode != inode
        assert list(listed(rig.fs).values()) == ["verified"] * 5


def test_the_list_is_written_again_after_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the file does not grow without end."""
    monkeypatch.setattr("quiver.store.cold.register._CHANGES_MIN", 10)
    rig = Rig()
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        rig.fill(store, 1, each=1)
        for _ in range(40):
            rig.fill(store, 1, each=1)
            subscriber.next_bundle(timeout=0).ack()
            store.maintain()
            assert rig.fs.stat(LIST).size_bytes < 200 + 96 * 2 * 11 + 80 * len(listed(rig.fs))


def test_finished_segments_are_deleted_in_one_request(
    tmp_path: Path, s3_server: S3Server, proxy: CountingProxy
) -> None:
    """Deletes are batched."""
    with quiver.open(tmp_path / "store", _settings(s3_server, proxy), background=False) as store:
        subscriber = store.register("reader", start="earliest")
        _fill(store, 0)
        store.maintain()
        proxy.reset()
        for bundle in subscriber.next_bundles(SEGMENTS):
            bundle.ack()
        store.maintain()
        assert store.stats()["cold"]["segments"] == 0
        assert proxy.requests == Counter({"DELETE": 1})


def test_a_large_object_is_compared_by_the_digests_of_its_parts(s3_server: S3Server, proxy: CountingProxy) -> None:
    """A multipart upload returns a digest of digests; parts need not end where pieces end."""
    location = ObjectLocation.from_url(s3_server.url(), {**s3_server.options(), "endpoint": proxy.endpoint})
    tier = open_objects(location)
    piece = bytes(range(256)) * 11_777
    proxy.reset()
    info = tier.put_parts("large", lambda: [piece] * 7, part_bytes=5 << 20)
    assert info.is_verified
    assert info.size_bytes == 7 * len(piece)
    assert proxy.requests["PUT"] == 5, "one for each part"
    assert proxy.requests["HEAD"] == 1
    assert proxy.received_bytes < 10_000
    tier.close()
