"""A store restored from its object tier, without its former disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from store_cold_rig import WHERE, Rig, drain, number_of
from test_cold_tools import fill, run, settings_with

import quiver
from quiver.errors import ObjectsUnavailableError, UsageError
from quiver.objects.location import ObjectLocation
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.cold.restore import restore_from_tier, stores_in_tier
from quiver.store.cores.instances import instance_roots
from quiver.store.format.cold_list import parse_object_name
from quiver.store.reading.check import check_store
from quiver.store.reading.read import read
from quiver.store.reading.store_files import StoreFiles
from quiver.testing.faultfs import FaultFileSystem
from s3_server import S3Server

pytestmark = pytest.mark.usefixtures("quiet")

NEW = "/new/buffer"


def sent(segments: int = 3) -> tuple[Rig, str]:
    """A closed store whose segments are in the tier, with one more bundle in its log; and its identity."""
    rig = Rig(cold_local_bytes=0, cold_keep_finished_s=1e9)
    with rig.open() as store:
        store.register("one", start="earliest")
        rig.fill(store, segments)
        for _ in range(2):
            store.maintain()
    rig.fs.make_dirs("/new")
    (identity,) = stores_in_tier(rig.tier)
    return rig, identity


def restored(rig: Rig, identity: str, **options):
    fs = options.pop("fs", rig.fs)
    (one,) = restore_from_tier(fs, NEW, rig.tier, WHERE, [identity], clock=rig.clock, **options)
    return one


def opened(rig: Rig):
    return quiver.open(NEW, rig.settings, fs=rig.fs, clock=rig.clock, background=False)


def test_every_segment_is_restored_on_another_disk() -> None:
    """For readers, for subscribers and for new bundles; only the list is on the disk."""
    rig, identity = sent()
    one = restored(rig, identity)
    assert (len(one.segments), one.bundles, one.damaged) == (3, 9, [])
    assert [number_of(bundle) for _, bundle in read(NEW, fs=rig.fs).bundles()] == list(range(9))
    assert check_store(rig.fs, NEW).findings == []
    floor = StoreFiles(rig.fs, NEW).floor()
    assert floor.skipped == range(3, floor.value)
    assert floor.value > 2**32
    with opened(rig) as store:
        rig.fill(store, 1)
        assert drain(store, "one") == list(range(12))
        for _ in range(2):
            store.maintain()
        assert rig.objects()[-1] >= floor.value
    again = rig.clock
    again.advance(1.0)
    (third,) = restore_from_tier(rig.fs, "/third", rig.tier, WHERE, [identity], clock=again)
    assert third.bundles == 12


def test_a_crash_at_any_step_leaves_no_store_or_a_complete_one() -> None:
    """The next call succeeds."""
    rig, identity = sent()
    moments = []
    rig.fs.on_step = lambda *_: moments.extend([rig.fs.clone_after_crash(1), rig.fs.clone_after_kill()])
    restored(rig, identity)
    rig.fs.on_step = None
    made = 0
    for disk in moments:
        if disk.exists(NEW):
            made += 1
        else:
            restored(rig, identity, fs=disk)
        assert disk.list_dir("/new") == ["buffer"]
        assert len(list(read(NEW, fs=disk).bundles())) == 9
    assert 0 < made < len(moments)


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync", "rename", "sync_dir"])
def test_a_disk_error_at_any_call_leaves_no_store(operation) -> None:
    """The next call succeeds."""
    rig, identity = sent()
    fs = FaultFileSystem(rig.fs, path_part=".partial")
    for nth in range(1, 6):
        fs.fail_on(operation, nth)
        try:
            restored(rig, identity, fs=fs)
        except OSError:
            assert not rig.fs.exists(NEW)
        else:
            break
    if not rig.fs.exists(NEW):
        fs.heal()
        restored(rig, identity, fs=fs)
    assert len(list(read(NEW, fs=rig.fs).bundles())) == 9


def test_objects_that_do_not_match_their_names_are_reported() -> None:
    """They are left where they are, and every other segment is restored."""
    rig, identity = sent()
    keys = rig.names()
    tier = rig.tier
    complete = tier.get(keys[0], size_max=1 << 20)
    folder = keys[0].rpartition("/")[0]
    name = parse_object_name(keys[0].rpartition("/")[2])
    assert name is not None
    tier.put(f"{folder}/0000000000000007-00000000.qseg", b"junk" * 1000)
    tier.put(f"{folder}/0000000000000008-{name[1]:08x}.qseg", complete[:-1])
    tier.put(f"{folder}/0000000000000009-{name[1]:08x}.qseg", complete)  # segment 0 again, with another number
    tier.put(f"{folder}/0000000000000010-00000000.qseg", b"")
    tier.put(f"{folder}/0000000000000011-{name[1]:08x}.qseg", b"x" * 100 + complete[-4:])
    tier.put(f"{folder}/deeper/{keys[0].rpartition('/')[2]}", complete)
    tier.put(f"{folder}/notes", b"x")
    tier.put("stores/not-an-identity/segments/0000000000000000-00000000.qseg", b"x")
    before = rig.names()
    one = restored(rig, identity)
    assert [int(key.rpartition("/")[2][:16]) for key in one.damaged] == [7, 8, 9, 10, 11]
    assert [entry.seq for entry in one.segments] == [0, 1, 2]
    assert rig.names() == before
    with opened(rig) as store:
        assert drain(store, "one") == list(range(9))


def test_a_restore_that_cannot_succeed_creates_nothing() -> None:
    """A directory that exists, a store without segments, a tier that does not answer."""
    rig, identity = sent()
    rig.tier.fail_on("get_range", 2)
    with pytest.raises(ObjectsUnavailableError):
        restored(rig, identity)
    with pytest.raises(UsageError, match="no segment of a store below"):
        restored(rig, "00000000-0000-0000-0000-000000000000")
    assert not rig.fs.exists(NEW)
    assert restored(rig, identity, dry_run=True).bundles == 9
    assert not rig.fs.exists(NEW)
    restored(rig, identity)
    with pytest.raises(UsageError, match="exists"):
        restored(rig, identity)


def test_all_cores_of_a_store_are_restored(tmp_path: Path) -> None:
    """Each core has its objects under its own identity; together they are one store again."""
    settings = settings_with(ObjectLocation.from_url(str(tmp_path / "cold")))
    with quiver.open(tmp_path / "buffer", settings, cores=2, background=False) as store:
        for core in range(2):
            fill(store.core(core), 0, 1)
    shutil.rmtree(tmp_path / "buffer")
    place = ("--cold", tmp_path / "cold")
    refused = run("restore", *place, tmp_path / "new", code=2)
    assert "select one with --store" in refused
    looked = json.loads(run("restore", *place, tmp_path / "new", "--dry-run", "--json"))
    assert [one["bundles"] for one in looked] == [3, 3]
    stores = [word for one in looked for word in ("--store", one["store"])]
    run("restore", *place, tmp_path / "new", *stores)
    assert len(instance_roots(REAL_FILES, str(tmp_path / "new"))) == 2
    with quiver.open(tmp_path / "new", settings, cores=2, background=False) as store:
        subscriber = store.register("one", start="earliest")
        got = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(number_of(handle.bundle))
            handle.ack()
    assert sorted(got) == [0, 0, 1, 1, 2, 2]


def test_a_real_bucket_is_restored(s3_server: S3Server, tmp_path: Path, monkeypatch) -> None:
    """By its URL, with credentials from the environment or as options; wrong arguments are refused with a reason."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    url = s3_server.url()
    location = ObjectLocation.from_url(url, s3_server.options())
    with quiver.open(tmp_path / "buffer", settings_with(location), background=False) as store:
        fill(store, 0, 2)
    shutil.rmtree(tmp_path / "buffer")
    options = [word for key, value in s3_server.options().items() for word in ("--option", f"{key}={value}")]
    place = ("--cold", url, *options)
    (one,) = json.loads(run("restore", *place, tmp_path / "new", "--json"))
    assert (one["segments"], one["bundles"], one["damaged"]) == (2, 6, [])
    assert s3_server.secret_key.encode() not in (tmp_path / "new" / "segments" / "quiver.cold").read_bytes()
    reader = quiver.read(tmp_path / "new", objects=location)
    assert [number_of(bundle) for _, bundle in reader.bundles()] == list(range(6))
    assert "exists" in run("restore", *place, tmp_path / "new", code=2)
    assert "takes one directory" in run("restore", *place, tmp_path / "new", tmp_path / "other", code=2)
    assert "need --cold" in run("restore", tmp_path / "new", tmp_path / "other", "--dry-run", code=2)
    assert "give a snapshot" in run("restore", tmp_path / "new", code=2)
    assert "no segment of a store" in run("restore", "--cold", tmp_path, tmp_path / "other", code=2)
