"""
The store and the Rust engine of the same design open each other's directories, crashed and clean, with equal values.

The engine's driver is built by `make rival-rust`; without it these tests are skipped.
"""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import rust_engine

import quiver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not rust_engine.DRIVER.exists(), reason="the Rust driver is not built: run `make rival-rust`"),
]

OTAP = quiver.Settings(format_profile="otap", segment_open_s_max=3600)
NOW_NS = 1_900_000_000_000_000_000


def plain(number: int, rows: int = 5) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(range(number, number + rows), pa.uint16()),
            "time": pa.array([None, *range(1, rows)], pa.timestamp("ns", "UTC")),
            "ratio": pa.array([number / 3] * rows, pa.float64()),
            "on": pa.array([None, *[row % 2 == 0 for row in range(1, rows)]], pa.bool_()),
            "body": pa.array([None, *[f"body {number} {row} ✓" for row in range(1, rows)]], pa.utf8()),
            "trace": pa.array([bytes([number % 256]) * 16] * rows, pa.binary(16)),
            "raw": pa.array([b"", *[bytes(row % 50) for row in range(1, rows)]], pa.binary()),
        }
    )


def nested(number: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "list": pa.array([[1, None, number], [], None], pa.list_(pa.int32())),
            "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": str(number)}]),
            "large": pa.array(["", None, "l" * number], pa.large_utf8()),
            "exact": pa.array([Decimal("1.25"), None, Decimal(number)], pa.decimal128(12, 2)),
            "span": pa.array([1, None, number], pa.duration("ns")),
        }
    ).replace_schema_metadata({"encoding": "plain"})


def dictionaries(number: int, key: pa.DataType) -> pa.RecordBatch:
    values = [f"service-{number}", None, f"service-{number % 3}", "shared"]
    return pa.record_batch(
        {
            "service": pa.array(values, pa.dictionary(key, pa.utf8())),
            "count": pa.array([number, 2, 3, 4], pa.int64()),
        }
    )


def bundles(count: int, start: int = 0) -> list[quiver.Bundle]:
    """Bundles that differ in slots, schemas, and length, including an empty batch."""
    made = []
    for number in range(start, start + count):
        slots: dict[int, pa.RecordBatch] = {30: plain(number)}
        if number % 2:
            slots[1] = nested(number)
        if number % 3 == 0:
            slots[31] = dictionaries(number, pa.uint16())
        if number % 5 == 0:
            slots[40] = plain(number, 1).slice(0, 0)
        if number % 7 == 0:
            slots[63] = plain(number, 2000)
        made.append(quiver.Bundle(slots, ingested_at_ns=NOW_NS + number))
    return made


def values(slots: object) -> list[tuple[int, pa.Schema, list[dict[str, object]]]]:
    """Return the slots as comparable values and types, as a reader sees them."""
    return [(slot, slots[slot].schema, slots[slot].to_pylist()) for slot in sorted(slots)]


def of(given: list[quiver.Bundle]) -> list[object]:
    return [values(bundle.batches) for bundle in given]


def read_by_store(directory: Path) -> list[object]:
    return [values(bundle.batches) for _, bundle in quiver.read(directory).bundles()]


def read_by_rust(directory: Path) -> list[object]:
    return [values(slots) for _, slots in rust_engine.dump(directory)]


def delivered_by_store(directory: Path, subscriber: str = "reader") -> list[object]:
    with quiver.open(directory, OTAP) as store:
        store.seal()
        reader = store.register(subscriber, start="earliest")
        found = []
        while (handle := reader.next_bundle(timeout=0)) is not None:
            found.append(values(handle.bundle.batches))
            handle.ack()
    return found


def crash(store: quiver.Store, directory: Path) -> Path:
    """Copy the directory of the running *store*, as it would be left if its process died now."""
    left = directory.with_name(f"{directory.name}-crashed")
    shutil.copytree(directory, left)
    store.close()
    return left


@pytest.mark.parametrize("end", ["clean", "abort"])
def test_the_store_reads_data_of_the_rust_engine(tmp_path, end):
    """All its bundles are read while it runs, delivered, and read again."""
    given = bundles(40)
    rust_engine.ingest(tmp_path / "store", given, end=end)

    assert read_by_store(tmp_path / "store") == of(given)
    assert delivered_by_store(tmp_path / "store") == of(given)
    assert read_by_store(tmp_path / "store") == of(given)


def test_rust_reads_a_closed_store(tmp_path):
    """The Rust engine returns all bundles of a store that was closed."""
    given = bundles(40)
    with quiver.open(tmp_path / "store", OTAP) as store:
        for bundle in given[:20]:
            store.ingest(bundle)
        store.seal()
        for bundle in given[20:]:
            store.ingest(bundle, durable=True)

    assert read_by_rust(tmp_path / "store") == of(given)


@pytest.mark.parametrize("durable", [False, True])
def test_rust_reads_a_crashed_store(tmp_path, durable):
    """The Rust engine replays the log of a killed store; with *durable* it has zeros after its end."""
    given = bundles(40)
    store = quiver.open(tmp_path / "store", OTAP)
    for bundle in given[:20]:
        store.ingest(bundle, durable=durable)
    store.seal()
    for bundle in given[20:]:
        store.ingest(bundle, durable=durable)
    store.maintain()
    left = crash(store, tmp_path / "store")

    assert read_by_rust(left) == of(given)


@pytest.mark.parametrize("end", ["clean", "abort"])
def test_both_engines_use_one_directory_in_turn(tmp_path, end):
    """Each continues where the other one was killed or closed; nothing is lost or repeated."""
    directory = tmp_path / "store"
    given = bundles(60)
    rust_engine.ingest(directory, given[:15], end=end)
    store = quiver.open(directory, OTAP)
    for bundle in given[15:30]:
        store.ingest(bundle, durable=True)
    if end == "clean":
        store.close()
    else:
        directory = crash(store, directory)
    rust_engine.ingest(directory, given[30:45], end=end)
    with quiver.open(directory, OTAP) as store:
        for bundle in given[45:]:
            store.ingest(bundle)

    assert read_by_store(directory) == of(given)
    assert read_by_rust(directory) == of(given)


def test_the_store_continues_with_the_progress_of_rust(tmp_path):
    """The store does not deliver bundles that a subscriber acknowledged in the Rust engine."""
    directory = tmp_path / "store"
    given = bundles(30)
    rust_engine.ingest(directory, given, end="clean")
    assert rust_engine.deliver(directory, "both", at_most=12)["bundles"] == 12

    assert delivered_by_store(directory, "both") == of(given)[12:]
    assert delivered_by_store(directory, "other") == of(given)


def test_rust_continues_with_the_progress_of_the_store(tmp_path):
    """The Rust engine does not deliver bundles that a subscriber acknowledged in the store, even out of order."""
    directory = tmp_path / "store"
    with quiver.open(directory, OTAP) as store:
        for bundle in bundles(30):
            store.ingest(bundle)
        store.seal()
        reader = store.register("both", start="earliest")
        handles = [reader.next_bundle(timeout=0) for _ in range(30)]
        for number, handle in enumerate(handles):
            handle.ack() if number % 4 else handle.nack()
        store.maintain()

    reported = rust_engine.deliver(directory, "both")

    assert reported["refs"] == [f"0:{number}" for number in range(0, 30, 4)]


@pytest.mark.parametrize("key", [pa.uint8(), pa.int32(), pa.uint16()], ids=str)
def test_dictionaries_keep_their_values(tmp_path, key):
    """The other engine returns the same value in each row."""
    given = [quiver.Bundle({31: dictionaries(number, key)}, ingested_at_ns=NOW_NS) for number in range(30)]
    rust_engine.ingest(tmp_path / "rust", given, end="clean")
    with quiver.open(tmp_path / "store", OTAP) as store:
        for bundle in given:
            store.ingest(bundle)

    rows = [bundle[31].to_pylist() for bundle in given]
    assert [bundle[31].to_pylist() for _, bundle in quiver.read(tmp_path / "rust").bundles()] == rows
    assert [slots[31].to_pylist() for _, slots in rust_engine.dump(tmp_path / "store")] == rows


def big(number: int) -> quiver.Bundle:
    """A bundle of two megabytes, so that a few dozen fill log files and segments."""
    text = pa.array([f"bundle {number} " * 100] * 1400)
    return quiver.Bundle({30: pa.record_batch({"text": text})}, ingested_at_ns=NOW_NS + number)


def test_the_store_reads_the_rotated_log_of_rust(tmp_path):
    """The Rust engine dies with retired log files, some of them removed: the store recovers everything."""
    given = [big(number) for number in range(1000, 1050)]
    rust_engine.ingest(tmp_path / "store", given, end="abort")

    found = list(quiver.read(tmp_path / "store").bundles())

    active = (tmp_path / "store" / "wal" / "quiver.wal").read_bytes()
    assert int.from_bytes(active[30:38], "little") > 0  # it begins after a file that was removed
    assert [ref for ref, _ in found] == sorted(ref for ref, _ in found)
    assert [bundle for _, bundle in found] == given


def rotating_store(directory: Path, *, purged: bool) -> tuple[Path, list[quiver.Bundle]]:
    """Return the directory of a killed store with retired log files, the first one removed or not, and its bundles."""
    segment_bytes = 1 << 20 if purged else 64 << 20
    settings = quiver.Settings(
        format_profile="otap", segment_open_s_max=3600, wal_rotate_bytes=64 << 10, segment_bytes_max=segment_bytes
    )
    store = quiver.open(directory, settings, background=False)
    given = []
    for bundle in bundles(300):
        store.ingest(bundle, durable=True)
        given.append(bundle)
        names = {path.name for path in (directory / "wal").iterdir()}
        if len(names) > 4 and ("quiver.wal.1" not in names or not purged):
            break
    return crash(store, directory), given


def test_rust_reads_the_rotated_log_of_the_store(tmp_path):
    """A store dies with several log files: the Rust engine recovers everything."""
    left, given = rotating_store(tmp_path / "store", purged=False)

    assert (left / "wal" / "quiver.wal.3").exists()
    assert read_by_rust(left) == of(given)


def test_rust_ignores_the_prepared_log_file(tmp_path):
    """A store dies after it has prepared the next file: it has a header, and a name that the Rust engine ignores."""
    settings = quiver.Settings(format_profile="otap", segment_open_s_max=3600, wal_rotate_bytes=64 << 10)
    store = quiver.open(tmp_path / "store", settings, background=False)
    given = []
    for bundle in bundles(300):
        store.ingest(bundle)
        given.append(bundle)
        store.maintain()
        if (tmp_path / "store" / "wal" / "quiver.wal.next").exists() and store.stats()["wal_files"] == 2:
            break
    left = crash(store, tmp_path / "store")

    assert (left / "wal" / "quiver.wal.next").stat().st_size > 0
    assert read_by_rust(left) == of(given)
    assert read_by_store(left) == of(given)


def test_rust_counts_retired_files_from_zero(tmp_path):
    """
    With the first log file removed and others retired, the Rust engine adds up the sizes of the others instead of
    reading where each begins, and refuses the directory. The store reads such a directory.
    """
    left, given = rotating_store(tmp_path / "store", purged=True)

    assert read_by_store(left) == of(given)
    with pytest.raises(AssertionError, match="safe offset beyond wal tail"):
        rust_engine.dump(left)
