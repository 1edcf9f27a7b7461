"""The permissions of the page are enough for a node, and keep it out of the rest of the bucket: on a real S3 server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import quiver
import store_rig
from quiver.errors import AccessDeniedError, ObjectsUnavailableError
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.settings import Settings
from quiver.store.format.fleet.acks import AckedNode, encode_acks
from quiver.store.format.fleet.names import acks_key
from quiver.store.reading.fleet.inbox import list_inbox
from quiver.store.store import Store
from s3_server import BUCKET, S3Server, prepare_weed, start_weed, stop

ROOT = "fleet-a"
OTHER = "3effffff-0000-4000-8000-000000000001"


def identity_of(name: str, server: S3Server, *actions: str) -> dict[str, object]:
    """An identity in the configuration of the server."""
    keys = [{"accessKey": server.access_key, "secretKey": server.secret_key}]
    return {"name": name, "credentials": keys, "actions": list(actions)}


def settings_of(server: S3Server) -> Settings:
    """The settings of a node."""
    return Settings(
        cold_objects=ObjectLocation.from_url(f"s3://{BUCKET}/{ROOT}", server.options()),
        fleet_name="edge-17",
        fleet_subscribers=("lake",),
        fleet_ack_poll_s=1e-6,
        delete_grace_s=0.0,
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[S3Server, S3Server]]:
    """The server as an administrator sees it, and as the node `node/` does, whose identity exists already."""
    folder = tmp_path / "s3"
    binary, admin, ports = prepare_weed(folder)
    node = replace(admin, access_key="EDGE" + secrets.token_hex(4), secret_key=secrets.token_hex(16))
    with quiver.open(tmp_path / "node", background=False):
        identity = (tmp_path / "node" / "quiver.id").read_text().strip()
    shard = identity[:2]
    # This server compares a key without * with buckets alone.
    own = [f"inbox/{shard}/{identity}/*", f"nodes/{shard}/{identity}.json*", "quiver-probe/*"]
    allowed = [f"{kind}:{BUCKET}/{ROOT}/{key}" for kind in ("Read", "Write", "List") for key in own]
    allowed.append(f"Read:{BUCKET}/{ROOT}/acks/lake/{shard}*")
    config = {"identities": [identity_of("admin", admin, "Admin"), identity_of("edge", node, *allowed)]}
    (folder / "identities.json").write_text(json.dumps(config))
    process = start_weed(binary, folder, admin, ports, flags=[f"-s3.config={folder / 'identities.json'}"])
    try:
        yield admin, node
    finally:
        stop(process)


def fill(store: Store, segments: int) -> None:
    """Seal and upload this many segments."""
    for number in range(segments):
        store.ingest(store_rig.numbered(number), durable=True)
        store.seal()
    store.maintain()


def is_refused(tier: ObjectTier, key: str) -> bool:
    """Whether an object can neither be written nor be read, nor be listed."""
    refused = 0
    for call in (
        lambda: tier.put(key, b"x"),
        lambda: tier.get(key, size_max=100),
        lambda: list(tier.list_below(key.rpartition("/")[0])),
    ):
        try:
            call()
        except (AccessDeniedError, ObjectsUnavailableError):
            refused += 1
    return refused == 3


def test_a_node_with_the_permissions_of_the_page(tmp_path: Path, servers: tuple[S3Server, S3Server]) -> None:
    """It uploads, is acknowledged, and removes its segments."""
    admin, node = servers
    theirs = open_objects(ObjectLocation.from_url(f"s3://{BUCKET}/{ROOT}", admin.options()))
    with quiver.open(tmp_path / "node", settings_of(node), background=False) as store:
        fill(store, 3)
        assert store.stats()["cold"]["problem"] is None
        ((identity, objects),) = list_inbox(theirs, is_small=True).items()
        assert [one.last for one in objects] == [0, 1, 2]
        position = AckedNode(identity, 3, (2, objects[-1].crc32 or 0))
        theirs.put(acks_key("lake", identity[:2]), encode_acks(identity[:2], 1, [position]))
        store.maintain()
        store.maintain()
        assert store.stats()["cold"]["problem"] is None
        assert store.stats()["segments"] == 0
    assert list_inbox(theirs, is_small=True) == {}


def test_a_node_cannot_use_objects_of_others(servers: tuple[S3Server, S3Server]) -> None:
    """It can neither write nor read segments, records and positions of others, and not list them."""
    admin, node = servers
    root = f"s3://{BUCKET}/{ROOT}"
    keys = [
        f"inbox/3e/{OTHER}/segments/x",
        f"nodes/3e/{OTHER}.json",
        "offsets/lake/0000000000000000",
        "owner/lake/x",
    ]
    theirs = open_objects(ObjectLocation.from_url(root, admin.options()))
    for key in keys:
        theirs.put(key, b"theirs")
    tier = open_objects(ObjectLocation.from_url(root, node.options()), check_access=False)
    for key in keys:
        assert is_refused(tier, key), key
    assert [theirs.get(key, size_max=10) for key in keys] == [b"theirs"] * len(keys)
