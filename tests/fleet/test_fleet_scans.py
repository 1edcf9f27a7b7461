"""`quiver.read` of a fleet: slots and views of all nodes, or of some, as tables, from the bucket alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from fleet_rig import BUCKET, FleetReader, NodeRig

import quiver
import store_rig
from counting_proxy import CountingProxy
from otlp_requests import LOGS, log_request, otlp_bundle
from quiver.bundle import Bundle
from quiver.errors import CorruptionError, UsageError
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.primitives.checksum import crc32
from quiver.settings import Settings
from quiver.store.format.fleet.names import InboxObject, inbox_folder, segment_key
from quiver.store.reading.read import StoreReader, read
from s3_server import S3Server

NOON = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp()) * 10**9


def two_nodes() -> tuple[NodeRig, NodeRig]:
    """Two nodes in one bucket: three segments with the numbers 0 to 5, and two with 0 to 3."""
    one = NodeRig(fleet_name="edge-1")
    other = NodeRig(one.fs, root="/other", bucket=one.tier, fleet_name="edge-2")
    for rig, segments in ((one, 3), (other, 2)):
        with rig.open() as store:
            rig.fill(store, segments)
            rig.turn(store)
    return one, other


def numbers(reader: StoreReader, **how: object) -> list[int]:
    """The numbers in slot `logs`, sorted."""
    return sorted(reader.scan("logs", ["n"], **how).to_table()["n"].to_pylist())  # type: ignore[arg-type]


def objects_of(rig: NodeRig) -> list[InboxObject]:
    """The objects of a node."""
    return FleetReader(rig.tier).listed()[rig.identity]


def test_all_nodes_or_some() -> None:
    """By name or identity; an unknown one is an error, not an empty table."""
    one, other = two_nodes()
    reader = read(BUCKET, fs=one.fs)
    assert reader.directories() == sorted([one.identity, other.identity])
    assert numbers(reader) == sorted([*range(6), *range(4)])
    assert numbers(reader, nodes=["edge-1"]) == list(range(6))
    assert numbers(reader, nodes=[other.identity]) == list(range(4))
    assert numbers(reader, nodes=["edge-1", "edge-2", one.identity]) == numbers(reader)
    assert numbers(reader, nodes=[]) == []
    assert len(store_rig.numbers_of(reader.bundles())) == 10
    assert {info.seq for info in reader.segments()} == {0, 1, 2}
    assert reader.slots() == [store_rig.LOGS]
    with pytest.raises(UsageError, match="edge-3"):
        numbers(reader, nodes=["edge-3"])
    with pytest.raises(UsageError, match="write a list"):
        numbers(reader, nodes="edge-1")
    with pytest.raises(UsageError, match="not a fleet"):
        numbers(read("/node", fs=one.fs), nodes=["edge-1"])


def test_rows_have_their_node_and_segment() -> None:
    """Of a slot: after its columns, or where they are named, also alone."""
    one, other = two_nodes()
    reader = read(BUCKET, fs=one.fs)
    places = [(rig.identity, number, number // 2) for rig, count in ((one, 6), (other, 4)) for number in range(count)]

    def rows(names: tuple[str, ...], **how: object) -> list[tuple[object, ...]]:
        table = reader.scan("logs", **how).to_table()  # type: ignore[arg-type]
        return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))

    stored = reader.scan("logs").schema.names
    assert reader.scan("logs", include_metadata=True).schema.names == [*stored, "_node", "_segment"]
    assert rows(("_node", "n", "_segment"), include_metadata=True) == sorted(places)
    assert reader.scan("logs", ["_segment", "n", "_node"]).schema.names == ["_segment", "n", "_node"]
    assert rows(("_node", "n"), columns=["n", "_node"]) == sorted(place[:2] for place in places)
    assert rows(("_node",), columns=["_node"]) == sorted(place[:1] for place in places)
    assert reader.scan("logs", ["_node", "n"], include_metadata=True).schema.names == ["_node", "n", "_segment"]
    assert rows(("_node",), columns=["_node"], nodes=["edge-2"]) == [(other.identity,)] * 4
    assert reader.scan("logs", ["_node"], nodes=[]).to_table().num_rows == 0
    for wrong, problem in ((["_node", "_node"], "twice"), (["_nodes"], "_nodes"), ("_node", "write a list")):
        with pytest.raises(UsageError, match=problem):
            reader.scan("logs", wrong)
    with pytest.raises(UsageError, match="not a fleet"):
        read("/node", fs=one.fs).scan("logs", include_metadata=True)
    with pytest.raises(UsageError, match="_node"):
        read("/node", fs=one.fs).scan("logs", ["_node"])


def test_a_range_of_times_reads_only_its_segments() -> None:
    """The end of each segment decides whether it is fetched."""
    rig = NodeRig()
    times = []
    with rig.open() as store:
        for _ in range(4):
            times.append(rig.clock.now_ns())
            rig.fill(store, 1)
            rig.clock.advance(100)
        rig.turn(store)
    reader = read(BUCKET, fs=rig.fs)
    assert numbers(reader, start=times[1], end=times[3]) == [2, 3, 4, 5]
    assert "segments=2" in repr(reader.scan("logs", start=times[1], end=times[3]))


def test_an_acknowledged_segment_is_left_out() -> None:
    """It may be removed between the plan and the read; a hole that this makes in a listing is not reported."""
    one, other = two_nodes()
    reader = read(BUCKET, fs=one.fs)
    scan = reader.scan("logs", ["n"])
    acked = FleetReader(one.tier)
    acked.read()
    acked.acknowledge()
    with one.open() as store:
        one.turn(store)
    assert objects_of(one) == []
    assert sorted(scan.to_table()["n"].to_pylist()) == numbers(reader) == list(range(4))
    assert reader.problems == []
    assert other.identity in reader.directories()


def test_holes_and_forks_are_reported() -> None:
    """Rows after a hole are read; of a fork, it is unknown which rows are right."""
    one, other = two_nodes()
    (missing,) = [found for found in objects_of(one) if found.last == 1]
    assert missing.crc32 is not None
    one.tier.delete([segment_key(one.identity, 1, missing.crc32)])
    one.tier.put(segment_key(other.identity, 1, 7), b"junk")
    reader = read(BUCKET, fs=one.fs)
    assert numbers(reader) == [0, 0, 1, 1, 4, 5]
    assert {problem.path.split("/")[2]: problem.reason for problem in reader.problems} == {
        one.identity: "segments 1 to 1 are missing",
        other.identity: "two stores with this identity uploaded segment 1; later ones are left out",
    }
    with pytest.raises(CorruptionError, match="missing|two stores"):
        read(BUCKET, fs=one.fs, strict=True).scan("logs")


def test_objects_of_a_hostile_node() -> None:
    """Offsets beyond the data have the right checksum: they are reported, and never read. Other nodes are read."""
    one, other = two_nodes()
    texts = ["aaaa", "bbbb", "cccc"]
    with one.open() as store:
        store.ingest(Bundle({store_rig.LOGS: pa.record_batch({"n": pa.array([7, 7, 7]), "pad": pa.array(texts)})}))
        store.seal()
        one.turn(store)
    (found,) = [found for found in objects_of(one) if found.last == 3]
    assert found.crc32 is not None
    key = segment_key(one.identity, 3, found.crc32)
    data = one.tier.get(key, size_max=1 << 20)
    offsets = pa.array([0, 4, 8, 12], pa.int32()).buffers()[1].to_pybytes()[:16]
    assert data.count(offsets) == 1
    forged = data.replace(offsets, offsets[:12] + b"\xff\xff\xff\x7f")[:-4]
    checksum = crc32(memoryview(forged))
    one.tier.delete([key])
    one.tier.put(segment_key(one.identity, 3, checksum), forged + checksum.to_bytes(4, "little"))
    reader = read(BUCKET, fs=one.fs)
    table = reader.scan("logs").to_table()
    assert sorted(table["n"].to_pylist()) == sorted([*range(6), *range(4)])
    (problem,) = reader.problems
    assert "Arrow data are invalid" in problem.reason
    assert problem.path == segment_key(one.identity, 3, checksum)
    assert store_rig.numbers_of(read(BUCKET, fs=other.fs).bundles()) == table["n"].to_pylist()


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(5000)])
def test_damaged_objects_are_reported(junk: bytes) -> None:
    """With the key of the object; everything else is read."""
    one, _ = two_nodes()
    (found,) = [found for found in objects_of(one) if found.last == 2]
    assert found.crc32 is not None
    one.tier.put(segment_key(one.identity, 2, found.crc32), junk)
    one.tier.put(f"{inbox_folder(one.identity)}/segments/other", junk)
    reader = read(BUCKET, fs=one.fs)
    assert numbers(reader) == sorted([*range(4), *range(4)])
    assert {problem.path for problem in reader.problems} == {segment_key(one.identity, 2, found.crc32)}


def test_a_place_without_a_fleet(tmp_path: Path) -> None:
    """An error, not an empty table."""
    with pytest.raises(UsageError, match="no fleet"):
        quiver.read(f"file://{tmp_path}")
    with pytest.raises(UsageError, match="holds no store"):
        quiver.read(tmp_path)
    with pytest.raises(UsageError, match="options"):
        quiver.read(tmp_path, options={"region": "x"})
    with pytest.raises(UsageError, match="options="):
        quiver.read(f"file://{tmp_path}", objects=open_objects(str(tmp_path)))


def test_views_in_duckdb_polars_and_pandas(tmp_path: Path, s3_server: S3Server) -> None:
    """Of nodes in a real bucket: one listing, the end of each segment, and each segment once."""
    url = s3_server.url()
    with CountingProxy(s3_server.endpoint).running() as proxy:
        options = {**s3_server.options(), "endpoint": proxy.endpoint}
        for number in range(3):
            settings = Settings(
                cold_objects=ObjectLocation.from_url(url, options),
                fleet_name=f"edge-{number}",
                fleet_subscribers=("lake",),
            )
            with quiver.open(tmp_path / str(number), settings, background=False) as store:
                store.ingest(otlp_bundle(log_request(NOON + number, NOON + 10 + number), slot=LOGS))
                store.seal()
                store.maintain()
        reader = quiver.read(url, options=options)
        proxy.reset()
        logs = reader.scan(view="logs", columns=["time_unix_nano"])
        assert proxy.requests["LIST"] == 1
        times = [0, 1, 2, 10, 11, 12]
        rows = duckdb.sql("SELECT time_unix_nano FROM logs ORDER BY 1").fetchall()
        assert [row[0] - NOON for row in rows] == times
        assert proxy.requests["GET range"] <= 6
        assert proxy.requests["GET"] <= 6
        assert [time - NOON for time in sorted(pl.DataFrame(logs)["time_unix_nano"])] == times
        nodes = reader.scan(view="logs", columns=["_node"])
        counts = duckdb.from_arrow(nodes.to_reader()).aggregate("_node, count(*)").fetchall()
        assert sorted(counts) == [(identity, 2) for identity in sorted(reader.directories())]
        assert reader.scan(view="logs", include_metadata=True).schema.names[-2:] == ["_node", "_segment"]
        frame = reader.scan(view="logs", nodes=["edge-1"]).to_table().to_pandas()
        assert [int(time) - NOON for time in frame["time_unix_nano"]] == [1, 11]
