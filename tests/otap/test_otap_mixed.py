"""A view returns the rows of requests and tables in the order in which they were stored."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from otap_oracle import REQUESTS

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle
from quiver.errors import CorruptionError
from quiver.otap import iter_bundles, view_schema
from quiver.spark.exporters.parquet import PartWriter
from quiver.spark.lake.layout import FileLayout
from quiver.spark.lake.staging import DirectoryStaging
from quiver.spark.store.read_partition import METADATA_SCHEMA, PartitionReader
from quiver.store.reading.partitions import BundleRange


def request(first: int, count: int) -> bytes:
    made = REQUESTS["logs"]()
    records = made.resource_logs.add().scope_logs.add().log_records
    for number in range(first, first + count):
        records.add(severity_number=9, severity_text=str(number), attributes=[{"key": "n"}])
    return made.SerializeToString()


def whole(data: bytes) -> Bundle:
    return Bundle({60: pa.RecordBatch.from_arrays([pa.array([data])], schema=OTLP_SCHEMA)})


def spans_of(path, bundles) -> list[BundleRange]:
    with quiver.open(path, quiver.Settings(segment_open_s_max=3600)) as store:
        store.register("kept", start="earliest")
        store.activate()
        for bundle in bundles:
            store.ingest(bundle)
        store.seal()
    segments = sorted(path.glob("segments/*.qseg"))
    return [BundleRange(int(segment.stem), str(segment), 0, 1_000, segment.stat().st_size) for segment in segments]


def reader_of(*, fail: bool = True) -> PartitionReader:
    target = pa.schema([view_schema("logs").field("severity_text"), *METADATA_SCHEMA])
    return PartitionReader("rows", "logs", None, target, fail)


def test_one_read_returns_requests_and_tables(tmp_path):
    """Few rows of tables and many, between requests."""
    spans = spans_of(
        tmp_path,
        [
            whole(request(0, 3)),
            *iter_bundles(request(3, 5), "logs"),
            whole(request(8, 2)),
            *iter_bundles(request(10, 100), "logs"),
            *iter_bundles(request(110, 100), "logs"),
            whole(request(210, 1)),
            Bundle({61: whole(b"")[60]}),
            *iter_bundles(request(211, 2), "logs"),
        ],
    )
    rows = pa.Table.from_batches(list(reader_of().read(spans))).to_pylist()
    assert [row["severity_text"] for row in rows] == [str(number) for number in range(213)]
    found = {}
    for row in rows:
        found.setdefault(row["_index"], []).append(row["_row"])
    assert {index: len(numbers) for index, numbers in found.items()} == {0: 3, 1: 5, 2: 2, 3: 100, 4: 100, 5: 1, 7: 2}
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())


@pytest.mark.parametrize("rows", [2, 200])
def test_invalid_tables_are_reported_and_skipped_if_requested(tmp_path, rows):
    # The metadata mark them as OTAP tables; otherwise the slot would belong to another program.
    resources = pa.array([{"id": 0}] * rows, pa.struct([("id", pa.uint16())]))
    broken = Bundle({30: pa.RecordBatch.from_pydict({"resource": resources, "severity_text": list(range(rows))})})
    spans = spans_of(tmp_path, [whole(request(0, 3)), broken, *iter_bundles(request(3, 100), "logs")])
    with pytest.raises(CorruptionError, match="bundle 0:1 cannot be decoded: LOGS: column severity_text is int64"):
        list(reader_of().read(spans))
    kept = pa.Table.from_batches(list(reader_of(fail=False).read(spans)))
    assert kept.column("severity_text").to_pylist() == [str(number) for number in range(103)]
    assert set(kept.column("_index").to_pylist()) == {0, 2}


def test_parquet_has_rows_of_both_and_other_slots_unchanged(tmp_path):
    """The writer of the Parquet exporter, as it runs in a task."""
    other = Bundle({7: pa.RecordBatch.from_pydict({"x": [1, 2]})})
    spans = spans_of(tmp_path, [whole(request(0, 3)), *iter_bundles(request(3, 100), "logs"), other])
    descriptors = pa.RecordBatch.from_pydict(
        {
            "path": [spans[0].path] * 3,
            "segment": pa.array([spans[0].segment] * 3),
            "index": pa.array(range(3), pa.int32()),
        }
    )
    out = tmp_path / "out"
    writer = PartWriter(DirectoryStaging(str(out), "part"), FileLayout("none"), exported_through={})
    assert list(writer([descriptors]))
    parts = {str(path.parent.relative_to(out)): pq.read_table(path) for path in out.rglob("*.part")}
    assert sorted(parts) == ["logs", "slots/7"]
    assert sorted(map(int, parts["logs"].column("severity_text").to_pylist())) == list(range(103))
