"""The messages of Flight: golden bytes, and bytes that are cut or changed."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from quiver.primitives.scan import Damage
from quiver.receivers.flight.batches import BatchDecoder, BatchEncoder, BatchLimits, slices_of
from quiver.receivers.flight.messages import (
    Descriptor,
    FlightData,
    decode_action,
    decode_bytes,
    decode_descriptor,
    decode_flight_data,
    encode_action_type,
    encode_bytes,
    encode_descriptor,
    encode_flight_data,
    encode_flight_info,
)

LIMITS = BatchLimits(inflated_bytes_max=1 << 20, dictionaries_bytes_max=10_000)

GOLDEN = {
    "0801" + "1a01" + "61" + "1a02" + "6263": Descriptor(path=("a", "bc")),
    "0802" + "1202" + "7b7d": Descriptor(command=b"{}"),
}


@pytest.mark.parametrize("data", GOLDEN)
def test_a_descriptor_has_its_golden_bytes(data):
    """Those that pyarrow writes and reads, too."""
    golden = bytes.fromhex(data)
    assert encode_descriptor(GOLDEN[data]) == golden
    assert decode_descriptor(golden) == GOLDEN[data]
    assert fl.FlightDescriptor.deserialize(golden).serialize() == golden


def test_flight_data_has_its_golden_bytes():
    parts = encode_flight_data(b"head", [b"bo", memoryview(b"dy")], b"meta", Descriptor(command=b"c"))
    golden = bytes.fromhex("0a05" + "0802120163" + "120468656164" + "1a046d657461" + "c23e04626f6479")
    assert b"".join(parts) == golden
    assert decode_flight_data(golden) == FlightData(Descriptor(command=b"c"), b"head", b"meta", b"body")
    assert b"".join(encode_flight_data(b"", [])) == b""
    assert decode_flight_data(b"") == FlightData()


def test_other_messages_have_their_golden_bytes():
    assert encode_bytes(b"ab") == bytes.fromhex("0a026162")
    assert decode_bytes(bytes.fromhex("0a026162")) == b"ab"
    assert decode_bytes(b"") == b""
    assert decode_action(bytes.fromhex("0a0161" + "120162")) == ("a", b"b")
    assert encode_action_type("a", "b") == bytes.fromhex("0a0161" + "120162")
    schema = pa.schema({"id": pa.int64()})
    data = encode_flight_info(schema.serialize().to_pybytes(), Descriptor(path=("a",)), [b"t"])
    info = fl.FlightInfo.deserialize(data)
    assert (info.schema, info.descriptor.path, info.endpoints[0].ticket.ticket) == (schema, [b"a"], b"t")
    assert (info.total_records, info.total_bytes) == (-1, -1)


def test_unknown_fields_are_skipped():
    """Of every wire type; groups, which no message of Flight has, are refused."""
    unknown = bytes.fromhex("a80601" + "a1060102030405060708" + "aa060161" + "ad0601020304")
    assert decode_flight_data(unknown + bytes.fromhex("1a0161")) == FlightData(metadata=b"a")
    assert isinstance(decode_flight_data(bytes.fromhex("0b0c")), Damage)


def test_cut_and_changed_bytes_are_damage_or_other_values():
    """Never an error, and never a view outside of the message."""
    parts = encode_flight_data(b"head", [b"body" * 50], b"meta", Descriptor(path=("a", "é")))
    data = b"".join(parts)
    for end in range(1, len(data)):
        found = decode_flight_data(data[:end])
        assert isinstance(found, Damage) or len(found.body) in {0, 200}
    assert isinstance(decode_flight_data(data + b"\xff"), Damage)
    assert isinstance(decode_flight_data(data + b"\xff" * 12), Damage)
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(data)
            broken[at] ^= flip
            found = decode_flight_data(bytes(broken))
            assert isinstance(found, Damage) or len(found.header) + len(found.body) <= len(data)
    assert isinstance(decode_descriptor(b"\x08\x01" + b"\x1a\x01a" * 17), Damage)
    assert isinstance(decode_descriptor(b"\x08\x01\x1a\x01\xff"), Damage)
    assert isinstance(decode_descriptor(b"\x08\x07"), Damage)


def encoded(*batches):
    encoder = BatchEncoder(batches[0].schema)
    parts = [encoder.schema()]
    for number, batch in enumerate(batches):
        parts += encoder.batch(batch, str(number).encode())
    return [b"".join(message) for message in parts]


def decoded(messages, limits=LIMITS):
    decoder = BatchDecoder(limits)
    found = []
    for message in messages:
        data = decode_flight_data(message)
        assert isinstance(data, FlightData)
        batch = decoder.take(data)
        if batch is not None:
            found.append((data.metadata, batch))
        if isinstance(batch, Damage):
            break
    return found


def batch_of(*words):
    return pa.record_batch({
        "id": pa.array(range(len(words)), pa.int32()),
        "word": pa.array(words).dictionary_encode(),
        "list": [[word] for word in words],
        "flag": [word is None for word in words],
    })  # fmt: skip


def test_batches_return_as_they_were_sent():
    """With new dictionaries, slices, no rows, and a buffer with the bytes that begin an IPC message."""
    minus_ones = pa.record_batch({"id": pa.array([-1, -1], pa.int32())})
    assert [batch for _, batch in decoded(encoded(minus_ones, minus_ones.slice(1)))] == [
        minus_ones,
        minus_ones.slice(1),
    ]
    batches = [batch_of("a", None), batch_of("b", "c", "b"), batch_of("x", "y", "z", None).slice(1, 2)]
    found = decoded(encoded(*batches))
    assert [metadata for metadata, _ in found] == [b"0", b"1", b"2"]
    for (_, batch), sent in zip(found, batches, strict=True):
        assert batch.equals(sent)
    empty = batch_of("a").slice(0, 0)
    assert decoded(encoded(empty))[0][1].equals(empty)


def test_slices_have_about_the_size():
    batch = pa.record_batch({"id": np.arange(1000)})
    assert [len(piece) for piece in slices_of(batch, 4000)] == [500, 500]
    assert [len(piece) for piece in slices_of(batch.slice(0, 3), 1)] == [1, 1, 1]
    assert list(slices_of(batch.slice(0, 0), 4000)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda messages: messages[1:], "one schema, then"),
        (lambda messages: [messages[0], messages[0]], "one schema, then"),
        (lambda messages: [b""], "0 bytes of metadata"),
        (lambda messages: messages, "more than 10000 bytes"),
    ],
    ids=["no schema", "two schemas", "nothing", "a large dictionary"],
)
def test_messages_in_another_order_are_refused(change, reason):
    messages = encoded(batch_of(*(f"{n}" * 1000 for n in range(20))), batch_of("a"))
    ((_, damage),) = decoded(change(messages))[-1:]
    assert isinstance(damage, Damage)
    assert reason in damage.reason


def test_a_batch_that_inflates_beyond_the_limit_is_refused():
    """Before Arrow allocates memory for it."""
    sink = pa.BufferOutputStream()
    zeros = pa.record_batch({"id": np.zeros(1 << 20)})
    with pa.ipc.new_stream(sink, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(zeros)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    decoder = BatchDecoder(LIMITS)
    results = [
        decoder.take(FlightData(header=bytes(one.metadata), body=bytes(one.body or b""))) for one in messages[:2]
    ]
    assert results[0] is None
    assert "send smaller batches" in results[1].reason


def test_random_damage_never_crashes_arrow():
    """Each flipped byte is refused, or another valid batch."""
    rng = random.Random(7)
    messages = encoded(batch_of("a", "b", None, "a" * 50))
    for _ in range(500):
        broken = [bytearray(message) for message in messages]
        target = rng.choice(broken)
        target[rng.randrange(len(target))] ^= 1 << rng.randrange(8)
        decoder = BatchDecoder(LIMITS)
        for message in broken:
            data = decode_flight_data(bytes(message))
            batch = data if isinstance(data, Damage) else decoder.take(data)
            if isinstance(batch, Damage):
                break
            if batch is not None:
                batch.validate(full=True)
