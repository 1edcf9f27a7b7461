"""The protobuf messages of a stream as bytes, and checks of the IPC messages inside."""

import pyarrow as pa
import pytest

from quiver.errors import InvalidBundleError
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.stream.arrow_message import (
    ArrowPayload,
    ArrowRecords,
    BatchStatus,
    StatusCode,
    decode_records,
    decode_status,
    encode_records,
    encode_status,
)
from quiver.otap.stream.ipc_messages import DICTIONARY, RECORD_BATCH, SCHEMA, parse_messages
from quiver.otap.tables.payload_schema import SIGNALS, TABLES, root_signal
from quiver.primitives.scan import Damage

RECORDS = bytes.fromhex("0801120a0a0137101e1a030102031a0168")
STATUS = bytes.fromhex("0807100e1a0466756c6c")


def test_records_have_golden_bytes():
    records = ArrowRecords(1, (ArrowPayload("7", 30, b"\1\2\3"),), b"h")
    assert encode_records(1, records.payloads, b"h") == RECORDS
    assert decode_records(RECORDS) == records


def test_checklist_2_batch_id_0_has_no_bytes():
    assert encode_records(0, ()) == b""
    assert decode_records(b"") == ArrowRecords(0, ())


def test_a_status_has_golden_bytes():
    status = BatchStatus(7, StatusCode.UNAVAILABLE, "full")
    assert encode_status(status) == STATUS
    assert decode_status(STATUS) == status
    assert decode_status(encode_status(BatchStatus(0, 99))) == BatchStatus(0, 99)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x12\xff", "not a BatchArrowRecords"),
        (
            encode_records(0, [ArrowPayload(str(at), 30, b"") for at in range(20)]),
            "20 payloads in a batch; the limit is 19",
        ),
        (encode_records(0, [ArrowPayload("a", 30, b"")] * 2), "two payloads of the same type"),
        (encode_records(0, [ArrowPayload("a" * 65, 30, b"")]), "a schema id of 65 characters"),
        (encode_records(0, [], b"h" * 65_537), "65537 bytes of headers"),
    ],
)
def test_invalid_records_are_refused(data, reason):
    refused = decode_records(data)
    assert isinstance(refused, Damage)
    assert reason in refused.reason


@pytest.mark.parametrize("data", [b"\x1a\xff", b"\x1a\x02\xff\xff", b"x" * 70_000])
def test_a_malformed_status_is_an_error(data):
    with pytest.raises(InvalidBundleError, match="status|BatchStatus"):
        decode_status(data)


def ipc(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()[:-8]  # without the end-of-stream mark


BATCH = pa.RecordBatch.from_pydict({"a": pa.array(["x", "y", "x"]).dictionary_encode(), "b": pa.array([1, None, 3])})


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_ipc_messages_are_parsed(codec):
    pieces = parse_messages(ipc(BATCH, codec))
    assert [piece.kind for piece in pieces] == [SCHEMA, DICTIONARY, RECORD_BATCH]
    assert [piece.rows for piece in pieces] == [0, 2, 3]
    assert pieces[-1].bytes_inflated >= 3 * 4 + 3 * 8


def test_an_end_of_stream_mark_is_refused():
    with pytest.raises(ConversionError, match="has 0 bytes of metadata"):
        parse_messages(ipc(BATCH) + b"\xff\xff\xff\xff\0\0\0\0")


def test_checklist_20_truncated_ipc_messages_are_fewer_or_refused():
    data = ipc(BATCH)
    complete = parse_messages(data)
    for end in range(len(data)):
        try:
            assert parse_messages(data[:end]) == complete[: len(parse_messages(data[:end]))] != complete
        except ConversionError as refused:
            assert str(refused).startswith("IPC: ")


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_checklist_20_flipped_bytes_of_ipc_are_refused_or_bounded(codec):
    data = bytearray(ipc(BATCH, codec))
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            data[at] ^= flip
            try:
                for piece in parse_messages(bytes(data)):
                    assert piece.rows >= 0
                    assert piece.bytes_inflated >= 0
            except ConversionError as refused:
                assert str(refused).startswith("IPC: ")
            data[at] ^= flip


def test_every_table_belongs_to_a_signal():
    assert {payload for signal in SIGNALS.values() for payload in signal.payloads} == set(TABLES)
    for name, signal in SIGNALS.items():
        assert root_signal(signal.payloads) == name
        assert len(signal.payloads) <= 19
    assert root_signal([1, 2]) is None
    assert root_signal([30, 40]) is None
