"""A foreign process replaces objects of a log: only their segments are lost, and only while they are replaced."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from aof_as_log import ROOT
from test_aof_restore import NEW, bucket, uploaded, uploading
from test_aof_tiers import objects_in, open_tiered
from tier_samples import cold_disk

from hostile_objects import CHANGES, HostileObjects, Made, little_memory
from quiver.aof import Reader
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, encode_footer, encode_header
from quiver.aof.format.warm_file import (
    FRAME_BYTES,
    FRAMES_MAX,
    PACKED_BYTES_MAX,
    SEEK_ENTRY,
    SEEK_FOOTER,
    SEEK_HEAD,
    SEEK_MAGIC,
    SKIPPABLE_MAGIC,
    encode_seek_table,
)
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.aof.restore import restore_log
from quiver.aof.tiers.packed import PackedSegment
from quiver.errors import CorruptionError, DataLossError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock

pytestmark = pytest.mark.usefixtures("quiet")

VICTIM = 1


def table_of(*sizes):
    """Return a change that keeps the frames and replaces the table by one of these sizes."""

    def change(own, _):
        found = PackedSegment("x", len(own), lambda start, length: own[start : start + length])
        return own[: found.frames[-1].start + found.frames[-1].packed_bytes] + encode_seek_table(sizes)

    return change


def bomb(own, _):
    """Return a segment whose header, footer and table claim a gigabyte: zeros, packed into kilobytes."""
    codec = pa.Codec("zstd")
    found = PackedSegment("x", len(own), lambda start, length: own[start : start + length])
    end = 4097 * FRAME_BYTES
    header = dataclasses.replace(found.header, max_size=end + FOOTER_BYTES)
    footer = dataclasses.replace(found.footer, durable_bytes=found.header.base_offset + end)
    first = encode_header(header) + found.read(HEADER_BYTES, found.end)
    plain = [first + bytes(FRAME_BYTES - len(first)), *[bytes(FRAME_BYTES)] * 4096, encode_footer(footer)]
    zeros = codec.compress(bytes(FRAME_BYTES), asbytes=True)
    packed = [
        zeros if not any(one[:1]) and len(one) == FRAME_BYTES else codec.compress(one, asbytes=True) for one in plain
    ]
    return b"".join(packed) + encode_seek_table([(len(one), len(two)) for one, two in zip(packed, plain, strict=True)])


def many_frames(_own, _other):
    """Return a table that claims more rows than allowed."""
    rest = SEEK_FOOTER.pack(FRAMES_MAX + 1, 0, SEEK_MAGIC)
    return Made(1 << 30, end=SEEK_HEAD.pack(SKIPPABLE_MAGIC, 1 << 29) + rest)


def large_frame(_own, _other):
    """Return two frames, the first of which is packed into almost all of a tebibyte."""
    rows = SEEK_ENTRY.pack(0xFFFF_FFFF, FRAME_BYTES) + SEEK_ENTRY.pack(96, FOOTER_BYTES)
    rest = rows + SEEK_FOOTER.pack(2, 0, SEEK_MAGIC)
    size = 0xFFFF_FFFF + 96 + SEEK_HEAD.size + len(rest)
    return Made(size, end=SEEK_HEAD.pack(SKIPPABLE_MAGIC, len(rest)) + rest)


LIES = {
    "a table with too large sizes": table_of((PACKED_BYTES_MAX, FRAME_BYTES), (96, FOOTER_BYTES)),
    "a table with too small sizes": table_of((10, 100), (10, FOOTER_BYTES)),
    "a table of the largest sizes": table_of(*[(0xFFFF_FFFF, 0xFFFF_FFFF)] * 100),
    "a table of too many frames": many_frames,
    "a table of one huge frame": large_frame,
    "a bomb": bomb,
}
EVERY = CHANGES | LIES
BEGIN_AS_OURS = {"longer", "twice", "a tebibyte that begins as ours"}
"""The complete segment, and bytes after it that no reader needs."""


@pytest.fixture(params=EVERY, ids=str)
def hostile(request):
    """A log of which one object was replaced: disk, objects, key, number, and what was written."""
    fs = cold_disk()
    stream_id, written, lost = uploaded(fs)
    tier = HostileObjects(bucket(fs))
    key, other = objects_in(fs)[VICTIM], objects_in(fs)[VICTIM + 1]
    tier.replace(key, other, EVERY[request.param])
    harmless = request.param in BEGIN_AS_OURS
    return fs, tier, key, stream_id, {**written, lost: b"never uploaded"}, harmless


def test_all_other_records_are_read(hostile):
    """In order and by id, in the program and from another process; the lost ones return with the original object."""
    fs, tier, key, _, written, harmless = hostile
    remain = {one: payload for one, payload in written.items() if harmless or one >> 32 != VICTIM}
    before = objects_in(fs)
    with little_memory(), open_tiered(fs, uploading(), objects=tier) as manager:
        log = manager.log("orders")
        reader = log.open_reader(on_lost="skip")
        assert {record.record_id: bytes(record.payload) for record in reader} == remain
        for record_id, payload in written.items():
            if record_id in remain:
                assert log.read_record(record_id).payload == payload
            else:
                with pytest.raises((CorruptionError, DataLossError)) as raised:
                    log.read_record(record_id)
                assert key in str(raised.value)
        for _ in range(2):
            manager.maintain()
        log.append_record(b"on")
        assert objects_in(fs) == before
        tier.heal()
        assert len(list(log.open_reader())) == len(written) + 1


def test_readers_report_a_hostile_object_once(hostile):
    """The loss is one `DataLossError`; then the reader continues."""
    fs, tier, _, _, written, harmless = hostile
    source = LogFiles(f"{ROOT}/orders", fs=fs, objects="/cold")
    source._copies._tier = tier
    reader = Reader(source, 0)
    got, losses = [], 0
    with little_memory():
        while True:
            try:
                got.extend(record.record_id for record in reader)
                break
            except DataLossError:
                losses += 1
    assert losses == (0 if harmless else 1)
    assert got == [one for one in written if harmless or one >> 32 != VICTIM]


def test_verify_reports_a_hostile_object(hostile):
    """With its key, as damage; it reads little of data that is clearly foreign."""
    fs, tier, key, _, _, _ = hostile
    with little_memory():
        report = check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=True, objects=tier)
    assert [(one.kind, one.path) for one in report.findings if one.kind != "not read"] == [("damaged", key)]


def test_restore_ignores_a_hostile_object(hostile):
    """All other segments exist; without valid records, no value in the object is trusted."""
    fs, tier, key, stream_id, written, _ = hostile
    with little_memory():
        found = restore_log(fs, f"{NEW}/orders", tier, stream_id, clock=ManualClock(), observer=InMemoryObserver())
        report = check_log_directory(fs, "orders", f"{NEW}/orders", read_records=True, objects=tier)
    named = {one.path for one in found.damaged} | {one.path for one in report.findings if one.damaged}
    assert key in named
    assert all(one.segment_id != VICTIM or one.header.base_record_count == 3 for one in found.segments)
    source = LogFiles(f"{NEW}/orders", fs=fs, objects="/cold")
    source._copies._tier = tier
    with little_memory():
        got = {record.record_id for record in Reader(source, 0, on_lost="skip")}
    assert got == {one for one in written if one >> 32 not in {VICTIM, 4}}
