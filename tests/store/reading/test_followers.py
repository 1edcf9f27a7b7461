"""`LogFollower` and `SegmentFollower`: each bundle once and in order, over rotation, restarts and damage."""

import pyarrow as pa
import pytest

import quiver
from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.followers import LogFollower, SegmentFollower

SMALL = quiver.Settings(segment_bytes_max=4000, wal_rotate_bytes=2000, wal_bytes_max=200_000)


def bundle(number):
    return quiver.Bundle({30: pa.record_batch({"n": [number]})})


def numbers(follower):
    return [bundle.batches[30]["n"][0].as_py() for bundle in follower.poll()]


def test_each_bundle_is_read_once_and_in_order(tmp_path):
    """While the log rotates and segments are sealed."""
    with quiver.open(tmp_path / "d", SMALL, background=False) as store:
        store.register("reader", start="earliest")
        store.ingest(bundle(0))
        follower = LogFollower(REAL_FILES, str(tmp_path / "d"))
        found = numbers(follower)
        for n in range(1, 60):
            store.ingest(bundle(n))
            if n % 3 == 0:
                found += numbers(follower)
            if n % 10 == 0:
                store.seal()
                store.maintain()
        found += numbers(follower)
    assert found == list(range(60))
    assert follower.problems == []
    assert numbers(follower) == []


def test_it_can_start_at_the_end(tmp_path):
    with quiver.open(tmp_path / "d", background=False) as store:
        store.ingest(bundle(0))
        follower = LogFollower(REAL_FILES, str(tmp_path / "d"))
        follower.skip_to_end()
        store.ingest(bundle(1))
        assert numbers(follower) == [1]


def test_it_continues_after_the_store_was_reopened(tmp_path):
    with quiver.open(tmp_path / "d", background=False) as store:
        store.ingest(bundle(0))
    follower = LogFollower(REAL_FILES, str(tmp_path / "d"))
    assert numbers(follower) == [0]
    with quiver.open(tmp_path / "d", background=False) as store:
        store.ingest(bundle(1))
        assert numbers(follower) == [1]


def test_a_torn_entry_is_read_when_it_is_complete(tmp_path):
    """It is not damage: the writer has not finished it."""
    with quiver.open(tmp_path / "d", background=False) as store:
        store.ingest(bundle(0))
        before = (tmp_path / "d/wal/quiver.wal").read_bytes()
        store.ingest(bundle(1))
        after = (tmp_path / "d/wal/quiver.wal").read_bytes()
    copy = tmp_path / "copy"
    (copy / "wal").mkdir(parents=True)
    path = copy / "wal" / "quiver.wal"
    path.write_bytes(before)
    follower = LogFollower(REAL_FILES, str(copy))
    assert numbers(follower) == [0]
    changed = next(at for at in range(len(after)) if before[at : at + 1] != after[at : at + 1])
    path.write_bytes(after[: changed + 20])
    assert numbers(follower) == []
    path.write_bytes(after)
    assert numbers(follower) == [1]
    assert follower.problems == []


def test_damage_is_reported_and_the_rest_is_read(tmp_path):
    with quiver.open(tmp_path / "d", background=False) as store:
        for n in range(3):
            store.ingest(bundle(n))
    path = tmp_path / "d/wal/quiver.wal"
    data = bytearray(path.read_bytes())
    follower = LogFollower(REAL_FILES, str(tmp_path / "d"))
    middle = len(bytes(data).rstrip(b"\0")) // 2
    data[middle] ^= 0xFF
    path.write_bytes(data)
    assert numbers(follower) == [0, 2]
    assert len(follower.problems) == 1


def test_a_store_without_a_log_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no log to follow"):
        LogFollower(REAL_FILES, str(tmp_path))


UNLOGGED = quiver.Settings(durability="segment_only")


def test_unlogged_bundles_are_read_when_they_are_sealed(tmp_path):
    """Each once and in order, also after the store was reopened; those of the open segment are not there yet."""
    follower = SegmentFollower(REAL_FILES, str(tmp_path / "d"))
    assert numbers(follower) == []
    with quiver.open(tmp_path / "d", UNLOGGED, background=False) as store:
        store.ingest(bundle(0))
        store.ingest(bundle(1))
        assert numbers(follower) == []
        store.seal()
        assert numbers(follower) == [0, 1]
        store.ingest(bundle(2))
        assert numbers(follower) == []
    assert numbers(follower) == [2]
    with quiver.open(tmp_path / "d", UNLOGGED, background=False) as store:
        store.ingest(bundle(3), durable=True)
        assert numbers(follower) == [3]
    assert (numbers(follower), follower.problems) == ([], [])


def test_segments_can_be_skipped(tmp_path):
    follower = SegmentFollower(REAL_FILES, str(tmp_path / "d"))
    with quiver.open(tmp_path / "d", UNLOGGED, background=False) as store:
        store.ingest(bundle(0), durable=True)
        follower.skip_to_end()
        store.ingest(bundle(1), durable=True)
        assert numbers(follower) == [1]


def test_the_durability_can_change(tmp_path):
    """Together, both followers read each bundle once."""
    followers = []
    for round_, settings in enumerate((SMALL, UNLOGGED, SMALL)):
        with quiver.open(tmp_path / "d", settings, background=False) as store:
            if not followers:
                store.register("reader", start="earliest")
                followers = [one(REAL_FILES, str(tmp_path / "d")) for one in (LogFollower, SegmentFollower)]
            store.ingest(bundle(2 * round_))
            found = [n for one in followers for n in numbers(one)]
            store.ingest(bundle(2 * round_ + 1))
            store.seal()
            found += [n for one in followers for n in numbers(one)]
        assert found == [2 * round_, 2 * round_ + 1]


def test_a_deleted_segment_is_skipped_and_a_damaged_one_is_reported(tmp_path):
    follower = SegmentFollower(REAL_FILES, str(tmp_path / "d"))
    with quiver.open(tmp_path / "d", UNLOGGED, background=False) as store:
        for n in range(4):
            store.ingest(bundle(n), durable=True)
    _, second, _, last = sorted((tmp_path / "d/segments").glob("*.qseg"))
    data = bytearray(second.read_bytes())
    data[100] ^= 0xFF
    second.chmod(0o644)
    second.write_bytes(data)
    polled = follower.poll()
    assert next(polled).batches[30]["n"][0].as_py() == 0
    last.unlink()  # it was listed already
    assert [one.batches[30]["n"][0].as_py() for one in polled] == [2]
    assert [damage.path for damage in follower.problems] == [str(second)]
