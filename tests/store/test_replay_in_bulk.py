"""Replay in bulk has the results of replay entry by entry: for logs of any content, torn ones and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiver import Bundle, Settings
from quiver.errors import UnsupportedFormatError
from quiver.observe import InMemoryObserver
from quiver.store.encode import SlotEncoder
from quiver.store.format.wal_entry import WalEntry, WalSlot, encode_entry, read_entry
from quiver.store.segment.accumulator import EncodedRun, EncodedSlot, OpenSegment
from quiver.store.segment.ipc_file import body_length_place, is_one_batch_message
from quiver.store.wal.scan import ScannedEntries
from quiver.testing.crashfs import CrashFileSystem
from store_rig import open_manual

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/replayed"


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = pa.record_batch({"n": [1, 2, 3], "word": ["a", None, "ccc"]})


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def logged(*payloads: bytes, slot: int = 30, fingerprint: bytes = bytes(32)) -> ScannedEntries:
    """The scanned entries of a log with one entry for each payload."""
    log = b"".join(
        encode_entry(WalEntry(0, 70 + number, number, (WalSlot(slot, fingerprint, number, memoryview(payload)),)))
        for number, payload in enumerate(payloads)
    )
    scanned = ScannedEntries(memoryview(log))
    assert scanned.extend(0) == len(log)
    return scanned


def learned(payload: bytes) -> SlotEncoder:
    encoder = SlotEncoder()
    (entry,) = logged(payload)
    assert encoder.encode_logged(entry.entry.slots) is not None
    return encoder


def test_a_run_has_what_single_entries_have():
    encoder = learned(stream(PLAIN))
    empty = PLAIN.slice(0, 0)  # without the field for the number of rows: it has a layout of its own
    scanned = logged(*map(stream, [empty, PLAIN, PLAIN.slice(1), PLAIN.slice(2), empty]))
    scanned.place(1000)
    run = encoder.encode_run(scanned, 1)

    assert run is not None
    singles = [encoder.encode_logged(scanned[at].entry.slots) for at in range(1, 4)]
    assert list(map(bytes, run.messages)) == [bytes(single.slots[0].message) for single in singles]
    assert {id(single.slots[0].stream_schema) for single in singles} == {id(part.stream_schema) for part in run.parts}
    assert encoder.encode_run(scanned, 4) is None
    assert (list(run.row_counts), list(run.ingested_at_ns)) == ([1, 2, 3], [71, 72, 73])
    assert list(run.sequences) == [1, 2, 3]
    assert [run.start_of(at) for at in range(4)] == [*(scanned[at].start for at in range(1, 4)), scanned[3].end]
    assert [run.nbytes(at, at + 1) for at in range(3)] == [single.nbytes for single in singles]
    assert run.nbytes(0, 3) == sum(single.nbytes for single in singles)


def test_a_run_ends_at_a_gap():
    """Entries of a later version, or damage, may be between two bundles: a run has one position after another."""
    scanned = logged(*[stream(PLAIN)] * 4)
    without_second = scanned.needed(lambda sequence, _end: sequence == 1, position_end=0, sequence_end=9)
    encoder = learned(stream(PLAIN))
    assert [one.sequence for one in without_second] == [0, 2, 3]
    assert len(encoder.encode_run(without_second, 0)) == 1
    assert len(encoder.encode_run(without_second, 1)) == 2


def test_a_run_has_entries_of_several_schemas_and_layouts():
    """Empty batches have a layout of their own; each part of a run knows its slot and schema."""
    other = pa.record_batch({"word": ["x", "y"]})
    encoder = SlotEncoder()
    kinds = [(30, PLAIN), (30, PLAIN.slice(0, 0)), (31, PLAIN), (31, other)]
    order = [0, 0, 1, 0, 2, 3, 3, 1, 2, 0]
    log = [
        WalEntry(0, number, number, (WalSlot(slot, bytes([slot]) * 32, 1, memoryview(stream(batch))),))
        for number, (slot, batch) in enumerate(kinds[kind] for kind in [0, 1, 2, 3, *order])
    ]
    scanned = ScannedEntries(memoryview(b"".join(map(encode_entry, log))))
    scanned.extend(0)
    assert encoder.encode_run(scanned, 0) is None
    for at in range(4):
        assert encoder.encode_logged(scanned[at].entry.slots) is not None
    run = encoder.encode_run(scanned, 4)

    assert run is not None
    assert list(map(bytes, run.messages)) == [kinds[kind][1].serialize().to_pybytes() for kind in order]
    found = []
    for part in run.parts:
        found += [(part.slot, part.stream_schema.schema)] * (part.stop - len(found))
    assert found == [(kinds[kind][0], kinds[kind][1].schema) for kind in order]


def test_layouts_are_not_learned_without_end():
    """Of one schema and slot the first layouts are kept; entries with others are replayed one by one."""
    encoder = SlotEncoder()
    whole = stream(PLAIN)
    start = len(PLAIN.schema.serialize())
    taken = []
    for padding in range(8):  # a longer metadata of the message, as other writers have it
        message = bytearray(whole[start:-8])
        metadata_bytes = int.from_bytes(message[4:8], "little")
        message[8 + metadata_bytes : 8 + metadata_bytes] = bytes(8 * padding)
        message[4:8] = (metadata_bytes + 8 * padding).to_bytes(4, "little")
        scanned = logged(whole[:start] + bytes(message) + whole[-8:])
        assert encoder.encode_logged(scanned[0].entry.slots) is not None
        taken.append(encoder.encode_run(scanned, 0) is not None)
    assert taken == [True] * 4 + [False] * 4


def test_an_entry_with_another_identity_is_not_in_a_run():
    encoder = learned(stream(PLAIN))
    assert encoder.encode_run(logged(stream(PLAIN)), 0) is not None
    assert encoder.encode_run(logged(stream(PLAIN), slot=31), 0) is None
    assert encoder.encode_run(logged(stream(PLAIN), fingerprint=b"f" * 32), 0) is None
    assert encoder.encode_run(logged(stream(pa.record_batch({"n": [1]}))), 0) is None


def test_a_changed_payload_is_in_a_run_only_if_it_is_taken_over_by_itself():
    """Every byte of a payload changed, and every length of it, under a valid checksum."""
    whole = stream(PLAIN)
    encoder = learned(whole)
    changed = [
        *(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in (1, 16, 128)),
        *(whole[:end] for end in range(len(whole))),
        *(whole[:at] + bytes(8) + whole[at:] for at in range(0, len(whole), 8)),
        stream(PLAIN, PLAIN),
        whole + bytes(8),
    ]
    taken = 0
    for payload in changed:
        scanned = logged(payload)
        run = encoder.encode_run(scanned, 0)
        if run is not None:
            taken += 1
            alone = SlotEncoder().encode_logged(scanned[0].entry.slots)
            assert alone is not None
            assert bytes(alone.slots[0].message) == bytes(run.messages[0])
            assert alone.nbytes == run.nbytes(0, 1)
    assert 0 < taken < len(changed)


@settings(max_examples=300)
@given(st.data())
def test_the_decisive_bytes_of_a_message(data):
    """With other bytes after `body_length_place`, a message is still one of a record batch."""
    message = bytearray(PLAIN.serialize())
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(8, 60))] = data.draw(st.integers(0, 255))
    if not is_one_batch_message(memoryview(message)):
        return
    place = body_length_place(memoryview(message))
    if place is None:
        return
    start, end = place
    assert start + 8 <= end
    other = bytes(message[:end]) + data.draw(st.binary(min_size=len(message) - end, max_size=len(message) - end))
    assert is_one_batch_message(memoryview(other))
    longer = bytearray(other) + bytes(8)
    assert not is_one_batch_message(memoryview(longer))
    longer[start : start + 8] = (int.from_bytes(longer[start : start + 8], "little") + 8).to_bytes(8, "little")
    assert is_one_batch_message(memoryview(longer))


def test_a_body_length_that_is_also_another_part_is_not_used():
    """A table may place two fields at the same bytes; then its length cannot be replaced by another one."""
    message = bytearray(PLAIN.serialize())
    table, place_of_body_length = 28, 26
    assert body_length_place(memoryview(message)) == (table + 12, table + 20)
    for field in range(6):  # the table's distance to its vtable, and the type of the header at 5
        message[place_of_body_length] = field
        assert body_length_place(memoryview(message)) is None
    message[place_of_body_length] = 6
    assert body_length_place(memoryview(message)) == (table + 6, table + 14)


# ── the open segment ─────────────────────────────────────────────────────────────────────────────────────────────────


def segments_of(run: EncodedRun, *, in_bulk: bool, bundles_max: int, **limits: int) -> list[tuple[object, ...]]:
    """The manifests of the segments that the run fills, each until it is full."""
    found = []
    added = 0
    while added < len(run):
        segment = OpenSegment(**limits)
        if in_bulk:
            added += segment.append_run(run, added, bundles_max)
        else:
            full, left = False, bundles_max
            while added < len(run) and not full and left:
                part = next(part for part in run.parts if part.stop > added)
                slot = EncodedSlot(part.slot, part.stream_schema, run.row_counts[added], run.messages[added])
                place = run.start_of(added), run.start_of(added + 1), run.nbytes(added, added + 1)
                full = segment.append([slot], run.ingested_at_ns[added], run.sequences[added], *place)
                added, left = added + 1, left - 1
            assert segment.is_full == full
        sealed = segment.seal()
        streams = [(one.slot, one.fingerprint, one.row_count, one.chunk_count) for one in sealed.streams()]
        found.append(
            (
                sealed.manifest().encode(sealed.metadata, "spec"),
                streams,
                sealed.metadata,
                segment.is_full,
                segment.file_bytes,
            )
        )
    return found


@pytest.mark.parametrize(("streams_max", "bundles_max"), [(9, 99), (1, 99), (2, 99), (3, 99), (9, 1), (9, 3)])
def test_a_run_fills_segments_as_single_bundles_do(streams_max, bundles_max):
    encoder = SlotEncoder()
    kinds = [(30, PLAIN), (31, PLAIN), (30, pa.record_batch({"m": [1]}))]
    log = [
        WalEntry(
            0, number, number, (WalSlot(kinds[kind][0], bytes([kind]) * 32, 1, memoryview(stream(kinds[kind][1]))),)
        )
        for number, kind in enumerate([0, 1, 2, 0, 0, 0, 1, 1, 0, 2, 2, 2, 0])
    ]
    scanned = ScannedEntries(memoryview(b"".join(map(encode_entry, log))))
    scanned.extend(0)
    for at in range(3):
        assert encoder.encode_logged(scanned[at].entry.slots) is not None
    run = encoder.encode_run(scanned, 0)
    assert len(run) == 13
    sizes = {run.nbytes(first, stop) + more for first in range(13) for stop in range(first, 14) for more in (0, 1)}
    for bytes_max in sizes:
        fill = partial(segments_of, run, bytes_max=bytes_max, streams_max=streams_max, bundles_max=bundles_max)
        assert fill(in_bulk=True) == fill(in_bulk=False)


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────

BATCHES = [
    PLAIN,
    PLAIN.slice(0, 1),
    PLAIN.slice(0, 0),
    pa.record_batch({"n": [1]}),
    pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode()}),
    pa.record_batch({"observed_time_unix_nano": pa.array([5, 6], pa.timestamp("ns")), "body": ["x" * 300, "y"]}),
]
bundles = st.lists(
    st.one_of(
        st.sampled_from(BATCHES).map(lambda batch: {30: batch}),
        st.sampled_from(BATCHES).map(lambda batch: {31: batch}),
        st.just({30: PLAIN, 31: PLAIN}),
    ),
    max_size=8,
)
repeated = st.lists(st.tuples(bundles, st.integers(1, 12)), min_size=1, max_size=4).map(
    lambda parts: [bundle for part, times in parts for bundle in part * times]
)
WRITING = Settings(segment_bytes_max=1 << 20, wal_rotate_bytes=6_000, wal_bytes_max=1 << 22)


def killed(written: list[dict[int, pa.RecordBatch]]) -> CrashFileSystem:
    fs = CrashFileSystem()
    store = open_manual(fs, settings=WRITING, root=ROOT)
    for slots_of in written:
        store.ingest(Bundle(slots_of))
    return fs.clone_after_kill()


def files_of(fs: CrashFileSystem, directory: str) -> Iterator[tuple[str, bytes]]:
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        yield path, fs.read_all(path, size_max=1 << 22)


def recovered(disk: CrashFileSystem, monkeypatch: pytest.MonkeyPatch | None, **changes: int) -> object:
    """Everything that recovery leaves: log, segments, quarantine, counts, and what remains open."""
    fs = disk.clone_after_kill()
    observer = InMemoryObserver()
    reading = Settings(**{"segment_bytes_max": 1 << 20, "wal_rotate_bytes": 6_000, "wal_bytes_max": 1 << 22, **changes})
    if monkeypatch is not None:
        monkeypatch.setattr(SlotEncoder, "encode_run", lambda *_: None)
    try:
        store = open_manual(fs, settings=reading, root=ROOT, observer=observer)
        stats = store.stats()
        before = dict(files_of(fs, f"{ROOT}/segments"))
        store.seal()
    except UnsupportedFormatError as error:  # the version was changed
        return str(error)
    finally:
        if monkeypatch is not None:
            monkeypatch.undo()
    found = [dict(files_of(fs, f"{ROOT}/{name}")) for name in ("wal", "segments")]
    quarantined = dict(files_of(fs, f"{ROOT}/quarantine")) if fs.exists(f"{ROOT}/quarantine") else {}
    return stats, before, found, quarantined


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    repeated,
    st.sampled_from(
        [
            {},
            {"segment_bytes_max": 1},
            {"segment_bytes_max": 1_500},
            {"segment_bytes_max": 4_000},
            {"segment_bundles_max": 1},
            {"segment_bundles_max": 7},
            {"segment_streams_max": 1},
            {"segment_streams_max": 2},
        ]
    ),
    st.data(),
)
def test_recovery_in_bulk_leaves_what_recovery_by_entry_leaves(written, limits, data):
    """Every file is the same byte for byte, with limits that seal in the middle of a run, and with damage."""
    disk = killed(written)
    with pytest.MonkeyPatch.context() as patch:
        assert recovered(disk, None, **limits) == recovered(disk, patch, **limits)
    logs = [f"{ROOT}/wal/{name}" for name in disk.list_dir(f"{ROOT}/wal") if name.startswith("quiver.wal")]
    path = data.draw(st.sampled_from(logs))
    size = disk.stat(path).size_bytes
    if size:
        at = data.draw(st.integers(0, size - 1))
        file = disk.open_write(path)
        if data.draw(st.booleans()):
            file.truncate(at)
        else:
            file.pwrite(bytes([file.pread(1, at)[0] ^ data.draw(st.integers(1, 255))]), at)
        with pytest.MonkeyPatch.context() as patch:
            assert recovered(disk, None, **limits) == recovered(disk, patch, **limits)


def test_a_torn_log_is_recovered_in_bulk_as_by_entry():
    """The log is truncated inside its last two entries, and bundles of two schemas alternate."""
    disk = killed([{30: BATCHES[number % 2 * 3]} for number in range(8)])
    path = f"{ROOT}/wal/quiver.wal"
    data = disk.read_all(path, size_max=1 << 20)
    for end in [*range(len(data) - 1_100, len(data), 7), *range(len(data) - 40, len(data))]:
        torn = disk.clone_after_kill()
        torn.open_write(path).truncate(end)
        with pytest.MonkeyPatch.context() as patch:
            assert recovered(torn, None) == recovered(torn, patch), end


def test_reading_one_entry_equals_the_run(monkeypatch):
    """What a store with runs delivers is what the log had."""
    written = [{30: PLAIN.slice(number % 3)} for number in range(40)]
    parsed = []
    monkeypatch.setattr(
        "quiver.store.wal.scan.read_entry", lambda view, offset: parsed.append(offset) or read_entry(view, offset)
    )
    store = open_manual(killed(written), settings=WRITING, root=ROOT)
    store.seal()
    subscriber = store.register("all", start="earliest")
    delivered = [handle.bundle[30] for handle in subscriber.next_bundles(100, timeout=0)]
    assert delivered == [bundle[30] for bundle in written]
    assert len(parsed) == 1
