"""`quiver fleet`: nodes and readers as the bucket shows them."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fleet_rig import FleetReader
from typer.testing import CliRunner

import quiver
import store_rig
from quiver.cli.fleet.prometheus import FLEET_GAUGES
from quiver.cli.main import build_app
from quiver.errors import ObjectsUnavailableError
from quiver.objects.directory import DirectoryObjects
from quiver.objects.opening import open_objects
from quiver.objects.retrying import RetryingObjects
from quiver.settings import Settings
from quiver.store.fleet import node
from quiver.store.format.fleet.acks import AckedNode, encode_acks
from quiver.store.format.fleet.names import acks_key, inbox_folder, node_key, segment_key
from quiver.store.reading.fleet.checks import CHECKS
from quiver.store.reading.fleet.rejected import reject
from quiver.store.reading.fleet.survey import survey
from quiver.store.store import Store

DAY_S = 86_400
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "fleet.md").read_text(encoding="utf-8")


@dataclass
class Fleet:
    """A bucket in a directory, and nodes beside it."""

    folder: Path

    @property
    def bucket(self) -> Path:
        """The directory of the bucket."""
        return self.folder / "fleet"

    def open(self, name: str, *, directory: str | None = None, **fleet: object) -> Store:
        """Open a node, without threads."""
        described = {"name": name, "subscribers": ["lake"], "labels": {"site": "Graz"}, "ack_poll": "1us", **fleet}
        cold = {"objects": str(self.bucket), "fleet": described}
        settings = Settings.from_mapping({"cold": cold, "retention": {"delete_grace": 0, "size_cap": "1GiB"}})
        return quiver.open(self.folder / (directory or name), settings, background=False)

    def fill(self, name: str, segments: int, **fleet: object) -> str:
        """Upload this many segments, close the node, and return its identity."""
        with self.open(name, **fleet) as store:
            for number in range(segments):
                store.ingest(store_rig.numbered(number), durable=True)
                store.seal()
            store.maintain()
        return self.identity(name)

    def identity(self, name: str) -> str:
        """The identity of a node."""
        return (self.folder / name / "quiver.id").read_text().strip()

    def reader(self) -> FleetReader:
        """A reader of the fleet."""
        return FleetReader(open_objects(str(self.bucket)))

    def run(self, command: str, *arguments: object, code: int = 0) -> str:
        """Run a command and return its output."""
        words = ["fleet", command, str(self.bucket), *map(str, arguments)]
        result = CliRunner().invoke(build_app(), words)
        assert result.exit_code == code, result.output
        return result.output

    def json(self, command: str, *arguments: object, code: int = 0) -> Any:
        """Run a command with --json."""
        return json.loads(self.run(command, *arguments, "--json", code=code))

    def age(self, identity: str, seconds: float) -> None:
        """Make the record of a node older."""
        at_s = time.time() - seconds
        os.utime(self.bucket / node_key(identity), (at_s, at_s))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A fleet without nodes."""
    (tmp_path / "fleet").mkdir()
    return Fleet(tmp_path)


def test_list_has_figures_as_numbers(fleet: Fleet) -> None:
    """Those that a node reports, and those of its objects in the bucket."""
    identity = fleet.fill("edge-1", 3)
    fleet.fill("edge-2", 1)
    first, second = fleet.json("list")
    assert [first["name"], second["name"]] == ["edge-1", "edge-2"]
    assert (first["identity"], first["state"], first["inbox_segments"]) == (identity, "stopped", 3)
    assert first["inbox_bytes"] == sum(one.size_bytes for one, _ in _objects(fleet, identity))
    assert (first["disk_cap_bytes"], first["labels"]) == (1 << 30, {"site": "Graz"})
    assert 0 <= first["seen_s"] < 600
    assert abs(first["clock_difference_s"]) < 600
    assert "edge-2" in fleet.run("list")


def _objects(fleet: Fleet, identity: str) -> list[Any]:
    return survey(open_objects(str(fleet.bucket))).nodes[identity].objects


def test_a_node_that_does_not_report_is_silent(fleet: Fleet) -> None:
    """A stopped one is not, however long ago it stopped."""
    stopped = fleet.fill("stopped", 1)
    fleet.age(stopped, DAY_S)
    with fleet.open("killed") as store:
        store.maintain()
        fleet.age(fleet.identity("killed"), DAY_S)
        states = {one["name"]: one["state"] for one in fleet.json("list")}
        assert states == {"killed": "silent", "stopped": "stopped"}
        report = fleet.json("doctor", "--clock-max", "1000d", code=1)
    assert [(one["check"], one["node"]) for one in report["findings"] if one["check"] != "reader"] == [
        ("silent", "killed")
    ]


def test_lag_of_readers(fleet: Fleet) -> None:
    """Segments, bytes and age of what was not acknowledged, for each reader and node."""
    read, unread = fleet.fill("read", 2), fleet.fill("unread", 3)
    reader = fleet.reader()
    reader.read()
    del reader.at[unread]
    reader.acknowledge()
    (lake,) = fleet.json("lag")
    assert (lake["subscriber"], lake["nodes"], lake["nodes_behind"], lake["lag_segments"]) == ("lake", 2, 1, 3)
    assert [one["identity"] for one in lake["of_nodes"]] == [unread, read]
    assert lake["lag_bytes"] == sum(one.size_bytes for one, _ in _objects(fleet, unread))
    assert 0 <= lake["oldest_s"] < 600
    assert "nodes with lag" in fleet.run("lag", "--subscriber", "lake")
    assert "no reader other" in fleet.run("lag", "--subscriber", "other", code=2)


def test_show_describes_all_nodes_of_a_name(fleet: Fleet) -> None:
    """Two machines may have the same name."""
    with fleet.open("twin") as first, fleet.open("twin", directory="second") as second:
        first.maintain()
        second.maintain()
    found = fleet.json("show", "twin")
    assert {one["identity"] for one in found} == {fleet.identity("twin"), fleet.identity("second")}
    assert [one["readers"][0]["subscriber"] for one in found] == ["lake", "lake"]
    (one,) = fleet.json("show", fleet.identity("second"))
    assert one["identity"] == fleet.identity("second")
    assert "Graz" in fleet.run("show", "twin")
    assert "no node" in fleet.run("show", "other", code=2)


def test_retire_removes_a_node_that_was_read(fleet: Fleet) -> None:
    """Refused before, also for a node that may be running."""
    identity = fleet.fill("old", 2)
    kept = fleet.fill("kept", 1)
    assert "has not acknowledged 2 segments" in fleet.run("retire", "old", code=2)
    reader = fleet.reader()
    reader.read()
    reader.acknowledge()
    quarantined = fleet.bucket / inbox_folder(identity) / "quarantine" / "copy"
    quarantined.parent.mkdir()
    quarantined.write_bytes(b"x")
    assert fleet.json("retire", "old", "--dry-run")["segments"] == 2
    assert len(_objects(fleet, identity)) == 2
    found = fleet.json("retire", "old")
    assert (found["segments"], found["others"]) == (2, 1)
    assert [one["identity"] for one in fleet.json("list")] == [kept]
    assert not [one for one in (fleet.bucket / "inbox").rglob("*") if one.is_file() and identity in str(one)]
    with fleet.open("kept") as store:
        store.maintain()
        assert "may be running" in fleet.run("retire", "kept", code=2)


def test_a_retired_node_continues(fleet: Fleet) -> None:
    """It starts again: nothing is lost, and nothing is read twice."""
    identity = fleet.fill("back", 2)
    reader = fleet.reader()
    reader.read()
    reader.acknowledge()
    fleet.run("retire", "back")
    with fleet.open("back") as store:
        store.maintain()
        assert store.stats()["cold"]["problem"] is None
        store.ingest(store_rig.numbered(7), durable=True)
        store.seal()
        store.maintain()
        reader.read()
    assert (reader.numbers[identity], reader.problems) == ([0, 1, 7], {})


def test_retire_continues_after_a_failure(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the node is removed last, so the same command finds the rest."""
    identity = fleet.fill("old", 2)
    reader = fleet.reader()
    reader.read()
    reader.acknowledge()
    delete, calls = DirectoryObjects.delete, 0

    def fails_once(objects: DirectoryObjects, keys: Iterable[str]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ObjectsUnavailableError("delete", "nodes", "the server is away")
        delete(objects, keys)

    monkeypatch.setattr(DirectoryObjects, "delete", fails_once)
    monkeypatch.setattr(RetryingObjects, "_tried", lambda _, call: call(1))
    assert "away" in fleet.run("retire", "old", code=1)
    assert [one["identity"] for one in fleet.json("list")] == [identity]
    assert fleet.json("retire", "old")["segments"] == 0
    assert fleet.json("list") == []


def test_retire_without_a_reader(fleet: Fleet) -> None:
    """Its unread segments are removed only on request."""
    identity = fleet.fill("old", 2)
    found = fleet.json("retire", identity, "--without", "lake")
    assert found["segments"] == 2
    assert fleet.json("list") == []


def test_doctor_finds_nothing(fleet: Fleet) -> None:
    """A node that was read completely."""
    fleet.fill("edge-1", 2)
    reader = fleet.reader()
    reader.read()
    reader.acknowledge()
    assert fleet.json("doctor")["findings"] == []
    assert "nothing to report" in fleet.run("doctor")


def test_doctor_finds_a_hole_and_a_fork(fleet: Fleet) -> None:
    """With node, number and reader; the other node is not reported."""
    hole, fork, fine = fleet.fill("hole", 3), fleet.fill("fork", 2), fleet.fill("fine", 1)
    objects = open_objects(str(fleet.bucket))
    (missing,) = [one for one, _ in _objects(fleet, hole) if one.last == 1]
    assert missing.crc32 is not None
    objects.delete([segment_key(hole, 1, missing.crc32)])
    objects.put(segment_key(fork, 0, 0xABCD), b"junk")
    for identity, position in ((hole, 0), (fork, 0), (fine, 1)):
        shard = identity[:2]
        objects.put(acks_key("lake", shard), encode_acks(shard, 1, [AckedNode(identity, position)]))
    findings = {one["node"]: one for one in fleet.json("doctor", code=1)["findings"] if one["check"] == "chain"}
    assert "segment 1 is missing" in findings["hole"]["problem"]
    assert "uploaded segment 0" in findings["fork"]["problem"]
    assert "0000abcd" in findings["fork"]["problem"]
    assert set(findings) == {"hole", "fork"}
    assert "Two stores" not in fleet.run("doctor", code=1)


def test_doctor_lists_rejected_segments(fleet: Fleet) -> None:
    """With node, number and reader; whether the node waits there; each once, and not without end."""
    identity, other = fleet.fill("edge-1", 30), fleet.fill("edge-2", 1)
    objects = open_objects(str(fleet.bucket))
    found = {one.last: one for one, _ in _objects(fleet, identity)}
    for number in range(25):
        reject(objects, "lake", 1, identity, found[number], "damaged", "checksum mismatch")
    reject(objects, "lake", 2, identity, found[24], "damaged", "checksum mismatch")
    acked = [AckedNode(identity, 20), AckedNode(other, 1)]
    for shard in {one.identity[:2] for one in acked}:
        of_shard = sorted((one for one in acked if one.identity[:2] == shard), key=lambda one: one.identity)
        objects.put(acks_key("lake", shard), encode_acks(shard, 1, of_shard))
    findings = [one for one in fleet.json("doctor", code=1)["findings"] if one["check"] == "rejected"]
    assert {(one["node"], one["identity"], one["subscriber"]) for one in findings} == {("edge-1", identity, "lake")}
    assert [one["segment"] for one in findings] == [*range(20), None]
    assert "segment 0 was rejected as damaged, and later segments were read: checksum" in findings[0]["problem"]
    assert "5 more segments were rejected, up to segment 24" in findings[-1]["problem"]
    assert "segment 19" in fleet.run("doctor", code=1)
    for info in list(objects.list_below("rejected")):
        if not info.key.endswith("0000000000000024.json"):
            objects.delete([info.key])
    (finding,) = [one for one in fleet.json("doctor", code=1)["findings"] if one["check"] == "rejected"]
    assert (finding["segment"], "the node waits at it" in finding["problem"]) == (24, True)
    fleet.run("retire", "edge-1", "--without", "lake")
    assert list(objects.list_below("rejected")) == []
    assert fleet.json("doctor")["findings"] == []


def test_doctor_reports_clones_clocks_and_readers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node in conflict, one whose clock differs, and a reader that no process runs."""
    monkeypatch.setattr(node, "RECORD_INTERVAL_S", 0.0)
    fleet.fill("origin", 1)
    shutil.copytree(fleet.folder / "origin", fleet.folder / "clone")
    with fleet.open("origin") as store, fleet.open("origin", directory="clone") as clone:
        for one in (store, clone, store):
            one.maintain()
        fleet.age(fleet.identity("origin"), 600)
        findings = fleet.json("doctor", "--silent-after", "1d", code=1)["findings"]
    checks = {one["check"] for one in findings}
    assert {"conflict", "clock", "reader"} <= checks
    assert all(one["advice"] for one in findings)


@pytest.mark.parametrize("junk", [b"", b"{}", b"\xff" * 100, b"x" * 100_000])
def test_damaged_objects_are_reported(fleet: Fleet, junk: bytes) -> None:
    """Records, positions and unknown keys: everything else is shown."""
    identity = fleet.fill("edge-1", 1)
    fleet.fill("edge-2", 1)
    objects = open_objects(str(fleet.bucket))
    objects.put(node_key(identity), junk)
    objects.put(acks_key("lake", identity[:2]), junk)
    objects.put("inbox/zz/stranger", junk)
    findings = fleet.json("doctor", code=1)["findings"]
    assert sum(one["check"] == "damaged" for one in findings) == 3
    states = {one["name"]: one["state"] for one in fleet.json("list")}
    assert states == {identity: "unknown", "edge-2": "stopped"}


def test_metrics_are_prometheus_text(fleet: Fleet) -> None:
    """A parser of Prometheus reads every gauge."""
    parser = pytest.importorskip("prometheus_client.parser")
    fleet.fill("edge-1", 2)
    families = {one.name: one for one in parser.text_string_to_metric_families(fleet.run("metrics"))}
    assert set(families) == set(FLEET_GAUGES)
    (lag,) = families["quiver_fleet_reader_lag_segments"].samples
    assert (lag.labels, lag.value) == ({"subscriber": "lake"}, 2)
    (disk,) = families["quiver_fleet_node_disk_bytes"].samples
    assert disk.labels == {"node": "edge-1", "identity": fleet.identity("edge-1")}


def test_a_place_without_a_fleet(fleet: Fleet, tmp_path: Path) -> None:
    """An empty bucket has no nodes; a directory that does not exist is an error."""
    assert fleet.json("list") == []
    assert "none" in fleet.run("lag")
    result = CliRunner().invoke(build_app(), ["fleet", "list", str(tmp_path / "other")])
    assert result.exit_code == 2
    assert "is not a directory" in result.output


def test_the_page_names_gauges_and_checks() -> None:
    """All of them."""
    assert set(re.findall(r"`(quiver_fleet_\w+)`", PAGE)) == set(FLEET_GAUGES)
    section = PAGE.partition("`quiver fleet doctor` reports:")[2].partition("\n\nGauges")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(CHECKS)
