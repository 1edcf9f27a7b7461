"""Symbols of Arrow columns get their ids in the order of their first rows, for any dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.primitives.scan import Frame
from quiver.qwp.wire.arrow_columns import Dictionaries, columns_of_batch
from quiver.qwp.wire.columns import fixed_column, symbol_column
from quiver.qwp.wire.decoder import SymbolDictionary, decode_message
from quiver.qwp.wire.message import SYMBOL_BYTES_MAX, MessageBuffer, SymbolIds, TableData, encode_message

ENTRIES = st.lists(st.sampled_from(["a", "b", "ü", "", "long" * 9]), min_size=1, max_size=6)


def _decoded(message: Any) -> tuple[list[Any], list[str]]:
    dictionary = SymbolDictionary()
    answer = decode_message(memoryview(message), dictionary)
    assert isinstance(answer, Frame)
    (table,) = answer.value.tables
    return table.to_arrow()["s"].to_pylist(), list(dictionary.entries)


@settings(max_examples=120)
@given(entries=ENTRIES, data=st.data())
def test_rows_keep_their_symbols(entries, data):
    """With nulls, unused and duplicate entries, few rows and many, and all index widths."""
    numbers = data.draw(st.lists(st.none() | st.integers(0, len(entries) - 1), min_size=1, max_size=60))
    width = data.draw(st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]))
    array = pa.DictionaryArray.from_arrays(pa.array(numbers, width), pa.array(entries))
    start = data.draw(st.integers(0, len(numbers) - 1))
    batch = pa.record_batch([array], names=["s"]).slice(start)
    message = encode_message([TableData("t", batch.num_rows, columns_of_batch(batch))])
    wanted = [None if number is None else entries[number] for number in numbers[start:]]
    rows, symbols = _decoded(message)
    assert rows == wanted
    assert symbols == list(dict.fromkeys(value for value in wanted if value is not None))


@settings(max_examples=120)
@given(entries=ENTRIES, unique=st.booleans(), data=st.data())
def test_slices_that_share_dictionaries_have_the_same_bytes(entries, unique, data):
    entries = list(dict.fromkeys(entries)) if unique else [*entries, None]
    numbers = data.draw(st.lists(st.none() | st.integers(0, len(entries) - 1), min_size=1, max_size=60))
    array = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), pa.array(entries, pa.string()))
    batch = pa.record_batch([array], names=["s"])
    rows = data.draw(st.integers(1, 40))
    dictionaries: Dictionaries = {}
    ids, shared_ids = SymbolIds(), SymbolIds()
    for start in range(0, len(numbers), rows):
        piece = batch.slice(start, rows)
        alone = TableData("t", piece.num_rows, columns_of_batch(piece))
        shared = TableData("t", piece.num_rows, columns_of_batch(piece, dictionaries=dictionaries))
        assert encode_message([shared], shared=shared_ids) == encode_message([alone], shared=ids)
    assert (dictionaries["s"] is not None) == unique


def test_an_invalid_entry_that_no_row_has_is_not_an_error():
    dictionary = pa.array([b"good", b"\xff"], pa.binary())
    array = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), dictionary)
    batch = pa.record_batch([array], names=["s"])
    (column,) = columns_of_batch(batch, dictionaries={})
    assert column.symbols is not None
    assert list(column.symbols.values) == ["good"]


def _symbols(*values: str) -> TableData:
    return TableData("t", len(values), [symbol_column("s", list(dict.fromkeys(values)), np.array(
        [list(dict.fromkeys(values)).index(value) for value in values]
    ))])  # fmt: skip


def test_a_refused_message_leaves_no_ids():
    """Neither a symbol that is too long, nor a later invalid table."""
    shared = SymbolIds()
    encode_message([_symbols("a", "b")], shared=shared)
    with pytest.raises(UsageError, match="maximum"):
        encode_message([_symbols("c", "x" * (SYMBOL_BYTES_MAX + 1))], shared=shared)
    wrong = TableData("", 1, [fixed_column("v", 5, np.zeros(1, "<i8"))])
    with pytest.raises(UsageError, match="name"):
        encode_message([_symbols("d"), wrong], shared=shared)
    assert _decoded(encode_message([_symbols("e", "a")], shared=shared)) == (["e", "a"], ["a", "b", "e"])


def test_a_buffer_is_reused_for_each_message():
    """The bytes equal those of a separate message; a message above the buffer's limit gets its own memory."""
    shared, alone = SymbolIds(), SymbolIds()
    buffer = MessageBuffer(16, 4096)
    for number in range(40):
        table = _symbols(*(f"s{one}" for one in range(number + 1)))
        assert bytes(encode_message([table], shared=shared, into=buffer)) == encode_message([table], shared=alone)
    assert 256 <= buffer.size_bytes <= 4096
    large = _symbols("x" * 5000)
    assert encode_message([large], into=buffer) == encode_message([large])
    assert buffer.size_bytes <= 4096
