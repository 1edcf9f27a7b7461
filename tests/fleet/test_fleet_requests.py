"""How many requests a node needs, counted on the wire in front of a real S3 server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_rig import FleetReader

import quiver
import store_rig
from counting_proxy import CountingProxy
from quiver.clock import Clock
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.store.opening import open_store
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from s3_server import S3Server

SEGMENTS = 5


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[CountingProxy]:
    """A proxy in front of the S3 server."""
    with CountingProxy(s3_server.endpoint).running() as running:
        yield running


def _open(path: Path, url: str, s3_server: S3Server, proxy: CountingProxy, clock: Clock) -> Store:
    location = ObjectLocation.from_url(url, {**s3_server.options(), "endpoint": proxy.endpoint})
    settings = quiver.Settings(
        cold_objects=location,
        fleet_name="edge-17",
        fleet_subscribers=("lake",),
        fleet_ack_poll_s=300.0,
        delete_grace_s=0.0,
    )
    return open_store(str(path), settings, clock=clock, background=False)


def _fill(store: Store, segments: int) -> None:
    for _ in range(segments):
        store.ingest(store_rig.numbered(0), durable=True)
        store.seal()


def test_requests_of_a_node(tmp_path: Path, s3_server: S3Server, proxy: CountingProxy) -> None:
    """
    A segment costs one PUT and one HEAD, an idle node nothing but its record, and a poll one HEAD.

    A pass adds one HEAD, which checks that earlier objects are there.
    """
    clock, url = ManualClock(), s3_server.url()
    with _open(tmp_path / "node", url, s3_server, proxy, clock) as store:
        _fill(store, 1)
        store.maintain()

        proxy.reset()
        _fill(store, SEGMENTS)
        store.maintain()
        assert proxy.requests == Counter({"PUT": SEGMENTS, "HEAD": SEGMENTS + 1}), "one PUT and one HEAD a segment"
        assert proxy.received_bytes == 0, "nothing is read back"

        proxy.reset()
        clock.advance(301)
        store.maintain()
        assert proxy.requests == Counter({"HEAD": 1}), "a poll without acknowledgements"

        reader = FleetReader(open_objects(ObjectLocation.from_url(url, s3_server.options())))
        reader.read()
        reader.acknowledge()
        proxy.reset()
        clock.advance(301)
        store.maintain()
        clock.advance(1)
        store.maintain()
        assert proxy.requests["GET"] == 1, "the positions"
        assert proxy.requests["PUT"] == 1, "the record, which is due, too"
        assert sum(proxy.requests[one] for one in ("DELETE", "POST")) == 1, "all objects at once"
        assert proxy.requests["HEAD"] <= 3, "the positions, the record, and an object that must be there"
        assert store.stats()["segments"] == 0

        proxy.reset()
        for _ in range(10):
            clock.advance(60)
            store.maintain()
        assert sum(proxy.requests.values()) <= 2, f"an idle node writes only its record: {proxy.requests}"


def test_an_unchanged_position_is_not_fetched_again(tmp_path: Path, s3_server: S3Server, proxy: CountingProxy) -> None:
    """While data wait, a poll compares the etag."""
    clock, url = ManualClock(), s3_server.url()
    with _open(tmp_path / "node", url, s3_server, proxy, clock) as store:
        _fill(store, 2)
        store.maintain()
        reader = FleetReader(open_objects(ObjectLocation.from_url(url, s3_server.options())))
        reader.read()
        reader.acknowledge()
        _fill(store, 1)
        clock.advance(301)
        store.maintain()
        store.maintain()
        proxy.reset()
        clock.advance(280)
        store.maintain()
        clock.advance(25)
        store.maintain()
        assert proxy.requests["GET"] == 0
        assert proxy.requests["HEAD"] <= 2
        assert store.stats()["segments"] == 1
