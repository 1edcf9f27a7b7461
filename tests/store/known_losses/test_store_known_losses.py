"""
Data losses that are known of another engine with the same formats, each tested on this store.

Each test describes the loss. These tests are about the log and the segments; those of consumers are in
`test_store_known_losses_delivery.py`, and progress that outlives its segments is tested with the subscribers.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from disk_files import read_file, write_file
from quiver import Bundle, InvalidBundleError, Settings, Store, read
from quiver import open as open_store
from quiver.bundle import OTAP
from quiver.primitives.checksum import crc32
from quiver.store.format.wal_entry import WalEntry, WalSlot, encode_entry
from quiver.store.format.wal_file import encode_wal_header
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import ROOT, number_of, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

WAL = f"{ROOT}/wal/quiver.wal"

opened = partial(open_small, wal_rotate_bytes=2_000)


def numbers(store: Store) -> list[int]:
    return [number_of(bundle) for bundle in delivered(store)]


def batch(number: int, size: int = 50) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number]), "pad": ["x" * size]})


def delivered(store: Store, name: str = "s") -> list[Bundle]:
    store.seal()
    subscriber = store.register(name, start="earliest")
    got: list[Bundle] = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        got.append(handle.bundle)
        handle.ack()
    return got


def stream(content: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_batch(content)
    return sink.getvalue().to_pybytes()


def entry(sequence: int, *slots: tuple[int, bytes, pa.RecordBatch], at_ns: int = 1_000) -> bytes:
    """Return an entry as another engine writes it."""
    made = tuple(WalSlot(slot, mark, content.num_rows, memoryview(stream(content))) for slot, mark, content in slots)
    return encode_entry(WalEntry(0, at_ns, sequence, made))


def foreign_log(*entries: bytes) -> CrashFileSystem:
    fs = CrashFileSystem()
    opened(fs).close()
    write_file(fs, WAL, encode_wal_header(OTAP.config_hash, 0) + b"".join(entries))
    return fs


def test_positions_continue_after_rotated_files_were_deleted() -> None:
    """Positions were counted from 0 after a restart: open failed forever, or only 14 of 30 bundles were recovered."""
    fs = CrashFileSystem()
    expected: list[int] = []
    for _ in range(4):
        store = opened(fs)
        # Nothing is consumed, but most log files are deleted, since segments contain their bundles.
        for _ in range(30):
            store.ingest(numbered(len(expected)), durable=True)
            expected.append(len(expected))
        assert len(store.internals.catalog) > 1
        assert int(store.stats()["wal_position"]) > 8_000
        fs = fs.clone_after_crash(0)
    with opened(fs) as store:
        assert numbers(store) == expected


@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
def test_the_cursor_does_not_pass_a_segment_that_was_not_written(end: str) -> None:
    """The disk was full for one segment; the cursor passed it nevertheless, and 500 of 510 bundles were lost."""
    disk = CrashFileSystem()
    clock = ManualClock()
    fs = FaultFileSystem(disk, {"pwrite": 1}, error=errno.ENOSPC, path_part=".qseg", forever=True)
    store = opened(fs, clock)
    for number in range(15):
        store.ingest(numbered(number), durable=True)
    assert not len(store.internals.catalog)
    fs.heal()
    clock.advance(5)
    for number in range(15, 35):
        store.ingest(numbered(number), durable=True)
    store.seal()
    if end == "close":
        store.close()
    with opened(disk.clone_after_kill() if end != "power cut" else disk.clone_after_crash(0)) as store:
        assert numbers(store) == list(range(35))


def test_a_kill_between_the_two_renames_of_a_rotation_loses_nothing() -> None:
    """No active file existed; the new one began at position 0, and its bundles were lost at the next crash."""
    fs = CrashFileSystem()
    clones: list[CrashFileSystem] = []

    def before(operation: str, path: str) -> None:
        if operation == "rename" and path == WAL and fs.exists(f"{ROOT}/wal/quiver.wal.1"):
            clones.append(fs.clone_after_kill())

    store = opened(fs, segment_bytes_max=1_000_000)
    fs.on_step = before
    for number in range(20):
        store.ingest(numbered(number), durable=True)
    assert len(clones) > 2
    for killed in clones:
        assert not killed.exists(WAL)
        store = opened(killed, segment_bytes_max=1_000_000)
        store.ingest(numbered(100), durable=True)
        with opened(killed.clone_after_crash(0)) as again:
            got = numbers(again)
        assert got == [*range(len(got) - 1), 100]
        assert len(got) > 3


def test_a_list_of_dictionaries_is_written_to_a_segment() -> None:
    """The segment could not be written, and unrelated bundles were lost with it."""
    kind = pa.list_(pa.dictionary(pa.int8(), pa.string()))
    fs = CrashFileSystem()
    bundles = []
    store = opened(fs)
    for number in range(12):
        tags = pa.array([[f"t{number}", "same"], None, [f"t{number}"]]).cast(kind)
        bundles.append(Bundle({31: pa.record_batch({"tags": tags}), 30: batch(number)}))
        store.ingest(bundles[-1], durable=True)
    for survived in (fs.clone_after_kill(), fs.clone_after_crash(0)):
        with opened(survived) as again:
            got = delivered(again)
        assert [bundle[30] for bundle in got] == [bundle[30] for bundle in bundles]
        assert [bundle[31].schema for bundle in got] == [bundle[31].schema for bundle in bundles]
        assert [bundle[31].to_pylist() for bundle in got] == [bundle[31].to_pylist() for bundle in bundles]


def test_two_schemas_with_one_fingerprint_are_distinguished() -> None:
    """Another writer's fingerprint was the same for two schemas; from then on the directory could not be opened."""
    mark = bytes(range(32))
    one, two = batch(1), pa.record_batch({"n": pa.array([2], pa.int8()), "other": [True]})
    fs = foreign_log(entry(0, (30, mark, one)), entry(1, (30, mark, two)), entry(2, (30, mark, one)))
    with opened(fs) as store:
        assert [bundle[30] for bundle in delivered(store)] == [one, two, one]
        assert len(store.internals.catalog) == 1


def test_slots_in_any_order_are_read_by_their_ids() -> None:
    """A writer may list slots in any order: the id decides, not the position."""
    mark = bytes(32)
    ascending = entry(0, (30, mark, batch(1)), (31, mark, pa.record_batch({"k": ["v"]})))
    # Swap the two blocks and compute the checksum again, as the other engine writes them.
    first = 42 + len(stream(batch(1)))
    body = ascending[4:29] + ascending[29 + first : -4] + ascending[29 : 29 + first]
    fs = foreign_log(ascending[:4] + body + crc32(body).to_bytes(4, "little"))
    with opened(fs) as store:
        (bundle,) = delivered(store)
        assert bundle.slots == (30, 31)
        assert bundle[30] == batch(1)


@pytest.mark.parametrize("where", ["rotated", "active"])
def test_one_flipped_byte_in_the_log_costs_one_entry(where: str) -> None:
    """One flipped byte in the oldest file lost every entry; in the active file, all later ones."""
    fs = CrashFileSystem()
    store = opened(fs, segment_bytes_max=1_000_000)
    for number in range(24):
        store.ingest(numbered(number), durable=True)
    fs = fs.clone_after_kill()
    path = f"{WAL}.1" if where == "rotated" else WAL
    data = bytearray(read_file(fs, path))
    data[38 + 120] ^= 1
    write_file(fs, path, bytes(data))
    seen = [bundle[30]["n"][0].as_py() for _, bundle in read(ROOT, fs=fs).bundles()]
    with opened(fs) as store:
        got = numbers(store)
    assert got == seen == sorted(got)
    assert len(got) == 23
    assert any(name.endswith(".damaged") for name in fs.list_dir(f"{ROOT}/quarantine"))


def test_an_entry_cannot_list_a_slot_twice() -> None:
    """The bitmap of the entry had one bit for two slots, so it and all later entries were lost."""
    with pytest.raises(InvalidBundleError, match="twice"):
        Bundle({30: batch(1), "logs": batch(2)})
    mark = bytes(32)
    good = [entry(number, (30, mark, batch(number))) for number in range(4)]
    twice = bytearray(entry(9, (30, mark, batch(9)), (31, mark, batch(9))))
    second = 29 + 42 + len(stream(batch(9)))
    twice[second : second + 2] = (30).to_bytes(2, "little")
    twice[-4:] = crc32(memoryview(twice)[4:-4]).to_bytes(4, "little")
    with opened(foreign_log(*good[:2], bytes(twice), *good[2:])) as store:
        assert numbers(store) == [0, 1, 2, 3]


def test_an_unknown_entry_type_is_skipped() -> None:
    """It prevented the engine from starting; here it is skipped by its length."""
    mark = bytes(32)
    future = encode_entry(WalEntry(7, 0, 0, ()))
    with opened(foreign_log(entry(0, (30, mark, batch(0))), future, entry(1, (30, mark, batch(1))))) as store:
        assert numbers(store) == [0, 1]


def test_an_entry_that_is_not_a_bundle_is_quarantined() -> None:
    """Its checksum is valid, but its payload is not Arrow: the others are recovered, and its bytes are quarantined."""
    mark = bytes(32)
    odd = encode_entry(WalEntry(0, 1, 1, (WalSlot(30, mark, 1, memoryview(b"not a stream")),)))
    fs = foreign_log(entry(0, (30, mark, batch(0))), odd, entry(2, (30, mark, batch(2))))
    for _ in range(2):
        with opened(fs) as store:
            assert numbers(store) in ([0, 2], [])
    (name,) = fs.list_dir(f"{ROOT}/quarantine")
    assert read_file(fs, f"{ROOT}/quarantine/{name}") == odd


@pytest.mark.parametrize(
    "header",
    [b"", b"\0", bytes(13), bytes(38), bytes(4096), b"QUIVER", encode_wal_header(OTAP.config_hash, 0)[:37]],
    ids=["empty", "1 zero", "13 zeros", "38 zeros", "4096 zeros", "magic cut", "37 bytes"],
)
@pytest.mark.parametrize("siblings", [False, True])
def test_a_log_file_without_a_header_does_not_prevent_opening(header: bytes, siblings: bool) -> None:
    """An active file of zeros or shorter than a header was refused; next to rotated files it began at position 0."""
    fs = CrashFileSystem()
    store = opened(fs, segment_bytes_max=1_000_000)
    count = 0
    if siblings:
        while not fs.exists(f"{WAL}.2"):
            store.ingest(numbered(count), durable=True)
            count += 1
        count -= 1  # the bundle in the new active file, which is lost with it
    fs = fs.clone_after_kill()
    write_file(fs, WAL, header)
    for number in range(2):
        store = opened(fs, segment_bytes_max=1_000_000)
        store.ingest(numbered(100 + number), durable=True)
        fs = fs.clone_after_crash(0)
    with opened(fs) as store:
        assert numbers(store) == [*range(count), 100, 101]


@pytest.mark.parametrize("behind", [bytes(5_000), bytes(range(1, 256)) * 3, b"\x19\0\0\0"], ids=["0", "junk", "length"])
def test_bytes_after_the_last_entry_are_overwritten(behind: bytes) -> None:
    """Zeros or invalid bytes after the last entry end the log; the next entry follows the last one directly."""
    fs = CrashFileSystem()
    store = opened(fs)
    for number in range(4):
        store.ingest(numbered(number), durable=True)
    fs = fs.clone_after_kill()
    write_file(fs, WAL, read_file(fs, WAL) + behind)
    store = opened(fs)
    store.ingest(numbered(4), durable=True)
    with opened(fs.clone_after_crash(0)) as again:
        assert numbers(again) == list(range(5))


def test_times_at_the_limits_of_the_format_are_preserved() -> None:
    """Times outside of the limits are refused with a reason."""
    fs = CrashFileSystem()
    stamps = [2**63 - 1, 0, 2**63 - 1, 1]
    store = opened(fs)
    for stamp in stamps:
        store.ingest(Bundle({30: batch(0)}, ingested_at_ns=stamp), durable=True)
    for stamp in (-1, 2**63, 1.5):
        with pytest.raises(InvalidBundleError, match="ingested_at_ns"):
            store.ingest(Bundle({30: batch(0)}, ingested_at_ns=stamp))  # type: ignore[arg-type]
    with opened(fs.clone_after_crash(0)) as again:
        assert [bundle.ingested_at_ns for bundle in delivered(again)] == stamps


def test_bundles_of_every_shape_are_preserved() -> None:
    """Without slots, rows or columns, with all slots, and larger than a log file."""
    no_columns = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    bundles = [
        Bundle({}),
        Bundle({slot: pa.record_batch({"slot": [slot]}) for slot in range(64)}),
        Bundle({30: batch(0).slice(0, 0)}),
        Bundle({30: pa.RecordBatch.from_arrays([], schema=pa.schema([]))}),
        Bundle({30: no_columns}),
        numbered(1, size=30_000),
        Bundle({}),
    ]
    fs = CrashFileSystem()
    store = opened(fs)
    for bundle in bundles:
        store.ingest(bundle, durable=True)
    store.seal()
    for survived in (fs, fs.clone_after_crash(0)):
        with opened(survived.clone_after_kill()) as again:
            got = delivered(again)
        assert got == bundles
        assert got[4][30].num_rows == 3


@pytest.mark.parametrize("first", ["wal", "segment_only"])
def test_switching_the_durability_at_any_crash_loses_nothing(first: str) -> None:
    """Each mode recovers the files of the other: no sealed or logged bundle is lost or duplicated."""
    fs = CrashFileSystem()
    promised: list[int] = []
    attempted = 0
    mode = first
    for turn in range(6):
        store = opened(fs, durability=mode)
        for _ in range(13):
            store.ingest(numbered(attempted), durable=True)
            attempted += 1
            if mode == "wal":
                promised.append(attempted - 1)
        fs = fs.clone_after_crash(0) if turn % 2 else fs.clone_after_kill()
        mode = "wal" if mode == "segment_only" else "segment_only"
    with opened(fs) as store:
        got = numbers(store)
    assert got == sorted(set(got))
    assert set(promised) <= set(got) <= set(range(attempted))


def test_a_clock_that_steps_back_does_not_change_the_order() -> None:
    """The order is that of ingest; a segment has its earliest and latest time."""
    fs = CrashFileSystem()
    clock = ManualClock()
    with opened(fs, clock, segment_bytes_max=1_000_000) as store:
        for number in range(10):
            clock.set_wall_ns(10**18 - number * 10**15)
            store.ingest(numbered(number))
        store.seal()
        (info,) = store.internals.catalog.segments()
        assert (info.ingested_min_ns, info.ingested_max_ns) == (10**18 - 9 * 10**15, 10**18)
        assert numbers(store) == list(range(10))


@pytest.mark.parametrize("rotate_bytes", [1, 300, 301, 302])
def test_rotation_works_at_its_limits(rotate_bytes: int) -> None:
    """One file per entry, and a file that ends exactly at its target, with the minimum number of files."""
    fs = CrashFileSystem()
    for turn in range(3):
        store = opened(fs, wal_rotate_bytes=rotate_bytes, wal_files_max=2)
        for number in range(15):
            store.ingest(numbered(100 * turn + number), durable=True)
            assert store.stats()["wal_files"] <= 2
        fs = fs.clone_after_crash(0)
    with opened(fs, wal_rotate_bytes=rotate_bytes, wal_files_max=2) as store:
        assert numbers(store) == [100 * turn + number for turn in range(3) for number in range(15)]


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP])
def test_segments_are_written_without_permission_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """
    Upstream #2039: on a share that refuses chmod no segment could be completed, and all bundles
    stayed in the log.
    """

    def refuse(*_: object) -> None:
        raise OSError(error, "not on this share")

    monkeypatch.setattr(os, "fchmod", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    settings = Settings(segment_bytes_max=4_000, wal_rotate_bytes=2_000, wal_bytes_max=80_000, delete_grace_s=0.0)
    for turn in range(2):
        with open_store(tmp_path, settings, background=False) as store:
            for number in range(20):
                store.ingest(numbered(20 * turn + number), durable=True)
            assert numbers(store) == list(range(20 * turn, 20 * turn + 20))
            store.maintain()
            assert not len(store.internals.catalog)


def test_a_replaced_dictionary_does_not_prevent_the_segment() -> None:
    """
    Upstream #2557: with a second dictionary in one stream the segment could not be written,
    and its data was lost.
    """
    fs = CrashFileSystem()
    kind = pa.dictionary(pa.uint8(), pa.string())
    bundles = [
        Bundle({30: pa.record_batch({"tag": pa.array([f"{turn}-{row}" for row in range(40)]).cast(kind)})})
        for turn in range(12)
    ]
    store = opened(fs, segment_bytes_max=1_000_000)
    for bundle in bundles:
        store.ingest(bundle, durable=True)
    store.seal()
    assert len(store.internals.catalog) == 1
    with opened(fs.clone_after_crash(0)) as again:
        got = delivered(again)
    # 480 words do not fit the keys: the keys are not widened, and the dictionary is not replaced by plain text.
    assert [bundle[30].schema for bundle in got] == [bundle[30].schema for bundle in bundles]
    assert [bundle[30].to_pylist() for bundle in got] == [bundle[30].to_pylist() for bundle in bundles]


def test_schemas_that_differ_only_in_metadata_are_distinguished() -> None:
    """Nullability, units and metadata were not part of the fingerprint but of a later check, which failed forever."""
    field, seconds, nanos = pa.field("t", pa.timestamp("s")), pa.timestamp("s"), pa.timestamp("ns")
    schemas = [
        pa.schema([field]),
        pa.schema([field.with_nullable(False)]),
        pa.schema([field.with_type(nanos)]),
        pa.schema([field.with_type(pa.timestamp("s", "UTC"))]),
        pa.schema([field.with_metadata({"encoding": "delta"})]),
        pa.schema([field], metadata={"k": "v"}),
        pa.schema([field.with_type(seconds)]),
    ]
    bundles = [
        Bundle({30: pa.record_batch([pa.array([7], schema.field(0).type)], schema=schema)}) for schema in schemas
    ]
    fs = CrashFileSystem()
    store = opened(fs, segment_bytes_max=1_000_000)
    for bundle in bundles:
        store.ingest(bundle, durable=True)
    with opened(fs.clone_after_crash(0)) as again:
        got = delivered(again)
    for bundle, schema in zip(got, schemas, strict=True):
        assert bundle[30].schema.equals(schema, check_metadata=True)


def test_a_crash_before_the_cursor_is_written_duplicates_nothing() -> None:
    """A crash between the rename of the segment and that of the cursor put its bundles into a second segment."""
    fs = CrashFileSystem()
    between: list[CrashFileSystem] = []

    def before(operation: str, path: str) -> None:
        if "cursor" in path and any(name.endswith(".qseg") for name in fs.list_dir(f"{ROOT}/segments")):
            between.extend((fs.clone_after_kill(), fs.clone_after_crash(0), fs.clone_after_crash(1)))

    store = opened(fs)
    fs.on_step = before
    for number in range(30):
        store.ingest(numbered(number), durable=True)
    fs.on_step = None
    assert len(between) > 6
    for survived in between:
        with opened(survived) as again:
            got = numbers(again)
        assert got == list(range(len(got)))
        assert got


@pytest.mark.parametrize("how", ["cut", "empty", "zeros", "flipped"])
def test_torn_segment_files_are_reported_and_quarantined(how: str) -> None:
    """Upstream #1792: a torn segment was skipped at each start, and never reported, removed or counted."""
    fs = CrashFileSystem()
    store = opened(fs)
    for number in range(30):
        store.ingest(numbered(number), durable=True)
    paths = [info.path for info in store.internals.catalog.segments()]
    assert len(paths) > 2
    fs = fs.clone_after_kill()
    data = read_file(fs, paths[1])
    flipped = bytearray(data)
    flipped[-20] ^= 1  # the footer, which is read at open
    torn = {"cut": data[:-30], "empty": b"", "zeros": bytes(len(data)), "flipped": bytes(flipped)}[how]
    write_file(fs, paths[1], torn)
    name = paths[1].rpartition("/")[2]
    for _ in range(2):
        with opened(fs):
            assert name not in fs.list_dir(f"{ROOT}/segments")
            assert read_file(fs, f"{ROOT}/quarantine/{name}") == torn
        fs = fs.clone_after_crash(0)


def test_slots_are_logged_in_ascending_order() -> None:
    """The document requires it; the engine wrote them in any order, and a reader of the bitmap confused two slots."""
    fs = CrashFileSystem()
    with opened(fs) as store:
        store.ingest(Bundle({45: batch(2), 3: batch(0), 30: batch(1)}), durable=True)
        (entry_read,) = store.recent_wal_entries()
        assert [slot.slot for slot in entry_read.slots] == [3, 30, 45]


def test_a_cursor_after_all_rotated_files_is_kept() -> None:
    """Without rotated files a correct cursor was limited to the length of the active file, and written like that."""
    fs = CrashFileSystem()
    for turn in range(4):
        store = opened(fs, segment_bytes_max=600, wal_rotate_bytes=600)
        for number in range(8):
            store.ingest(numbered(8 * turn + number), durable=True)
        store.seal()
        store.maintain()
        before = store.stats()["wal_position"]
        fs = fs.clone_after_kill()
        with opened(fs) as again:
            assert again._wal.cursor == before
            assert again.stats()["open_bundles"] == 0
        fs = fs.clone_after_kill()
    with opened(fs) as store:
        assert numbers(store) == list(range(32))


def test_reading_does_not_copy_the_payload(tmp_path: Path) -> None:
    """Upstream #2703: each delivery copied the bundle; here its buffers are in the mapped file."""
    table = pa.record_batch({"n": pa.array(range(200_000))})
    with open_store(tmp_path, background=False) as store:
        subscriber = store.register("s", start="earliest")
        store.ingest(Bundle({30: table}))
        store.seal()
        before = pa.total_allocated_bytes()
        with subscriber.next_bundle(timeout=0) as handle:
            assert handle.bundle[30].num_rows == 200_000
            assert pa.total_allocated_bytes() - before < 50_000
