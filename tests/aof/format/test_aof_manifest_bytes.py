"""The MAN1 manifest log: recorded bytes, every kind of record, every prefix, every flipped bit, unknown kinds."""

import dataclasses

import pytest

from quiver.aof.format.manifest_chunk import (
    CHUNK_HEADER_BYTES,
    ChunkHeader,
    decode_chunk,
    decode_chunk_header,
    encode_chunk_header,
)
from quiver.aof.format.manifest_record import (
    LAYOUTS,
    MANIFEST_PAYLOAD_BYTES_MAX,
    MANIFEST_RECORD_HEAD,
    Event,
    ManifestRecord,
    decode_manifest_record,
    encode_manifest_record,
)
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.scan import Damage, Frame, NeedMore

# Recorded from the original's own code.
HEADER = bytes.fromhex(
    "474f4c4d32464f410100000040000000010000000000000000000000000000000000000000000000a400000000000000a400000000000000"
    "fc294ab15235fadf"
)
RECORDS = bytes.fromhex(
    "030000000c00000005000000000000000010000000000000e8030000000000002293a3c91e2cfaf1000100000000000000000000"
    "060000000800000005000000000000000010000000000000e903000000000000a2046ad343a3892103006b2f31010065"
)
VALUES = (
    ManifestRecord(Event.COMPRESSION_DONE, 5, 4096, 1000, (256, 0)),
    ManifestRecord(Event.UPLOAD_DONE, 5, 4096, 1001, ("k/1", "e")),
)
SAMPLES = {
    Event.SEGMENT_OPENED: (1, 2),
    Event.SEAL_SEGMENT: (1, 2, 3, 4, 1),
    Event.COMPRESSION_STARTED: (7,),
    Event.COMPRESSION_DONE: (256, 0),
    Event.COMPRESSION_FAILED: (3,),
    Event.UPLOAD_STARTED: ("a/b",),
    Event.UPLOAD_DONE: ("a/b", None),
    Event.UPLOAD_FAILED: (9, "schlüssel"),
    Event.TIER2_DELETE_QUEUED: ("",),
    Event.TIER2_DELETED: ("k",),
    Event.HYDRATION_STARTED: (2,),
    Event.HYDRATION_DONE: (2**64 - 1,),
    Event.HYDRATION_FAILED: (1,),
    Event.LOCAL_EVICTED: (5,),
    Event.SNAPSHOT_MARKER: (1, 2, 3),
    Event.CUSTOM_EVENT: (1, b"\x00\xff"),
    Event.TIER1_SNAPSHOT: ("[]",),
}


def test_a_recorded_chunk_round_trips():
    """A chunk of the original is decoded, and encoded byte for byte; uncommitted bytes after it are ignored."""
    answer = decode_chunk(memoryview(HEADER + RECORDS + b"\xff" * 50))
    assert isinstance(answer, Frame)
    header, records = answer.value
    assert records == VALUES
    assert (header.sealed, header.chunk_index, header.committed_len) == (True, 0, len(HEADER + RECORDS))
    assert encode_chunk_header(header) == HEADER
    assert b"".join(map(encode_manifest_record, records)) == RECORDS


@pytest.mark.parametrize("kind", list(Event))
def test_every_kind_round_trips(kind):
    """Each layout is written and read, with numbers and texts of all sizes."""
    assert set(SAMPLES) == set(LAYOUTS) == set(Event)
    record = ManifestRecord(kind, 1, 2, 3, SAMPLES[kind])
    data = encode_manifest_record(record)
    assert decode_manifest_record(memoryview(data + b"next")) == Frame(record, len(data))
    for size in range(len(data)):
        assert isinstance(decode_manifest_record(memoryview(data[:size])), NeedMore)


@pytest.mark.parametrize("kind", list(Event))
def test_a_payload_of_another_length_is_damage(kind):
    """The payload is one byte longer or shorter than its layout, with a valid checksum."""
    data = encode_manifest_record(ManifestRecord(kind, 1, 2, 3, SAMPLES[kind]))
    payload = data[40:]
    for other in (payload + b"\0", payload[:-1]):
        head = MANIFEST_RECORD_HEAD.pack(kind, 0, len(other), 1, 2, 3, crc64_nvme(other))
        assert isinstance(decode_manifest_record(memoryview(head + other)), Damage)


def test_an_unknown_kind_is_skipped():
    """Its payload stays bytes, and the following records are read."""
    unknown = ManifestRecord(99, 1, 2, 3, (b"whatever",))
    data = encode_manifest_record(unknown)
    assert decode_manifest_record(memoryview(data + RECORDS)) == Frame(unknown, len(data))
    assert isinstance(decode_manifest_record(memoryview(data + RECORDS), len(data)), Frame)


def test_every_flipped_bit_of_a_chunk_is_detected():
    """No flipped bit makes the decoder raise; every bit under the checksum is reported as damage."""
    complete = HEADER + RECORDS
    for bit in range(len(complete) * 8):
        flipped = bytearray(complete)
        flipped[bit // 8] ^= 1 << bit % 8
        answer = decode_chunk(memoryview(flipped))
        if bit // 8 >= CHUNK_HEADER_BYTES:
            assert isinstance(answer, Damage), bit
        else:
            assert (
                isinstance(answer, Damage | NeedMore) or answer.value[0] != decode_chunk(memoryview(complete)).value[0]
            )


def test_every_prefix_of_a_chunk_needs_more():
    """The decoder requests the missing bytes."""
    complete = HEADER + RECORDS
    for size in range(len(complete)):
        assert isinstance(decode_chunk(memoryview(complete[:size])), NeedMore)


def test_an_empty_chunk_has_no_records():
    """Nothing was committed: there are no records, and no checksum to verify."""
    header = ChunkHeader(3, 17, 64, 64, 0)
    assert decode_chunk(memoryview(encode_chunk_header(header))) == Frame((header, ()), 64)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(8, 2, "unsupported version 2"), (12, 65, "header length"), (40, 63, "the tail"), (48, 63, "committed")],
)
def test_impossible_headers_are_damage(at, value, reason):
    """Version, lengths and their order are checked."""
    data = bytearray(HEADER)
    width = 4 if at < 16 else 8
    data[at : at + width] = value.to_bytes(width, "little")
    answer = decode_chunk_header(memoryview(data))
    assert isinstance(answer, Damage)
    assert reason in answer.reason


def test_record_lengths_are_bounded():
    """A length of gigabytes is damage; the decoder does not request the bytes."""
    head = MANIFEST_RECORD_HEAD.pack(1, 0, MANIFEST_PAYLOAD_BYTES_MAX + 1, 0, 0, 0, 0)
    assert isinstance(decode_manifest_record(memoryview(head)), Damage)


def test_a_checksum_of_zero_is_not_checked():
    """Such a record is as valid as any."""
    payload = (7).to_bytes(4, "little")
    head = MANIFEST_RECORD_HEAD.pack(Event.COMPRESSION_STARTED, 0, 4, 0, 0, 0, 0)
    answer = decode_manifest_record(memoryview(head + payload))
    assert isinstance(answer, Frame)
    assert answer.value.fields == (7,)
    wrong = MANIFEST_RECORD_HEAD.pack(Event.COMPRESSION_STARTED, 0, 4, 0, 0, 0, 1)
    assert isinstance(decode_manifest_record(memoryview(wrong + payload)), Damage)


def test_a_record_that_extends_past_the_commit_is_damage():
    """The checksum of the chunk is valid, but the last record is incomplete."""
    body = RECORDS[:-1]
    header = dataclasses.replace(
        decode_chunk_header(memoryview(HEADER)).value,
        tail_offset=64 + len(body), committed_len=64 + len(body), chunk_crc64=crc64_nvme(body),
    )  # fmt: skip
    answer = decode_chunk(memoryview(encode_chunk_header(header) + body))
    assert isinstance(answer, Damage)
    assert "past the committed bytes" in answer.reason
