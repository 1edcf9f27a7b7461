"""Messages equal those of the official client: they are decoded cell by cell, and encoded byte for byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from vector_values import GROUPS, comparable, decoded_value, frame, row_tables

from quiver.errors import UsageError
from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.qwp.rows import RowTable
from quiver.qwp.values import Geohash, TimestampNanos
from quiver.qwp.wire.arrow_columns import columns_of_batch
from quiver.qwp.wire.column_types import ColumnType
from quiver.qwp.wire.columns import array_column, bytes_column, fixed_column
from quiver.qwp.wire.decoder import SymbolDictionary, decode_message
from quiver.qwp.wire.gorilla import take_gorilla
from quiver.qwp.wire.message import MESSAGE_HEADER, SymbolIds, TableData, encode_message, is_complete, with_all_symbols
from quiver.qwp.wire.responses import (
    DurableAck,
    Ok,
    Refusal,
    decode_response,
    encode_durable_ack,
    encode_ok,
    encode_refusal,
)
from quiver.qwp.wire.varint import VarintError, encode_varint, encode_varints, take_varint, take_varints

SMALL = [name for name, group in GROUPS.items() if name != "row-many" and group["frames"]]
RECORDED = [(group, number) for group in GROUPS for number in range(len(GROUPS[group]["frames"]))]


def _message(data: bytes, dictionary: SymbolDictionary | None = None) -> Any:
    answer = decode_message(memoryview(data), dictionary)
    assert isinstance(answer, Frame), answer
    assert answer.end == len(data)
    return answer.value


@pytest.mark.parametrize("group", GROUPS)
def test_recorded_frames_are_decoded_cell_by_cell(group):
    """Names, types, null flags and every cell equal those of an independent decoder."""
    dictionary = SymbolDictionary()
    for one in GROUPS[group]["frames"]:
        message = _message(frame(one["file"]), dictionary)
        reported = one["decoded"]
        assert message.flags == reported["flags"]
        assert (message.symbols_start, list(message.symbols)) == (reported["delta_start"], reported["delta"])
        for table, expected in zip(message.tables, reported["tables"], strict=True):
            assert (table.name, table.rows) == (expected["name"], expected["rows"])
            for column, cells in zip(table.columns, expected["columns"], strict=True):
                assert (column.name, column.type.name) == (cells["name"], cells["type"])
                assert (column.nulls is not None) == bool(cells["null_flag"])
                ours = [comparable(value, column.scale) for value in column.values()]
                assert ours == [decoded_value(value, cells["type"]) for value in cells["values"]], column.name


@pytest.mark.parametrize(("group", "number"), RECORDED)
def test_rows_are_encoded_like_those_of_the_official_client(group, number):
    """The same rows give the same bytes, except for symbols: the official client omits those of earlier frames."""
    reported = GROUPS[group]
    ours = encode_message([table.pack() for table in row_tables(reported["sent"]["batches"][number])])
    theirs = frame(reported["frames"][number]["file"])
    if number == 0:
        assert ours == theirs
        return
    dictionary = SymbolDictionary()
    for earlier in reported["frames"][:number]:
        _message(frame(earlier["file"]), dictionary)
    expected = [table.to_arrow().to_pylist() for table in _message(theirs, dictionary).tables]
    assert [table.to_arrow().to_pylist() for table in _message(ours).tables] == expected


@pytest.mark.parametrize("group", SMALL)
def test_messages_round_trip_through_arrow(group):
    """A decoded message converts to Arrow, and back to a message with the same rows, types, nulls and bits."""
    dictionary = SymbolDictionary()
    for one in GROUPS[group]["frames"]:
        for table in _message(frame(one["file"]), dictionary).tables:
            batch = table.to_arrow()
            batch.validate(full=True)
            at = next((field.name for field in batch.schema if (field.metadata or {}).get(b"qwp.designated")), None)
            again = _message(encode_message([TableData(table.name, table.rows, columns_of_batch(batch, at=at))]))
            other = again.tables[0].to_arrow()
            assert sorted(other.schema.names) == sorted(batch.schema.names)
            types = {column.name: column.type for column in table.columns}
            assert {column.name: column.type for column in again.tables[0].columns} == types
            for name in batch.schema.names:
                assert repr(other[name].to_pylist()) == repr(batch[name].to_pylist()), name


def test_both_dialects_are_decoded():
    """The version is the same; the bytes differ, also if the designated timestamp comes first."""
    table = RowTable("t")
    table.append({"s": "a"}, {"v": 1, "x": 0.5}, 7, bytes_max=1000)
    late = RowTable("only_time")
    late.append({}, {"v": None}, TimestampNanos(9), bytes_max=1000)
    for tables in ([table], [table, table], [late], [table, late]):
        packed = [one.pack() for one in tables]
        inline, schema = encode_message(packed), encode_message(packed, dialect="schema")
        assert inline != schema
        assert _message(inline).dialect == "inline"
        assert _message(schema).dialect == "schema"
        rows = [one.to_arrow().to_pylist() for one in _message(inline).tables]
        assert [one.to_arrow().to_pylist() for one in _message(schema).tables] == rows


@pytest.mark.parametrize("group", SMALL)
def test_every_prefix_needs_more(group):
    """A truncated message is neither a message nor damage."""
    data = frame(GROUPS[group]["frames"][0]["file"])
    for size in range(len(data)):
        assert isinstance(decode_message(memoryview(data)[:size]), NeedMore)
        assert not is_complete(data[:size])
    assert is_complete(data)
    assert decode_message(memoryview(data + b"junk")).end == len(data)


@pytest.mark.parametrize("group", SMALL)
def test_flipped_bytes_never_raise(group):
    """For any value of a byte: an answer, and a dictionary without symbols of refused messages."""
    data = bytearray(frame(GROUPS[group]["frames"][0]["file"]))
    refused = 0
    for at in range(0, len(data), 1 if len(data) < 120 else 3):
        for flip in (0x01, 0xFF)[at % 2 :]:
            data[at] ^= flip
            dictionary = SymbolDictionary(["known"])
            answer = decode_message(memoryview(bytes(data)), dictionary)
            data[at] ^= flip
            if isinstance(answer, Frame):
                for table in answer.value.tables:
                    table.to_arrow().validate(full=True)
                    for column in table.columns:
                        assert len(column.values()) == table.rows
            else:
                refused += 1
                assert dictionary.entries == ["known"]
    assert refused > 6


def test_a_symbol_from_a_gap_is_refused():
    """Ids are consecutive: a message may repeat known symbols and continue after them."""
    data = frame("frame-row-delta-01.bin")
    assert isinstance(decode_message(memoryview(data), SymbolDictionary()), Damage)
    reported = SymbolDictionary()
    _message(frame("frame-row-delta-00.bin"), reported)
    before = list(reported.entries)
    first = _message(data, reported)
    assert reported.entries[: len(before)] == before
    again = _message(data, reported)
    assert repr(first.tables[0].to_arrow()) == repr(again.tables[0].to_arrow())


def test_a_later_frame_is_self_sufficient_with_all_symbols_added():
    """Ids and rows stay the same; only the dictionary part changes."""
    reported = SymbolDictionary()
    for number in range(4):
        data = frame(f"frame-row-delta-0{number}.bin")
        message = _message(data, reported)
        start = len(encode_varint(message.symbols_start)) + len(encode_varint(len(message.symbols)))
        brought = sum(len(encode_varint(len(one.encode()))) + len(one.encode()) for one in message.symbols)
        reach = message.symbols_start + len(message.symbols)
        alone = _message(with_all_symbols(data, reported.entries, (MESSAGE_HEADER.size + start + brought, reach)))
        assert alone.symbols_start == 0
        rows = [table.to_arrow().to_pylist() for table in message.tables]
        assert [table.to_arrow().to_pylist() for table in alone.tables] == rows


def test_shared_ids_never_change_their_meaning():
    """Every message contains a prefix of one list, up to a size; above it each message assigns its own ids."""
    shared = SymbolIds()
    longest: tuple[str, ...] = ()
    for number in range(1100):
        table = RowTable("t")
        table.append({"s": f"sym{number % 1050}"}, {}, None, bytes_max=1000)
        message = encode_message([table.pack()], shared=shared)
        if number % 13 and number < 990:
            continue
        symbols = _message(message).symbols
        if len(symbols) == 1 and number > 1000:
            assert symbols == (f"sym{number % 1050}",)
        else:
            assert symbols[: len(longest)] == longest[: len(symbols)]
            longest = max(longest, symbols, key=len)
    assert len(longest) > 900
    failing = SymbolIds()
    table = RowTable("t")
    table.append({"s": "x" * (1 << 20) + "y"}, {}, None, bytes_max=1 << 22)
    with pytest.raises(UsageError, match="symbol has"):
        encode_message([table.pack()], shared=failing)
    assert failing.of_message() == {}


def test_numbers_of_any_width_are_decoded():
    """One at a time or many at once, with the same results and the same errors."""
    values = [0, 1, 127, 128, 300, 16_383, 16_384, 2**21, 2**28 - 1, 2**28, 2**34]
    joined = b"".join(encode_varint(value) for value in values)
    assert encode_varint(300) == b"\xac\x02"
    assert encode_varints(np.array(values, np.uint64)) == joined
    assert take_varints(Cursor(joined), len(values)).tolist() == values
    cursor = Cursor(joined)
    assert [take_varint(cursor) for _ in values] == values
    assert take_varint(Cursor(encode_varint(2**64 - 1))) == 2**64 - 1
    for size in range(len(joined)):
        with pytest.raises(ShortageError):
            take_varints(Cursor(joined[:size]), len(values))
    for bad in (b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"):
        with pytest.raises(VarintError):
            take_varint(Cursor(bad))
        with pytest.raises(VarintError):
            take_varints(Cursor(bad), 1)
    assert take_varints(Cursor(b""), 0).tolist() == []


def _gorilla(values: list[int]) -> bytes:
    """An encoder that follows the format, bit by bit."""
    bits: list[int] = []

    def put(value: int, width: int) -> None:
        bits.extend((value >> index) & 1 for index in range(width))

    for before, at, after in zip(values, values[1:], values[2:], strict=False):
        change = (after - at) - (at - before)
        if change == 0:
            put(0, 1)
        elif -64 <= change <= 63:
            put(0b01, 2)
            put(change, 7)
        elif -256 <= change <= 255:
            put(0b011, 3)
            put(change, 9)
        elif -2048 <= change <= 2047:
            put(0b0111, 4)
            put(change, 12)
        else:
            put(0b1111, 4)
            put(change, 32)
    packed = np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()
    return struct.pack(f"<{min(2, len(values))}q", *values[:2]) + packed


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 200])
def test_compressed_timestamps_are_decoded(count):
    """Every width of difference, at every bit offset; a missing last byte is detected."""
    changes = [0, 63, -64, 64, -65, 255, -256, 256, 2047, -2048, 2048, -2049, 2**31 - 1, -(2**31)]
    values = [1_700_000_000_000_000]
    step = 1000
    for number in range(count - 1):
        step += changes[number % len(changes)]
        values.append(values[-1] + step)
    values = values[:count]
    data = _gorilla(values)
    cursor = Cursor(data + b"tail")
    assert take_gorilla(cursor, count).tolist() == values
    assert cursor.remaining == 4
    if data:
        with pytest.raises(ShortageError):
            take_gorilla(Cursor(data[:-1]), count)


@pytest.mark.parametrize("encoding", [0, 1])
def test_a_message_with_compressed_timestamps_is_decoded(encoding):
    """With the flag, a byte before each timestamp column shows whether it is compressed; nulls come before it."""
    values = [10, 20, 31, 45]
    body = _gorilla(values) if encoding else struct.pack("<4q", *values)
    nulls = b"\1" + bytes([0b00010])
    payload = b"\0\0" + b"\1t" + bytes([5, 1]) + b"\2at\x0a" + nulls + bytes([encoding]) + body
    data = MESSAGE_HEADER.pack(b"QWP1", 1, 0x0C, 1, len(payload)) + payload
    column = _message(data).tables[0].columns[0]
    assert column.values() == [10, None, 20, 31, 45]
    assert column.to_arrow()[0].cast(pa.int64()).to_pylist() == [10, None, 20, 31, 45]


def test_null_bitmaps_are_decoded_for_every_type():
    """Writers may choose between two encodings of nulls; readers accept both."""
    for kind, data, expected in (
        (ColumnType.LONG, struct.pack("<q", 5), 5),
        (ColumnType.DOUBLE, struct.pack("<d", 0.5), 0.5),
        (ColumnType.BOOLEAN, b"\1", True),
        (ColumnType.INT, struct.pack("<i", -3), -3),
        (ColumnType.BYTE, b"\xff", -1),
        (ColumnType.CHAR, b"A\0", 65),
    ):
        payload = b"\0\0\1t\3\1\1c" + bytes([kind]) + b"\1\5" + data
        column = _message(MESSAGE_HEADER.pack(b"QWP1", 1, 8, 1, len(payload)) + payload).tables[0].columns[0]
        assert column.values() == [None, expected, None]
        assert column.to_arrow()[0].to_pylist() == [None, expected, None]


def test_an_unreadable_message_is_damage():
    """Each invalid count, offset or type is detected and reported with its position."""
    column = fixed_column("v", ColumnType.LONG, np.array([1]))
    good = encode_message([TableData("t", 1, [column])])
    assert isinstance(decode_message(memoryview(good)), Frame)
    cases = {
        "magic": b"QWP2" + good[4:],
        "version": good[:4] + b"\2" + good[5:],
        "flags": good[:5] + b"\x40" + good[6:],
        "too large": good[:8] + b"\xff\xff\xff\xff" + good[12:],
        "after the last table": good[:8] + struct.pack("<I", len(good) - 11) + good[12:] + b"x",
        "unknown column type": good.replace(b"\1v\5", b"\1v\x08"),
        "rows": good.replace(b"\1t\1\1", b"\1t\xff\xff\xff\x7f\1"[:4]),
    }
    for what, data in cases.items():
        assert isinstance(decode_message(memoryview(data)), Damage), what
    text = bytes_column("v", ColumnType.VARCHAR, np.array([0, 1, 2], "<u4"), "é".encode())
    split = decode_message(memoryview(encode_message([TableData("t", 2, [text])])))
    assert isinstance(split, Damage)
    assert "UTF-8" in split.reason


def test_values_that_a_message_cannot_represent_are_refused():
    """Counts and names above the limits, columns of different lengths."""
    column = fixed_column("v", ColumnType.LONG, np.array([1]))
    for tables, words in (
        ([TableData("", 1, [column])], "needs a name"),
        ([TableData("t", 2, [column])], "has 1 rows, not 2"),
        ([TableData("t" * 128, 1, [column])], "127"),
        ([TableData("t", 1_000_001, [])], "1000000"),
        ([TableData("t", 1, [column] * 2049)], "2048"),
    ):
        with pytest.raises(UsageError, match=words):
            encode_message(tables)
    with pytest.raises(UsageError, match="dimensions"):
        array_column("a", ColumnType.DOUBLE_ARRAY, [np.array(1.0)])


def test_answers_of_the_server_round_trip():
    """A truncated answer, extra bytes, or an empty name are damage."""
    for answer, data in (
        (Ok(7), encode_ok(Ok(7))),
        (Ok(2**40, {"é": 5, "b": -1}), encode_ok(Ok(2**40, {"é": 5, "b": -1}))),
        (DurableAck({"a": 3}), encode_durable_ack(DurableAck({"a": 3}))),
        (DurableAck({}, is_local=True), encode_durable_ack(DurableAck({}, is_local=True))),
        (Refusal(3, 9, "no"), encode_refusal(Refusal(3, 9, "no"))),
    ):
        assert decode_response(memoryview(data)) == Frame(answer, len(data))
        for size in range(len(data)):
            assert isinstance(decode_response(memoryview(data)[:size]), Damage)
        assert isinstance(decode_response(memoryview(data + b"\0")), Damage)
    assert isinstance(decode_response(memoryview(b"\2\1\0\0\0" + bytes(8))), Damage)
    assert isinstance(decode_response(memoryview(b"\3" + bytes(8) + b"\1\4" + bytes(1025))), Damage)
    long = decode_response(memoryview(encode_refusal(Refusal(5, 0, "é" * 1000))))
    assert isinstance(long, Frame)
    assert long.value.text == "é" * 512


# ---- rows


def test_a_row_is_refused_completely():
    """An invalid value is reported immediately, and nothing of the row is buffered."""
    table = RowTable("t")
    table.append({"s": "a"}, {"v": 1}, 5, bytes_max=1000)
    for symbols, columns, at, words in (
        ({}, {}, 5, "at least one"),
        ({"s": 5}, {}, 5, "must be a str"),
        ({}, {"v": "text"}, 5, "VARCHAR after LONG"),
        ({}, {"v": 2**63}, 5, "64 bits"),
        ({}, {"w": object()}, 5, "QWP has no type"),
        ({}, {"w": np.array(["x"])}, 5, "use floats or integers"),
        ({}, {"V": 1, "v": 2}, 5, "repeated|not case-sensitive"),
        ({"new": "a"}, {"NEW": 2}, 5, "repeated|not case-sensitive"),
        ({}, {"a.b": 1}, 5, "invalid characters"),
        ({}, {"": 1}, 5, "needs a name"),
        ({}, {"w": 1}, "now", "nanoseconds"),
        ({}, {"w": "\ud800"}, 5, "surrogate"),
        ({}, {"w": "x" * 2000}, 5, "at most 1000"),
    ):
        with pytest.raises(UsageError, match=words):
            table.append(symbols, columns, at, bytes_max=1000)
    assert table.rows == 1
    data = _message(encode_message([table.pack()])).tables[0]
    assert data.to_arrow().num_rows == 1
    assert sorted(column.name for column in data.columns) == ["", "s", "v"]


def test_later_changes_by_the_caller_are_not_sent():
    """Arrays and buffers are copied immediately; one with another type than the column is refused."""
    table = RowTable("t")
    array = np.array([1, 2, 3])
    data = bytearray(b"abc")
    for _ in range(2):
        table.append({}, {"a": array, "b": data}, 1, bytes_max=1000)
        array[0] += 10
        data[0] += 1
    with pytest.raises(UsageError, match="type of the array changed"):
        table.append({}, {"a": array + 0.5, "b": data}, 1, bytes_max=1000)
    columns = _message(encode_message([table.pack()])).tables[0].columns
    assert [value.tolist() for value in columns[0].values()] == [[1, 2, 3], [11, 2, 3]]
    assert columns[1].values() == [b"abc", b"bbc"]


def test_split_messages_have_the_same_rows():
    """Splitting preserves order and columns, even if the columns change between rows."""
    table = RowTable("t")
    for number in range(11):
        table.append({}, {"v": number} if number % 3 else {"v": number, "w": float(number)}, number, bytes_max=1000)
    first, second = table.split()
    assert first.rows + second.rows == 11
    rows = [
        row["v"] for half in (first, second)
        for row in _message(encode_message([half.pack()])).tables[0].to_arrow().to_pylist()
    ]  # fmt: skip
    assert rows == list(range(11))


def test_geohashes_of_one_column_have_one_precision():
    """A message cannot represent two precisions."""
    table = RowTable("t")
    table.append({}, {"g": Geohash(1, 5)}, 1, bytes_max=1000)
    table.append({}, {"g": Geohash(1, 6)}, 1, bytes_max=1000)
    with pytest.raises(UsageError, match="one precision"):
        table.pack()


# ---- Arrow


def _round(batch: Any, **options: Any) -> Any:
    columns = columns_of_batch(batch, **options)
    return _message(encode_message([TableData("t", batch.num_rows, columns)])).tables[0]


def test_arrow_slices_are_encoded_correctly():
    """Offsets of slices are respected for every kind of buffer, with and without nulls."""
    arrays = {
        "i": pa.array([1, None, 3, 4, 5, None]), "f": pa.array([1.5, 2.5, None, 4.0, 5.0, 6.0], pa.float32()),
        "b": pa.array([True, None, False, True, True, False]), "s": pa.array(["a", "bé", None, "", "c", "d"]),
        "l": pa.array(["a", "b", "c", "d", "e", "f"], pa.large_string()),
        "y": pa.array([b"1", b"22", None, b"", b"3", b"4"]),
        "d": pa.array(["x", "y", "x", None, "z", "y"]).dictionary_encode(),
        "n": pa.array([1, 2, None, 4, 5, 6], pa.decimal128(20, 3)),
        "m": pa.array([1, 2, 3, 4, 5, 6], pa.decimal32(6, 1)),
        "t": pa.array([1, 2, 3, None, 5, 6], pa.timestamp("s")), "ns": pa.array([1, 2, 3, 4, 5, 6], pa.timestamp("ns")),
        "dt": pa.array([1, None, 3, 4, 5, 6], pa.date32()), "a": pa.array([[1.0], [], None, [2.0, 3.0], [4.0], [5.0]]),
        "u": pa.array([bytes([n] * 16) for n in range(6)], pa.binary(16)),
        "sv": pa.array(list("abcdef"), pa.string_view()),
        "sh": pa.array([1, 2, 3, 4, None, 6], pa.int16()), "e": pa.array([None] * 6, pa.string()),
    }  # fmt: skip
    batch = pa.record_batch(arrays)
    for start, size in ((0, 6), (1, 5), (2, 3), (3, 1), (0, 0)):
        piece = batch.slice(start, size)
        table = _round(piece, symbols=["l"])
        complete = pa.record_batch([pa.array(one.to_pylist(), one.type) for one in piece.columns], names=list(arrays))
        other = _round(complete, symbols=["l"])
        assert repr([column.values() for column in table.columns]) == repr(
            [column.values() for column in other.columns]
        )
        rows = {column.name: column.to_arrow()[0].to_pylist() for column in table.columns}
        for name in ("i", "s", "l", "y", "d", "n", "m", "sh", "sv"):
            assert rows[name] == piece[name].to_pylist(), name


def test_an_unsupported_arrow_column_is_named():
    """The error names the column."""
    with pytest.raises(UsageError, match="column m"):
        _round(pa.record_batch({"m": pa.array([{"a": 1}], pa.struct([("b", pa.int8())]))}))
    with pytest.raises(UsageError, match="not a time"):
        _round(pa.record_batch({"a": ["x"]}), at="a")
    with pytest.raises(UsageError, match="column a"):
        _round(pa.record_batch({"a": pa.array([2**63], pa.uint64())}))
    with pytest.raises(UsageError, match="column a"):
        _round(pa.record_batch({"a": pa.array([[2**63]], pa.list_(pa.uint64()))}))
    with pytest.raises(UsageError, match="floats or integers"):
        _round(pa.record_batch({"a": pa.array([[True]])}))
    with pytest.raises(UsageError, match="different lengths"):
        _round(pa.record_batch({"a": pa.array([[[1.0], [2.0, 3.0]]])}))


def test_a_column_of_type_null_is_omitted():
    """A column with only None has Arrow's type `null`; as a symbol it has a type."""
    nothing = pa.nulls(2)
    batch = pa.record_batch({"a": nothing, "b": [1, 2], "c": nothing})
    assert [(column.name, column.values()) for column in _round(batch).columns] == [("b", [1, 2])]
    assert [column.name for column in _round(batch, symbols=["a"]).columns] == ["a", "b"]
    with pytest.raises(UsageError, match="nothing to send"):
        _round(pa.record_batch({"a": nothing}))
    with pytest.raises(UsageError, match="not a time"):
        _round(batch, at="a")
