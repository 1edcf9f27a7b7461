"""The data source `quiver-aof`: the methods that Spark calls, without Spark, and a few reads with it."""

from __future__ import annotations

import pickle

import pytest
from needed import batch_end, limited, needs

import quiver
from quiver.aof import AofConfig, AofManager, Retention, TierConfig
from quiver.errors import CorruptionError, DataLossError, UnknownRecordError, UsageError
from quiver.spark.aof.source import AofDataSource
from quiver.spark.spark_features import STREAM_LIMITS, InputPartition, ReadAllAvailable, ReadMaxBytes, to_arrow_schema

FIELDS = ["record_id", "timestamp", "ext_id", "payload"]


class Log:
    """A log on disk that is opened and closed for each change."""

    def __init__(self, path) -> None:
        self.root = path
        self.path = path / "orders"
        self.written: dict[int, bytes] = {}

    def fill(self, segments, *, records=3, size=10, config=None) -> None:
        with AofManager.open(str(self.root), config, background=False) as manager:
            log = manager.log("orders")
            for _ in range(segments):
                data = [b"%06d" % (len(self.written) + part) + b"." * size for part in range(records)]
                self.written |= dict(zip(log.append_records_with_timeout(data, 5, ext_id=7), data, strict=True))
                log.force_rollover(timeout=5)
            manager.maintain()

    def source(self, **options) -> AofDataSource:
        given = {"path": str(self.path), **{key.lower(): str(value) for key, value in options.items()}}
        return AofDataSource(given)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "aof")


def rows_of(reader, partitions, schema) -> list[dict]:
    reader = pickle.loads(pickle.dumps(reader))
    declared = to_arrow_schema(schema)
    rows = []
    for partition in partitions:
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert declared.equals(batch.schema)
            rows += batch.to_pylist()
    return rows


def read(made) -> list[dict]:
    reader = made.reader(schema=made.schema())
    return rows_of(reader, reader.partitions(), made.schema())


def payloads(made) -> list[bytes]:
    return [row["payload"] for row in read(made)]


def test_records_are_read_with_all_columns(log):
    """Id, time, ext_id, payload and position; or only some of them."""
    log.fill(3)
    rows = read(log.source())
    assert [list(row) for row in rows] == [FIELDS] * 9
    assert {row["record_id"]: row["payload"] for row in rows} == log.written
    assert {row["ext_id"] for row in rows} == {7}
    assert [row["record_id"] for row in rows] == sorted(log.written)
    rows = read(log.source(columns="payload,record_id", includeMetadata="true"))
    assert list(rows[4]) == ["payload", "record_id", "_segment", "_offset", "_timestamp_ns"]
    assert rows[4]["_segment"] << 32 | rows[4]["_offset"] == rows[4]["record_id"]
    assert payloads(AofDataSource({"path": str(log.root), "log": "orders"})) == list(log.written.values())


def test_an_empty_log_has_no_rows(log):
    """There are no partitions, or, as Spark makes it, an empty one."""
    log.fill(0)
    made = log.source()
    assert read(made) == []
    assert list(made.reader(schema=made.schema()).read(InputPartition(None))) == []


@pytest.mark.parametrize("away", ["warm", "cold"])
def test_cold_segments_are_read_in_place(log, tmp_path, away):
    """From packed files and from objects, without a download to the log."""
    objects = str(tmp_path / "cold")
    changes = {"objects": objects, "warm_max_bytes": 0} if away == "cold" else {}
    log.fill(4, records=40, config=AofConfig(tiers=TierConfig(tier0_max_bytes=0, **changes)))
    segments = log.path / "segments"
    assert len(list(segments.glob("*.seg"))) == 1
    assert len(list((log.path / "warm").glob("*.zst"))) == (0 if away == "cold" else 3)
    assert payloads(log.source(objects=objects)) == list(log.written.values())
    ids = list(log.written)
    some = payloads(log.source(objects=objects, startingOffsets=ids[50], endingOffsets=ids[90]))
    assert some == list(log.written.values())[50:90]
    assert len(list(segments.glob("*.seg"))) == 1
    if away == "cold":
        with pytest.raises(UsageError, match="no object store was given"):
            read(log.source())


def test_bounds_select_records(log):
    """Record ids and times; the end is exclusive."""
    log.fill(3)
    ids, data = list(log.written), list(log.written.values())
    assert payloads(log.source(startingOffsets=ids[4])) == data[4:]
    assert payloads(log.source(startingOffsets=ids[2], endingOffsets=ids[7])) == data[2:7]
    assert payloads(log.source(startingOffsets="latest")) == []
    assert payloads(log.source(endingOffsets="earliest")) == []
    when = read(log.source(includeMetadata="true"))[3]["_timestamp_ns"] // 1_000_000
    late = payloads(log.source(startingTimestamp=when))
    assert late == data[len(data) - len(late) :]
    assert len(late) >= 6
    assert payloads(log.source(startingTimestamp=when + 10_000_000)) == []
    assert payloads(log.source(startingTimestamp="1970-01-01T00:00:00Z")) == data


@pytest.mark.parametrize("away", ["here", "warm", "cold"])
def test_a_bound_within_a_record_is_refused(log, tmp_path, away):
    """It would look like damage, or, without `failOnDataLoss`, would skip the rest of the segment."""
    objects = str(tmp_path / "cold")
    tiers = TierConfig(tier0_max_bytes=0, warm_max_bytes=0 if away == "cold" else None, objects=objects)
    log.fill(3, config=None if away == "here" else AofConfig(tiers=tiers))
    ids = list(log.written)
    for wrong in (ids[1] + 1, ids[0] + 30, ids[2] + 3):
        for which in ("startingOffsets", "endingOffsets"):
            for fails in ("true", "false"):
                with pytest.raises(UnknownRecordError, match="none begins at"):
                    read(log.source(objects=objects, failOnDataLoss=fails, **{which: wrong}))
    for lawful in (0, ids[0], ids[1], ids[2] + 40, ids[2] + 5000, ids[-1] + 40, 9 << 32):
        expected = [data for record_id, data in log.written.items() if record_id >= lawful]
        assert payloads(log.source(objects=objects, startingOffsets=lawful)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "1"}, "did you mean startingOffsets"),
        ({"startingOffsets": "soon"}, "earliest, latest or a record id"),
        ({"startingOffsets": "1", "startingTimestamp": "2"}, "contradict"),
        ({"columns": "payload,nothing"}, "no column 'nothing'"),
        ({"columns": "payload,payload"}, "is repeated"),
        ({"maxRowsPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"objects": "{"}, "expected a URL, a directory or JSON"),
        ({"log": "a/b"}, "not a valid name of a log"),
        ({"path": ""}, "needs the directory"),
    ],
)
def test_invalid_options_are_refused_early(log, options, words):
    """The error names the option."""
    with pytest.raises(UsageError, match=words):
        log.source(**options).schema()


def test_a_missing_log_is_an_error(tmp_path):
    """With a message of one sentence."""
    made = AofDataSource({"path": str(tmp_path)})
    with pytest.raises(UsageError, match="holds no append-only log"):
        made.reader(schema=made.schema()).partitions()


def batches(log, **options) -> list[list[bytes]]:
    """Return the batches of a stream, each read by a new reader as after a restart."""
    found = []
    made = log.source(**options)
    at = made.streamReader(schema=made.schema()).initialOffset()
    while True:
        reader = made.streamReader(schema=made.schema())
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if end == at:
            return found
        rows = rows_of(reader, reader.partitions(at, end), made.schema())
        found.append([row["payload"] for row in rows])
        at = end
        assert len(found) < 100


@needs(STREAM_LIMITS)
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, {12}),
        ({"maxRowsPerTrigger": 1}, {1}),
        ({"maxRowsPerTrigger": 5}, {5, 2}),
        ({"maxBytesPerTrigger": 1}, {1}),
        ({"maxBytesPerTrigger": 130}, {3}),
    ],
)
def test_a_stream_reads_each_record_once(log, options, sizes):
    """For any limits; a batch has at least one record."""
    log.fill(4)
    found = batches(log, **options)
    assert [one for batch in found for one in batch] == list(log.written.values())
    assert {len(batch) for batch in found} == sizes


@needs(STREAM_LIMITS)
def test_a_stream_continues_after_its_offset(log):
    """Offsets do not change while nothing new is durable, across restarts of the writer and growth of the tail."""
    log.fill(1)
    made = log.source()
    reader = made.streamReader(schema=made.schema())
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert reader.reportLatestOffset() == at
    with AofManager.open(str(log.root), background=False) as manager:
        tail = manager.log("orders")
        tail.append_record(b"not durable")
        assert reader.latestOffset(at, ReadAllAvailable()) == at
        tail.flush()
        manager.maintain()
        tail.append_record(b"again")
    reader.prepareForTriggerAvailableNow()
    log.fill(1)
    end = reader.latestOffset(at, ReadAllAvailable())
    rows = rows_of(reader, reader.partitions(at, end), made.schema())
    assert [row["payload"] for row in rows] == [b"not durable", b"again"]
    again = made.streamReader(schema=made.schema())
    last = again.latestOffset(end, ReadMaxBytes(1))
    rows = rows_of(again, again.partitions(end, last), made.schema())
    assert [row["payload"] for row in rows] == list(log.written.values())[3:]
    reader.commit(last)
    reader.stop()


@needs(STREAM_LIMITS)
def test_retired_segments_are_a_loss_only_if_they_were_not_read(log):
    """If the last record was read, nothing is missing, even though its segment is deleted."""
    config = AofConfig(retention=Retention("size", max_total_bytes=1, action="expire"))
    log.fill(2)
    made = log.source()
    reader = made.streamReader(schema=made.schema())
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadAllAvailable())
    log.fill(1, config=config)
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert [row["payload"] for row in rows_of(reader, reader.partitions(middle, end), made.schema())] == list(
        log.written.values()
    )[6:]
    log.fill(2, config=config)
    with pytest.raises(DataLossError, match="are gone"):
        reader.latestOffset(end, ReadMaxBytes(1))
        reader.partitions(end, reader.reportLatestOffset())
    lenient = log.source(failOnDataLoss="false")
    other = lenient.streamReader(schema=made.schema())
    last = other.latestOffset(end, ReadMaxBytes(1 << 30))
    assert len(rows_of(other, other.partitions(end, last), made.schema())) == 3
    with pytest.raises(DataLossError, match="are gone; the log continues with record"):
        read(log.source(startingOffsets=list(log.written)[1]))


def test_damage_stops_a_read_or_is_skipped(log):
    """Depending on the option."""
    log.fill(1)
    path = next((log.path / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[64 + 40 + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        read(log.source())
    kept = list(log.written.values())
    assert payloads(log.source(failOnDataLoss="false")) == [kept[0], kept[2]]


@pytest.mark.parametrize("limit", [1, 300, 1 << 30])
@pytest.mark.parametrize("length", [bytes(4), (100).to_bytes(4, "little"), b"\xff" * 4])
def test_a_bad_length_costs_one_record(log, length, limit):
    """For any sizes of batches and tasks: none of them starts within a record."""
    log.fill(2, records=20, size=50)
    path = min((log.path / "segments").glob("*_*_*.seg"))
    ids, data = list(log.written), list(log.written.values())
    content = bytearray(path.read_bytes())
    content[ids[7] : ids[7] + 4] = length
    path.write_bytes(content)
    lenient = log.source(failOnDataLoss="false", minPartitions=9)
    assert payloads(lenient) == data[:7] + data[8:]
    with pytest.raises(DataLossError, match=rf"records from {ids[7]} up to {ids[8]} are lost"):
        read(log.source())
    reader = lenient.streamReader(schema=lenient.schema())
    at, found = reader.initialOffset(), []
    while (end := batch_end(reader, at, ReadMaxBytes(limit))) != at:
        found += [row["payload"] for row in rows_of(reader, reader.partitions(at, end), lenient.schema())]
        at = end
    assert found == data[:7] + data[8:]
    assert payloads(log.source(startingOffsets=ids[8])) == data[8:]


@pytest.mark.parametrize("away", ["warm", "cold"])
@pytest.mark.parametrize("how", ["gone", "damaged", "cut"])
def test_a_lenient_read_skips_bad_segments(log, tmp_path, away, how):
    """For a batch and a stream: the only copy of a segment is deleted or damaged, and all others are read."""
    objects = str(tmp_path / "cold")
    changes = {"objects": objects, "warm_max_bytes": 0} if away == "cold" else {}
    log.fill(4, records=40, config=AofConfig(tiers=TierConfig(tier0_max_bytes=0, **changes)))
    place = tmp_path / "cold" if away == "cold" else log.path / "warm"
    path = sorted(one for one in place.rglob("*") if one.suffix == ".zst")[1]
    if how == "gone":
        path.unlink()
    else:
        packed = path.read_bytes()
        path.write_bytes(packed[:100] if how == "cut" else packed[:60] + bytes(20) + packed[80:])
    data = list(log.written.values())
    with pytest.raises(DataLossError):
        read(log.source(objects=objects))
    lenient = log.source(objects=objects, failOnDataLoss="false", minPartitions=6)
    kept = [one for one in payloads(lenient) if one in data[40:80]]
    assert len(kept) < (40 if how == "damaged" else 1)
    assert payloads(lenient) == data[:40] + kept + data[80:]
    reader = lenient.streamReader(schema=lenient.schema())
    at, found = reader.initialOffset(), []
    while (end := batch_end(reader, at, ReadMaxBytes(700))) != at:
        found += [row["payload"] for row in rows_of(reader, reader.partitions(at, end), lenient.schema())]
        at = end
    assert found == data[:40] + kept + data[80:]


@pytest.mark.parametrize("where", [0, -96])
def test_a_segment_without_header_or_footer_is_read(log, where):
    """Its name and the adjacent segments contain the same information."""
    log.fill(3)
    path = sorted((log.path / "segments").glob("*_*_*.seg"))[1]
    content = bytearray(path.read_bytes())
    content[where : where + 64 or None] = bytes(64)
    path.write_bytes(content)
    for fails in ("true", "false"):
        assert payloads(log.source(failOnDataLoss=fails)) == list(log.written.values())


def test_an_invalid_checkpoint_is_refused(log, tmp_path):
    """One of another log, one without a valid position, and a stream that would start at latest."""
    log.fill(1)
    other = Log(tmp_path / "other")
    other.fill(1)
    made = log.source()
    reader = made.streamReader(schema=made.schema())
    theirs = other.source().streamReader(schema=made.schema()).initialOffset()
    with pytest.raises(DataLossError, match="belongs to log"):
        reader.partitions(theirs, batch_end(reader, theirs))
    for wrong in ({"v": 2}, {**theirs, "record_id": "x"}):
        with pytest.raises(UsageError, match="not a position"):
            reader.partitions(wrong, batch_end(reader, wrong))
    with pytest.raises(UsageError, match="cannot begin at latest"):
        log.source(startingOffsets="latest").streamReader(schema=made.schema()).initialOffset()


def test_the_directory_of_a_store_is_refused(tmp_path):
    """Although it contains a directory of segments, too."""
    quiver.open(tmp_path / "buf").close()
    with pytest.raises(UsageError, match="holds no append-only log"):
        payloads(AofDataSource({"path": str(tmp_path / "buf")}))


def test_tasks_divide_the_bytes(log):
    """There are at least as many tasks as requested; they read each record once, in order."""
    log.fill(2, records=60, size=500)
    made = log.source(minPartitions=7)
    reader = made.reader(schema=made.schema())
    partitions = reader.partitions()
    assert len(partitions) >= 7
    assert [row["payload"] for row in rows_of(reader, partitions, made.schema())] == list(log.written.values())


def test_spark_reads_and_streams_a_log(log, spark, tmp_path):
    """A count and a sum, and a stream that continues from its checkpoint."""
    log.fill(3)
    frame = spark.read.format("quiver-aof").option("path", str(log.path)).load()
    assert frame.columns == FIELDS
    assert (frame.count(), frame.selectExpr("sum(ext_id)").first()[0]) == (9, 63)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for expected in (9, 12):
        query = (
            spark.readStream.format("quiver-aof")
            .option("path", str(log.path))
            .options(**limited(maxRowsPerTrigger="4"))
            .load()
            .writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = spark.read.parquet(out).orderBy("record_id").collect()
        assert [bytes(row.payload) for row in rows] == list(log.written.values())
        assert len(rows) == expected
        log.fill(1)
