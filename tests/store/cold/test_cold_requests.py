"""How many requests the object tier of a store needs, counted on the wire in front of a real S3 server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_cold_rig import bundle_of

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
