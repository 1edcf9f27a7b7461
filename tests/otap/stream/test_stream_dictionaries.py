"""Dictionaries of a stream: every value is validated, and a batch keeps only the values that it uses."""

import pyarrow as pa
import pytest

from quiver.otap.stream.dictionaries import StreamDictionaries


def batch(indices, values) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.uint16()), values, safe=False)
    return pa.RecordBatch.from_arrays([column], names=["text"])


def broken_text(rows: int) -> pa.Array:
    """Return valid strings, except that the last one is not UTF-8."""
    offsets = pa.array(range(rows + 1), pa.int32()).buffers()[1]
    data = pa.py_buffer(b"a" * (rows - 1) + b"\xff")
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, data])


def test_a_batch_keeps_the_values_that_it_uses():
    values = pa.array([f"value {number}" for number in range(1000)])
    validated = StreamDictionaries().validated(batch([999, None, 3, 3, 500], values))
    validated.validate(full=True)
    column = validated.column(0)
    assert column.to_pylist() == ["value 999", None, "value 3", "value 3", "value 500"]
    assert len(column.dictionary) == 3
    assert validated.schema == batch([0], values).schema


def test_contiguous_values_are_kept_without_a_copy():
    """With too few rows to decide whether they repeat."""
    values = pa.array([f"value {number}" for number in range(1000)])
    validated = StreamDictionaries().validated(batch([999, None, 998, 997, 999], values))
    validated.validate(full=True)
    column = validated.column(0)
    assert column.to_pylist() == ["value 999", None, "value 998", "value 997", "value 999"]
    assert column.dictionary.to_pylist() == ["value 997", "value 998", "value 999"]
    assert column.dictionary.buffers()[2].address == values.buffers()[2].address


def test_small_and_mostly_used_dictionaries_are_unchanged():
    few = pa.array([str(number) for number in range(200)])
    assert StreamDictionaries().validated(batch([0], few)).column(0).dictionary.equals(few)
    many = pa.array([str(number) for number in range(1000)])
    used = batch([*range(1000), *range(1000)], many)
    assert StreamDictionaries().validated(used).equals(used)


def test_a_column_without_repeated_values_becomes_plain():
    many = pa.array([str(number) for number in range(100)])
    known = StreamDictionaries()
    assert known.validated(batch([0, 1], many)).equals(batch([0, 1], many)), "too few rows to tell"
    for indices in ([None, *range(100)], [0] * 100, [None, 7], [None, None]):
        validated = known.validated(batch(indices, many)).column(0)
        assert validated.type == pa.string()
        assert validated.to_pylist() == [None if at is None else str(at) for at in indices]
    assert pa.types.is_dictionary(StreamDictionaries().validated(batch([0] * 100, many)).column(0).type)


def test_a_long_value_in_many_rows_stays_in_a_dictionary():
    values = pa.array([*(str(number) for number in range(99)), "x" * 100_000])
    known = StreamDictionaries()
    assert known.validated(batch(range(100), values)).column(0).type == pa.string()
    assert known.validated(batch([99] * 10, values)).equals(batch([99] * 10, values))


def test_plain_columns_inside_structs_stay_plain():
    many = pa.array([str(number) for number in range(100)])
    struct = pa.StructArray.from_arrays([batch(range(100), many).column(0)], ["text"])
    validated = StreamDictionaries().validated(pa.RecordBatch.from_arrays([struct], names=["origin"]))
    validated.validate(full=True)
    assert validated.schema.field("origin").type.field("text").type == pa.string()
    assert validated.to_pylist() == [{"origin": {"text": str(number)}} for number in range(100)]


def test_a_column_of_nulls_has_an_empty_dictionary():
    values = pa.array([str(number) for number in range(1000)])
    validated = StreamDictionaries().validated(batch([None, None], values)).column(0)
    assert (validated.to_pylist(), len(validated.dictionary)) == ([None, None], 0)
    assert StreamDictionaries().validated(batch([], values)).num_rows == 0


@pytest.mark.parametrize("rows", [2, 1000])
def test_an_index_beyond_the_dictionary_is_refused(rows):
    values = pa.array([str(number) for number in range(rows)])
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().validated(batch([0, rows], values))


def test_a_negative_index_is_refused():
    """Indices may be signed in transport; Arrow would read before the dictionary."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, -1], pa.int8()), pa.array(["a", "b"]), safe=False)
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().validated(pa.RecordBatch.from_arrays([column], names=["text"]))


def test_unused_values_are_validated():
    """The next batch may use them, and they are validated only once."""
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().validated(batch([0], broken_text(1000)))


def test_added_and_replaced_values_are_validated():
    validated = pa.array(["a"] * 999)
    known = StreamDictionaries()
    known.validated(batch([0], validated))
    with pytest.raises(pa.ArrowInvalid):
        known.validated(batch([0], broken_text(1000)))
    known = StreamDictionaries()
    known.validated(batch([0], pa.array(["a"] * 1000)))
    known.reset()
    with pytest.raises(pa.ArrowInvalid):
        known.validated(batch([0], broken_text(1000)))


def test_dictionaries_inside_structs_keep_only_used_values():
    inner = batch([700, 1, 700], pa.array([str(number) for number in range(1000)])).column(0)
    struct = pa.StructArray.from_arrays(
        [inner, pa.array([1, 2, 3])], ["text", "number"], mask=pa.array([False, True, False])
    )
    complete = pa.RecordBatch.from_arrays([struct, pa.array([1, 2, 3])], names=["origin", "plain"])
    validated = StreamDictionaries().validated(complete)
    validated.validate(full=True)
    assert validated.to_pylist() == complete.to_pylist()
    assert len(validated.column(0).field(0).dictionary) == 2
