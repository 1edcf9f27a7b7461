"""Segments of a hostile node with valid checksums of any bytes: each is read or rejected, none fails a task."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest
from nodes import LAKE, Node

from quiver.objects.memory import MemoryObjects
from quiver.objects.opening import open_objects
from quiver.primitives.checksum import crc32
from quiver.spark.fleet import segment_rows
from quiver.spark.fleet.segment_rows import FleetRows
from quiver.store.format.fleet.names import InboxObject, key_of
from quiver.store.reading.fleet.inbox import list_node
from quiver.store.reading.fleet.options import parse_fleet_options
from quiver.store.reading.fleet.rejected import list_rejected
from quiver.store.reading.fleet.subscriber import FleetSegment

HOSTILE = "ffffffff-0000-4000-8000-000000000001"


def hostile_objects(data, rounds, chance):
    """Yield objects with a few changed bytes, a part removed, or a part repeated, each with its checksum."""
    for number in range(rounds):
        changed = bytearray(data[:-4])
        how = chance.randrange(4)
        if how == 0:
            start, end = sorted(chance.sample(range(len(changed)), 2))
            del changed[start:end]
        elif how == 1:
            start, end = sorted(chance.sample(range(len(changed)), 2))
            changed[start:end] = os.urandom(end - start)
        else:
            for _ in range(chance.randint(1, 4)):
                changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        checksum = crc32(changed)
        yield InboxObject(number, number, checksum, len(changed) + 4), bytes(changed) + checksum.to_bytes(4, "little")


@pytest.mark.parametrize("slot", [False, True])
@pytest.mark.parametrize("rounds", [150, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_changed_segments_with_valid_checksums(tmp_path, monkeypatch, rounds, slot):
    """Also those that Arrow would read beyond its buffers without validation."""
    bucket = str(tmp_path / "bucket")
    node = Node(tmp_path / "a", "a", bucket)
    if slot:
        node.send_slot(pa.record_batch({"n": pa.array(range(20)), "text": [f"row {k}" for k in range(20)]}))
    else:
        node.send([1, 2], [3])
    origin = open_objects(bucket)
    one = list_node(origin, node.identity)[0]
    data = origin.get(key_of(node.identity, one), size_max=1 << 20)
    tier = MemoryObjects()
    segments = []
    chance = random.Random(os.environ.get("QUIVER_TEST_SEED", "1"))
    for found, made in hostile_objects(data, rounds, chance):
        tier.put(key_of(HOSTILE, found), made)
        segments.append(FleetSegment(1, HOSTILE, found))
    given = {"slot": "30"} if slot else {"view": "logs"}
    options = parse_fleet_options({"path": bucket, "subscriber": LAKE, **given})
    target = pa.schema([("n", pa.int64()), ("text", pa.string())] if slot else [("time_unix_nano", pa.int64())])
    monkeypatch.setattr(segment_rows, "_tier_of", lambda _: tier)
    for batch in FleetRows(options, target).read(segments):
        batch.validate(full=True)
    rejected = list_rejected(tier, LAKE)
    assert rounds // 2 < len(rejected) < rounds
