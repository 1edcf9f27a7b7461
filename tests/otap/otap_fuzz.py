"""
Invalid inputs for the decoders of OTLP and OTAP: each decoder must return an answer.

Inputs are mutated samples. An input with a new kind of answer becomes a sample; samples are kept in `artifacts/fuzz`.
Inputs that once broke a decoder are in `tests/vectors/fuzz`.
"""

import contextlib
import hashlib
import random
import re
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from otap_random import carried_request
from otap_ways import CASES, bytes_of

from quiver.otap import StreamDecoder, decode_requests, iter_bundles
from quiver.otap.any_values import key_values
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.request import parse_request
from quiver.otap.stream.arrow_message import ArrowRecords, decode_records, try_decode_status
from quiver.otap.stream.decoder import ArrowBatch
from quiver.otap.stream.ipc_messages import parse_messages
from quiver.otap.tables.cbor import decode_value, encode_value, measure_value
from quiver.otap.tables.cbor_columns import count_flat, written_flat
from quiver.otap.tables.from_otlp import Converted, tables_of_request
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.otap.tables.validation import check_tables
from quiver.otap.views.columns import json_text
from quiver.otap.views.nested_json import JSON
from quiver.primitives.scan import Damage

STUMBLED = Path(__file__).parents[1] / "vectors" / "fuzz"
KEPT = Path(__file__).parents[2] / "artifacts" / "fuzz"
SAMPLES_MAX = 3000
SAMPLE_BYTES_MAX = 64 * 1024
GROWTH_KIB_MAX = 250_000


# -- what each decoder must do, with a word that describes the outcome ------------------------------------------


def request_to_rows(data: bytes, view: str) -> str:
    decoded = decode_requests([data], view)
    decoded.batch.validate(full=True)
    read = parse_request(data, view)
    if isinstance(read, Damage):
        return read.reason if decoded.bad else "taken by the columns alone"
    assert not decoded.bad, decoded.bad
    assert decoded.rows == (read.rows,)
    return "taken"


def request_to_tables(data: bytes, signal: str) -> str:
    converted = tables_of_request(data, signal)
    if isinstance(converted, Damage):
        return converted.reason
    assert isinstance(converted, Converted)
    for tables in converted.tables:
        for batch in tables.values():
            batch.validate(full=True)
        restored = request_of_tables(tables, signal)
        assert not isinstance(restored, Damage), restored
    return f"taken {sorted(converted.left_out)}"


def attributes(data: bytes) -> str:
    import pyarrow as pa

    try:
        keys, values = key_values(pa.array([data]))
        arms = [values.field(arm) for arm in ("string_value", "int_value", "double_value", "bool_value")]
    except FallbackNeededError:
        return "odd"
    for array in (keys, *arms):
        array.validate(full=True)
    pair = KeyValue()
    try:
        pair.ParseFromString(data)
    except Exception:
        return "taken by the columns alone"
    assert keys[0].as_py() == pair.key
    return f"taken {values.kinds[0]}"


def cbor(data: bytes) -> str:
    value = AnyValue()
    try:
        count = decode_value(data, value, levels=90, items=500)
    except ConversionError as refused:
        try:
            measured = measure_value(data, levels=90, items=500)
        except ConversionError as same:
            assert str(same) == str(refused)
            assert not count_flat(pa.array([data, data]), np.array([False, True])).any()
            return str(refused)
        raise AssertionError(f"measured {measured}, decoded: {refused}") from refused
    assert measure_value(data, levels=90, items=500) == (value.WhichOneof("value") or "", count)
    if value.WhichOneof("value") in {"array_value", "kvlist_value"}:
        _by_column(data, value, count)
    return f"taken {value.WhichOneof('value')}"


def _by_column(data: bytes, value: AnyValue, count: int) -> None:
    """Check that counting by column agrees with decoding, or returns nothing."""
    column = pa.array([data])
    assert count_flat(column, np.array([value.HasField("kvlist_value")]))[0] in {0, count}
    with contextlib.suppress(FallbackNeededError):
        (written,) = written_flat(column, JSON).to_pylist()
        assert written in {None, json_text(value)}


def stream(data: bytes, signal: str) -> str:
    batch = StreamDecoder(signal).try_decode(data)
    if isinstance(batch, Damage):
        return batch.reason
    assert isinstance(batch, ArrowBatch)
    unsound = check_tables(batch.tables, signal)
    if isinstance(unsound, Damage):
        return unsound.reason
    assert not isinstance(request_of_tables(batch.tables, signal), Damage)
    return f"taken {sorted(batch.tables)}"


def messages(data: bytes) -> str:
    status = try_decode_status(data)
    records = decode_records(data)
    if not isinstance(records, ArrowRecords):
        return f"{records.reason} {type(status).__name__}"
    for payload in records.payloads:
        try:
            parse_messages(payload.record)
        except ConversionError as refused:
            return str(refused)
    return "taken"


# -- samples ------------------------------------------------------------------------------------------------


def _requests(view: str) -> list[bytes]:
    return [carried_request(view, seed) for seed in range(25)]


def _messages_of(signal: str) -> list[bytes]:
    cases = [case for case in CASES.values() if case["signal"] == signal and case["producer"] == "go"]
    return [bytes_of(name) for case in cases for name in case["otap"][:1]]


def _cbor_samples() -> list[bytes]:
    found = []
    for data in _requests("logs"):
        for bundle in iter_bundles(data, "logs"):
            for batch in bundle.batches.values():
                if "ser" in batch.schema.names:
                    found += [value for value in batch.column("ser").to_pylist() if value]
    pair = AnyValue()
    pair.kvlist_value.values.add(key="k").value.array_value.values.add(double_value=1.5)
    return [encode_value(pair), b"\x82\x01\xf9\x3e\x00", b"\xa1\x61k\xf6", *found]


DECODERS: dict[str, tuple[Callable[[bytes], str], Callable[[], list[bytes]]]] = {
    **{
        f"rows_{view}": (partial(request_to_rows, view=view), partial(_requests, view))
        for view in ("logs", "spans", "metrics")
    },
    **{
        f"tables_{signal}": (partial(request_to_tables, signal=signal), partial(_requests, view))
        for signal, view in (("logs", "logs"), ("traces", "spans"), ("metrics", "metrics"))
    },
    **{
        f"stream_{signal}": (partial(stream, signal=signal), partial(_messages_of, signal))
        for signal in ("logs", "traces", "metrics")
    },
    "attributes": (
        attributes,
        lambda: [KeyValue(key="key", value=AnyValue(**{arm: value})).SerializeToString() for arm, value in PLAIN],
    ),
    "cbor": (cbor, _cbor_samples),
    "messages": (messages, lambda: [*_messages_of("logs"), b"\x08\x07\x10\x0e\x1a\x04full"]),
}
PLAIN = (
    ("string_value", "text"), ("int_value", -5), ("double_value", 1.5), ("bool_value", True), ("bytes_value", b"\xff"),
)  # fmt: skip


# -- the inputs ---------------------------------------------------------------------------------------------


def changed(samples: list[bytes], dice: random.Random) -> bytes:
    data = bytearray(dice.choice(samples))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            case 1 if at < len(data):
                data[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            case 2:
                del data[at : at + dice.choice((1, 1, 2, 8, 64))]
            case 3:
                data[at:at] = dice.randbytes(dice.choice((1, 2, 5)))
            case 4:
                other = dice.choice(samples)
                start = dice.randrange(len(other) + 1)
                data[at:at] = other[start : start + dice.choice((2, 9, 40, 400))]
            case 5:
                del data[at:]
            case _:
                start = dice.randrange(len(data) + 1)
                data[at:at] = data[start : start + dice.randrange(1, 60)]
    return bytes(data[:SAMPLE_BYTES_MAX])


def storm(name: str, count: int, seed: int, *, keep: bool) -> None:
    """Feed *count* inputs; an input that breaks a decoder is written to `artifacts/fuzz` first."""
    decode, made = DECODERS[name]
    samples = [data for data in made() if len(data) <= SAMPLE_BYTES_MAX]
    corpus = KEPT / name
    if keep and corpus.is_dir():
        samples += [path.read_bytes() for path in sorted(corpus.iterdir())][:SAMPLES_MAX]
    dice = random.Random(seed)
    answers: set[str] = set()
    for data in samples:
        answers.add(_answer(decode, name, data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        data = changed(samples, dice)
        answer = _answer(decode, name, data)
        if answer not in answers and len(answers) < SAMPLES_MAX:
            answers.add(answer)
            samples.append(data)
            if keep:
                corpus.mkdir(parents=True, exist_ok=True)
                (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < GROWTH_KIB_MAX, f"{name}, seed {seed}: {grown} KiB more after {count} inputs"


def _answer(decode: Callable[[bytes], str], name: str, data: bytes) -> str:
    try:
        return re.sub(r"\d+", "#", decode(data))[:120]
    except BaseException as error:
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}.bin"
        path.write_bytes(data)
        error.add_note(f"the input is {path}: keep it in {STUMBLED}")
        raise
