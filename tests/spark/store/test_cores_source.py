"""
A store on several cores is one stream: offsets have a position for each core, and cores are added and removed. No
Spark.
"""

import json
import shutil

import pyarrow as pa
import pytest
from needed import needs

import quiver
from quiver.bundle import BundleRef
from quiver.errors import DataLossError, DirectoryInUseError, UsageError
from quiver.settings import Settings
from quiver.spark.spark_features import STREAM_LIMITS, ReadAllAvailable, ReadMaxBytes, from_arrow_schema
from quiver.spark.store.source import QuiverDataSource
from quiver.store.reading.offsets import CoresOffset, StreamOffset

SCHEMA = from_arrow_schema(pa.schema([("id", pa.int64())]))
ALL = ReadAllAvailable()


@pytest.fixture
def readers():
    """Return a function that makes the source side of a query; all of them are closed at the end."""
    made = []

    def make(path, **options):
        given = {"path": str(path), "slot": "30", "subscriber": "query"} | options
        made.append(QuiverDataSource(given).streamReader(schema=SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def opened(path, cores):
    return quiver.open(path, Settings(delete_grace_s=0), cores=cores, background=False)


def ingest(store, ids, cores):
    for i in ids:
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [i]})}), core=i % cores)
    store.seal()


def read(reader, start, end):
    parts = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    return sorted(row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist())


@needs(STREAM_LIMITS)
def test_all_cores_are_one_stream(tmp_path, readers):
    """Each bundle once; the same offsets select the same bundles; committed bundles are deleted in every core."""
    with opened(tmp_path, 3) as store:
        reader = readers(tmp_path)
        start = reader.initialOffset()
        ingest(store, range(9), 3)
        end = reader.latestOffset(start, ALL)
        assert read(reader, start, end) == list(range(9))
        assert reader.reportLatestOffset() == end
        assert reader.latestOffset(end, ALL) == end
        store.maintain()
        assert store.stats()["segments"] == 0
        ingest(store, range(9, 12), 3)
        later = reader.latestOffset(end, ALL)
        assert read(reader, end, later) == [9, 10, 11]
        store.maintain()
        assert store.stats()["segments"] == 3
        reader.commit(later)
        store.maintain()
        assert store.stats()["segments"] == 0


@needs(STREAM_LIMITS)
def test_an_added_core_is_read_from_its_beginning(tmp_path, readers):
    """Also by a query that started at the latest position, and again if the batch is planned again."""
    with opened(tmp_path, 2) as store:
        ingest(store, range(4), 2)
        reader = readers(tmp_path, startingoffsets="latest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ALL) == start
    with opened(tmp_path, 3) as store:
        ingest(store, range(10, 16), 3)
        end = reader.latestOffset(start, ALL)
        assert sorted(end["cores"]) == ["0", "1", "2"]
        assert read(reader, start, end) == list(range(10, 16))
        reader.stop()
        again = readers(tmp_path)
        assert read(again, start, end) == list(range(10, 16))
        assert again.latestOffset(end, ALL) == end


@needs(STREAM_LIMITS)
def test_a_removed_core_keeps_its_last_position(tmp_path, readers):
    """It is removed when everything in it is committed; one that is added again is another store."""
    reader = readers(tmp_path)
    with opened(tmp_path, 2) as store:
        start = reader.initialOffset()
        ingest(store, range(4), 2)
        end = reader.latestOffset(start, ALL)
        reader.commit(end)
    with opened(tmp_path, 1) as store:
        store.maintain()
    assert not (tmp_path / "core_1").exists()
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []
    with opened(tmp_path, 2) as store:
        ingest(store, range(10, 14), 2)
        later = reader.latestOffset(end, ALL)
        assert read(reader, end, later) == list(range(10, 14))
        assert later["cores"]["1"]["store"] != end["cores"]["1"]["store"]


@needs(STREAM_LIMITS)
def test_data_of_a_removed_core_are_reported_or_skipped(tmp_path, readers):
    """If a batch that is repeated needs them."""
    with opened(tmp_path, 2) as store:
        reader = readers(tmp_path)
        start = reader.initialOffset()
        ingest(store, range(4), 2)
        end = reader.latestOffset(start, ALL)
    reader.stop()
    shutil.rmtree(tmp_path / "core_1")
    with pytest.raises(DataLossError, match="which was removed; failOnDataLoss"):
        readers(tmp_path).partitions(start, end)
    assert read(readers(tmp_path, failondataloss="false", subscriber="other"), start, end) == [0, 2]


@needs(STREAM_LIMITS)
def test_limits_are_divided_between_cores(tmp_path, readers):
    """Between those with new data; a batch has at least one bundle of each."""
    with opened(tmp_path, 4) as store:
        reader = readers(tmp_path, maxbundlespertrigger="4")
        start = reader.initialOffset()
        ingest(store, [i for i in range(32) if i % 4 < 2], 4)
        end = reader.latestOffset(start, ReadMaxBytes(1))
        assert read(reader, start, end) == [0, 1, 4, 5]
        reader.prepareForTriggerAvailableNow()
        ingest(store, [100, 101, 102, 103], 4)
        seen = read(reader, start, end)
        while (following := reader.latestOffset(end, ReadMaxBytes(1))) != end:
            seen += read(reader, end, following)
            end = following
        assert sorted(seen) == [i for i in range(32) if i % 4 < 2]


@needs(STREAM_LIMITS)
def test_a_store_that_became_a_core_continues(tmp_path, readers):
    """The checkpoint names the store, whose directory was moved."""
    single = tmp_path / "single"
    with quiver.open(single, Settings(delete_grace_s=0), background=False) as store:
        reader = readers(single)
        start = reader.initialOffset()
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [1]})}))
        store.seal()
        end = reader.latestOffset(start, ALL)
    reader.stop()
    cores = tmp_path / "cores"
    cores.mkdir()
    single.rename(cores / "core_0")
    with opened(cores, 2) as store:
        ingest(store, [10, 11], 2)
        moved = readers(cores)
        later = moved.latestOffset(end, ALL)
        assert read(moved, end, later) == [10, 11]
        with pytest.raises(DataLossError, match="none of these cores"):
            moved.latestOffset({**end, "store": "another"}, ALL)


@needs(STREAM_LIMITS)
def test_another_store_is_refused(tmp_path, readers):
    """All cores differ: this is not the store of the checkpoint."""
    for name in ("a", "b"):
        with opened(tmp_path / name, 2) as store:
            ingest(store, [0, 1], 2)
    end = readers(tmp_path / "a").initialOffset()
    with pytest.raises(DataLossError, match="the checkpoint belongs to store"):
        readers(tmp_path / "b").latestOffset(end, ALL)


def test_a_subscriber_has_one_running_query(tmp_path, readers):
    """In every core."""
    with opened(tmp_path, 2):
        readers(tmp_path).initialOffset()
        with pytest.raises(DirectoryInUseError):
            readers(tmp_path).initialOffset()


def test_batch_reads_include_all_cores(tmp_path):
    """Rows, schemas and times of all; each core has its own positions."""
    with opened(tmp_path, 2) as store:
        ingest(store, range(4), 2)
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [9], "more": ["x"]})}), core=1)
        store.seal()

        def ids(**options):
            source = QuiverDataSource({"path": str(tmp_path), "slot": "30"} | options)
            reader = source.reader(source.schema())
            return [row["id"] for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()]

        assert sorted(ids()) == [0, 1, 2, 3, 9]
        assert QuiverDataSource({"path": str(tmp_path), "slot": "30"}).schema().names == ["id", "more"]
        assert ids(startingtimestamp="2100-01-01T00:00:00Z") == []
        with pytest.raises(UsageError, match="holds 2 cores, each with positions of its own"):
            ids(startingoffsets='{"seq":1}')


def test_offsets_have_one_text():
    """Spark compares it: it is ordered by core number, for any order of the directories."""
    cores = {core: StreamOffset(f"id{core}", BundleRef(core, 1)) for core in (10, 2, 0)}
    text = json.dumps(CoresOffset(cores).to_json())
    assert text == (
        '{"v": 2, "cores": {"0": {"store": "id0", "seq": 0, "idx": 1}, "2": {"store": "id2", "seq": 2, "idx": 1}, '
        '"10": {"store": "id10", "seq": 10, "idx": 1}}}'
    )
    assert CoresOffset.from_json(json.loads(text), {}) == CoresOffset(cores)
    for bad in ({"v": 3, "cores": {}}, {"v": 2}, {"v": 2, "cores": {"x": {}}}, {"v": 2, "cores": {"1": 3}}, 7):
        with pytest.raises(UsageError):
            CoresOffset.from_json(bad, {})
