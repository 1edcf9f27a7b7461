"""
Golden bytes, corrupted at random: every decoder answers, for any input, and uses little memory.

With corrected checksums, the code after the checksum is reached, too.
"""

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import format_segments as segments
import pytest

from disk_files import with_new_crc32
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.store.format.audit import AuditRecord, decode_audit, encode_audit_record
from quiver.store.format.cores import decode_claim, encode_claim
from quiver.store.format.cursor import decode_cursor, encode_cursor
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.drop_ledger import DroppedSegment, decode_drop_ledger, encode_drop_ledger
from quiver.store.format.floor import decode_floor, encode_floor
from quiver.store.format.identity import decode_identity
from quiver.store.format.progress import Progress, SegmentProgress, decode_progress, encode_progress
from quiver.store.format.room import decode_cap_note, decode_room_wanted, encode_cap_note, encode_room_wanted
from quiver.store.format.segment.event_times import (
    EVENT_COLUMNS_KEY,
    EVENT_TIMES_KEY,
    EventStream,
    decode_event_columns,
    decode_event_times,
    encode_event_streams,
)
from quiver.store.format.segment.file import decode_directory, decode_segment_footer
from quiver.store.format.segment.manifest import check_manifest, decode_manifest, decode_manifest_summary
from quiver.store.format.snapshot_list import Snapshot, SnapshotFile, decode_snapshot_list, encode_snapshot_list
from quiver.store.format.wal_entry import WalEntry, WalSlot, decode_entry, encode_entry
from quiver.store.format.wal_file import decode_wal_header, encode_wal_header

INPUTS = 400
INPUTS_SLOW = 100_000
MEMORY_BYTES_MAX = 16 * 1024 * 1024

ENTRY = encode_entry(WalEntry(0, 10, 1, tuple(WalSlot(slot, b"f" * 32, 2, memoryview(b"payload")) for slot in (3, 30))))
SEGMENT = segments.build_segment()
FOOTER = decode_segment_footer(memoryview(SEGMENT)).value
DIRECTORY = SEGMENT[FOOTER.directory_offset :][: FOOTER.directory_length]
MANIFEST = SEGMENT[FOOTER.manifest_offset :][: FOOTER.manifest_length]
EVENTS = encode_event_streams([EventStream(0, 1, [1, 2, 3, 4]), EventStream(3, 0, [5, 5, 0, -1])])
COLUMNS_BYTES = len(EVENTS[EVENT_COLUMNS_KEY])


def read_events(view: memoryview) -> object:
    columns = decode_event_columns({EVENT_COLUMNS_KEY: bytes(view[:COLUMNS_BYTES])}, 0)
    if isinstance(columns, Damage):
        return columns
    return decode_event_times(bytes(view[COLUMNS_BYTES:]), columns, {0: 2, 3: 2}, 0)


def read_manifest(view: memoryview) -> object:
    manifest = decode_manifest(view, FOOTER.bundle_count)
    return manifest if isinstance(manifest, Damage) else check_manifest(manifest, decode_directory(DIRECTORY))


def crc_of_entry(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[4:-4]))


def crc_of_list(data: bytes) -> bytes:
    line = data.split(b"\n")[0]
    return line + f"\n{zlib.crc32(line):08x}\n".encode()


def as_it_is(data: bytes) -> bytes:
    return data


Case = tuple[bytes, Callable[[bytes], bytes], Callable[[memoryview], object]]
DROPS = encode_drop_ledger([DroppedSegment(3, 2, 100, "age", 7), DroppedSegment(9, 4, 0, "size", 8)])
PROGRESS = encode_progress(Progress(3, {3: SegmentProgress(70, 5), 4: SegmentProgress(2, 1)}), profile="otap")
LIST = encode_snapshot_list(Snapshot(5, "x", (SnapshotFile("wal/a", 3, 7), SnapshotFile("b", 4, None))))
TRAIL = encode_audit_record(AuditRecord(5, "s", 1, ((0, 3), (7, 7)), "acked")) * 2
CASES: dict[str, Case] = {
    "drop ledger": (DROPS, as_it_is, decode_drop_ledger),
    "drop ledger, checksum right": (DROPS, with_new_crc32, decode_drop_ledger),
    "claim": (encode_claim(4096), with_new_crc32, decode_claim),
    "size cap": (encode_cap_note(4096), with_new_crc32, decode_cap_note),
    "room wanted": (encode_room_wanted(4096), with_new_crc32, decode_room_wanted),
    "cursor": (encode_cursor(4096), as_it_is, decode_cursor),
    "floor": (encode_floor(7), with_new_crc32, decode_floor),
    "identity": (b"3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11\n", as_it_is, decode_identity),
    "progress": (PROGRESS, as_it_is, decode_progress),
    "progress, checksum right": (PROGRESS, with_new_crc32, decode_progress),
    "audit trail": (TRAIL, as_it_is, lambda view: list(decode_audit(bytes(view)))),
    "snapshot list": (LIST, as_it_is, decode_snapshot_list),
    "snapshot list, checksum right": (LIST, crc_of_list, decode_snapshot_list),
    "log header": (encode_wal_header(b"h" * 16, 500), as_it_is, decode_wal_header),
    "log entry": (ENTRY, as_it_is, lambda view: decode_entry(view, 0)),
    "log entry, checksum right": (ENTRY, crc_of_entry, lambda view: decode_entry(view, 0)),
    "segment footer": (SEGMENT[-60:], as_it_is, lambda view: decode_segment_footer(view, size_bytes=len(SEGMENT))),
    "stream directory": (DIRECTORY, as_it_is, decode_directory),
    "manifest": (MANIFEST, as_it_is, read_manifest),
    "manifest summary": (MANIFEST, as_it_is, lambda view: decode_manifest_summary(view, FOOTER.bundle_count)),
    "event times": (EVENTS[EVENT_COLUMNS_KEY] + EVENTS[EVENT_TIMES_KEY], as_it_is, read_events),
    "a segment, told": (SEGMENT, with_new_crc32, lambda view: STORE_FILES.describe("0000000000000001.qseg", view)),
    "a log, told": (
        encode_wal_header(b"h" * 16, 500) + ENTRY * 2,
        as_it_is,
        lambda view: STORE_FILES.describe("quiver.wal", view),
    ),
}


def hurt(data: bytes, rng: random.Random) -> bytes:
    """*data* with a few bits flipped, bytes and numbers set to extremes, pieces taken out, put in, or moved."""
    hurting = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(max(1, len(hurting)))
        size = rng.choice((1, 2, 4, 8, 16))
        number = rng.choice((0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, len(hurting), rng.getrandbits(32)))
        way = rng.randrange(5)
        if way == 0 and hurting:
            hurting[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            hurting[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
        elif way == 2:
            del hurting[at : at + size]
        elif way == 3:
            hurting[at:at] = rng.randbytes(size)
        else:
            other = rng.randrange(max(1, len(hurting)))
            hurting[at : at + size] = hurting[other : other + size]
    return bytes(hurting)


def fuzz(case: Case, inputs: int) -> None:
    golden, mended, decode = case
    rng = random.Random(inputs)
    known = decode(memoryview(mended(golden)))
    assert not isinstance(known, (Damage, NeedMore))
    tracemalloc.start()
    try:
        for _ in range(inputs):
            data = mended(hurt(golden, rng))
            answer = decode(memoryview(data))
            if isinstance(answer, Frame):
                assert 0 < answer.end <= max(len(data), len(SEGMENT))
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_every_decoder_answers(name):
    """It never raises, never answers beyond the end, and never takes what a length in the bytes asks for."""
    fuzz(CASES[name], INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_decoder_answers_for_long(name):
    """The same, with many more inputs."""
    fuzz(CASES[name], INPUTS_SLOW)
