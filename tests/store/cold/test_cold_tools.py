"""Commands and copies on a store with an object tier: on a real disk, and with a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from store_cold_rig import SETTINGS, bundle_of, number_of
from typer.testing import CliRunner

import quiver
from quiver.cli.main import build_app
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.store.reading.check import check_store
from quiver.store.store import Store
from s3_server import S3Server

pytestmark = pytest.mark.usefixtures("quiet")


def settings_with(location: ObjectLocation) -> Settings:
    return Settings(
        segment_bytes_max=SETTINGS.segment_bytes_max, delete_grace_s=0.0, cold_objects=location, cold_local_bytes=0
    )


def fill(store: Store, first: int, segments: int) -> None:
    for segment in range(segments):
        for number in range(3):
            store.ingest(bundle_of(first + 3 * segment + number), durable=True)
        store.seal()
        for _ in range(2):
            store.maintain()


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A closed store of three segments. Two are only in a tier next to it; the third was sealed without a tier."""
    root = tmp_path / "buffer"
    settings = settings_with(ObjectLocation.from_url(str(tmp_path / "cold")))
    with quiver.open(root, settings, background=False) as store:
        store.register("one", start="earliest")
        fill(store, 0, 2)
    with quiver.open(root, background=False) as store:
        fill(store, 6, 1)
    assert [path.name for path in (root / "segments").glob("*.qseg")] == ["0000000000000002.qseg"]
    return root


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_verify_also_reads_the_objects(cold: Path, tmp_path: Path) -> None:
    """Valid, damaged and unreachable objects are three different results."""
    report = check_store(REAL_FILES, str(cold))
    assert (report.segment_bundles, report.findings) == (9, [])
    first, second = sorted((tmp_path / "cold").rglob("*.qseg"))
    second.chmod(0o600)
    data = bytearray(second.read_bytes())
    data[200] ^= 1
    second.write_bytes(data)
    found = json.loads(run("verify", cold, "--json", code=1))
    (finding,) = found["findings"]
    assert finding["path"].endswith(second.name)
    assert finding["kind"] == "damaged"
    first.unlink()
    assert len(check_store(REAL_FILES, str(cold)).findings) == 2


def test_unreachable_objects_are_reported_as_unread(cold: Path, tmp_path: Path) -> None:
    """Neither damaged nor valid: a separate exit code, also when another location is given."""
    (tmp_path / "cold").rename(tmp_path / "away")
    (tmp_path / "empty").mkdir()
    for options in ((), ("--objects", tmp_path / "empty")):
        found = json.loads(run("verify", cold, *options, "--json", code=3))
        assert (found["damaged"], found["unread"]) == (False, 2)
        assert {one["kind"] for one in found["findings"]} == {"not reached"}
    assert "nothing that was read is damaged; 2 not read" in run("verify", cold, code=3)
    assert json.loads(run("verify", cold, "--objects", tmp_path / "away", "--json"))["unread"] == 0


def test_verify_reads_every_object_at_a_given_location(tmp_path: Path) -> None:
    """Also those of segments with a local file: later they may be the only copies."""
    root, where = tmp_path / "buffer", tmp_path / "cold"
    settings = Settings(cold_objects=ObjectLocation.from_url(str(where)), segment_bytes_max=SETTINGS.segment_bytes_max)
    with quiver.open(root, settings, background=False) as store:
        store.register("one", start="earliest")
        fill(store, 0, 3)
    first, second, third = sorted(where.rglob("*.qseg"))
    for path in (first, second):
        path.chmod(0o600)
    first.write_bytes(first.read_bytes()[:-9])
    second.unlink()
    run("verify", root)
    found = json.loads(run("verify", root, "--objects", where, "--json", code=1))
    assert [one["path"].rpartition("/")[2] for one in found["findings"]] == [first.name, second.name]
    assert {one["kind"] for one in found["findings"]} == {"damaged"}
    first.unlink()
    third.unlink()
    assert json.loads(run("verify", root, "--objects", where, "--json", code=3))["unread"] == 3


@pytest.mark.parametrize("how", ["lost", "older"])
def test_unlisted_segments_are_reported(tmp_path: Path, how: str) -> None:
    """The list was lost with its mark, or is that of a backup, so readers do not find these segments."""
    root, where = tmp_path / "buffer", tmp_path / "cold"
    settings = settings_with(ObjectLocation.from_url(str(where)))
    kept = root / "segments" / "quiver.cold"
    with quiver.open(root, settings, background=False) as store:
        store.register("one", start="earliest")
        fill(store, 0, 2)
        older = kept.read_bytes()
        fill(store, 6, 2)
    assert "nothing is damaged" in run("verify", root, "--objects", where)
    if how == "lost":
        kept.unlink()
        (root / "quiver.tier").unlink()
    else:
        kept.write_bytes(older)
    found = json.loads(run("verify", root, "--objects", where, "--json", code=1))
    (finding,) = found["findings"]
    count, first = (4, 0) if how == "lost" else (2, 2)
    assert f"does not contain {count} segments in the object tier, from {first} to 3" in finding["reason"]


def test_stats_count_segments_that_are_only_in_the_tier(cold: Path, tmp_path: Path) -> None:
    """From the list, without accessing the tier."""
    (tmp_path / "cold").rename(tmp_path / "away")
    found = json.loads(run("stats", cold, "--json"))
    assert (found["segments"], found["bundles"], found["cold_segments"]) == (3, 9, 2)
    assert found["cold_bytes"] == sum(path.stat().st_size for path in (tmp_path / "away").rglob("*.qseg"))
    assert found["segment_bytes"] == sum(path.stat().st_size for path in (cold / "segments").glob("*.qseg"))
    assert found["subscribers"][0]["lag_bundles"] == 9
    assert not (tmp_path / "cold").exists()


def test_inspect_prints_the_list(cold: Path) -> None:
    """The segments, their states, and the location."""
    found = json.loads(run("inspect", cold / "segments" / "quiver.cold", "--json"))
    assert (found["kind"], found["fields"]["verified"]) == ("cold list", 2)


def test_a_snapshot_contains_the_segments_of_the_tier(cold: Path, tmp_path: Path) -> None:
    """Segments that are not on the disk are fetched; a store that is restored from it needs no tier."""
    run("snapshot", cold, tmp_path / "copy")
    (tmp_path / "cold").rename(tmp_path / "away")
    run("verify", tmp_path / "copy")
    run("restore", tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again" / "segments" / "quiver.cold").exists()
    reader = quiver.read(tmp_path / "again")
    assert [number_of(bundle) for _, bundle in reader.bundles()] == list(range(9))


def test_migrate_refuses_and_changes_nothing(cold: Path) -> None:
    """The objects would keep the other profile."""
    assert "snapshot" in run("migrate", cold, "--profile", "otap", code=2)
    reader = quiver.read(cold)
    assert [number_of(bundle) for _, bundle in reader.bundles()] == list(range(9))


def test_repair_does_not_change_the_tier(cold: Path) -> None:
    """Without damage, and without loss."""
    run("repair", cold)
    with quiver.open(cold, background=False) as store:
        subscriber = store.register("one", start="earliest")
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(number_of(handle.bundle))
            handle.ack()
        assert got == list(range(9))


def test_a_real_bucket_has_the_segments_of_a_store(s3_server: S3Server, tmp_path: Path) -> None:
    """
    Upload, removal of local files, reading by subscriber, reader and scan, deletion; no secret is in the list or a
    message.
    """
    location = ObjectLocation.from_url(s3_server.url(), s3_server.options())
    root = tmp_path / "buffer"
    with quiver.open(root, settings_with(location), background=False) as store:
        fill(store, 0, 3)
        assert list((root / "segments").glob("*.qseg")) == []
        data = (root / "segments" / "quiver.cold").read_bytes()
        assert s3_server.secret_key.encode() not in data
        assert s3_server.access_key.encode() not in data
        tier = open_objects(location, writable=False)
        assert len(list(tier.list_below("stores"))) == 3
        reader = quiver.read(root, objects=location)
        assert [number_of(bundle) for _, bundle in reader.bundles()] == list(range(9))
        assert pa.table(store.scan(30)).num_rows == 18
        subscriber = store.register("one", start="earliest")
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(number_of(handle.bundle))
            handle.ack()
        assert got == list(range(9))
        for _ in range(2):
            store.maintain()
        assert list(tier.list_below("stores")) == []
        tier.close()


def test_bad_credentials_do_not_prevent_ingest(s3_server: S3Server, tmp_path: Path) -> None:
    """The store opens, ingests and seals; the problem is reported without the secret."""
    location = ObjectLocation.from_url(s3_server.url(), s3_server.options(secret_key="wrong-" + "x" * 20))
    with quiver.open(tmp_path / "buffer", settings_with(location), background=False) as store:
        fill(store, 0, 2)
        figures = store.stats()["cold"]
        assert (figures["segments"], figures["waiting"]) == (0, 2)
        assert figures["problem"]
        assert "wrong-" not in figures["problem"]
