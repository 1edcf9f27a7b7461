"""Dictionaries of a stream: every value is validated, whatever comes of it, and a batch keeps what it uses."""

import pyarrow as pa
import pytest

from quiver.otap.stream.dictionaries import StreamDictionaries


def batch(indices, values) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.uint16()), values, safe=False)
    return pa.RecordBatch.from_arrays([column], names=["text"])


def broken_text(rows: int) -> pa.Array:
    """Valid but for the last value, which is not UTF-8."""
    offsets = pa.array(range(rows + 1), pa.int32()).buffers()[1]
    data = pa.py_buffer(b"a" * (rows - 1) + b"\xff")
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, data])


def test_a_batch_keeps_the_values_that_it_uses():
    values = pa.array([f"value {number}" for number in range(1000)])
    sound = StreamDictionaries().sound(batch([999, None, 3, 3, 500], values))
    sound.validate(full=True)
    column = sound.column(0)
    assert column.to_pylist() == ["value 999", None, "value 3", "value 3", "value 500"]
    assert len(column.dictionary) == 3
    assert sound.schema == batch([0], values).schema


def test_values_that_stand_together_are_kept_without_a_copy():
    """Too few rows to tell whether they repeat."""
    values = pa.array([f"value {number}" for number in range(1000)])
    sound = StreamDictionaries().sound(batch([999, None, 998, 997, 999], values))
    sound.validate(full=True)
    column = sound.column(0)
    assert column.to_pylist() == ["value 999", None, "value 998", "value 997", "value 999"]
    assert column.dictionary.to_pylist() == ["value 997", "value 998", "value 999"]
    assert column.dictionary.buffers()[2].address == values.buffers()[2].address


def test_small_dictionaries_and_those_that_most_rows_use_stay_as_they_are():
    few = pa.array([str(number) for number in range(200)])
    assert StreamDictionaries().sound(batch([0], few)).column(0).dictionary.equals(few)
    many = pa.array([str(number) for number in range(1000)])
    used = batch([*range(1000), *range(1000)], many)
    assert StreamDictionaries().sound(used).equals(used)


def test_a_column_whose_values_do_not_repeat_is_plain_from_then_on():
    many = pa.array([str(number) for number in range(100)])
    known = StreamDictionaries()
    assert known.sound(batch([0, 1], many)).equals(batch([0, 1], many)), "too few rows to tell"
    for indices in ([None, *range(100)], [0] * 100, [None, 7], [None, None]):
        sound = known.sound(batch(indices, many)).column(0)
        assert sound.type == pa.string()
        assert sound.to_pylist() == [None if at is None else str(at) for at in indices]
    assert pa.types.is_dictionary(StreamDictionaries().sound(batch([0] * 100, many)).column(0).type)


def test_a_long_value_in_many_rows_is_not_written_out():
    values = pa.array([*(str(number) for number in range(99)), "x" * 100_000])
    known = StreamDictionaries()
    assert known.sound(batch(range(100), values)).column(0).type == pa.string()
    assert known.sound(batch([99] * 10, values)).equals(batch([99] * 10, values))


def test_plain_columns_inside_structs():
    many = pa.array([str(number) for number in range(100)])
    struct = pa.StructArray.from_arrays([batch(range(100), many).column(0)], ["text"])
    sound = StreamDictionaries().sound(pa.RecordBatch.from_arrays([struct], names=["origin"]))
    sound.validate(full=True)
    assert sound.schema.field("origin").type.field("text").type == pa.string()
    assert sound.to_pylist() == [{"origin": {"text": str(number)}} for number in range(100)]


def test_without_a_value_there_is_no_dictionary():
    values = pa.array([str(number) for number in range(1000)])
    sound = StreamDictionaries().sound(batch([None, None], values)).column(0)
    assert (sound.to_pylist(), len(sound.dictionary)) == ([None, None], 0)
    assert StreamDictionaries().sound(batch([], values)).num_rows == 0


@pytest.mark.parametrize("rows", [2, 1000])
def test_an_index_beyond_the_dictionary_is_refused(rows):
    values = pa.array([str(number) for number in range(rows)])
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().sound(batch([0, rows], values))


def test_a_negative_index_is_refused():
    """Indices may be signed on the wire; Arrow would read in front of the dictionary."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, -1], pa.int8()), pa.array(["a", "b"]), safe=False)
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().sound(pa.RecordBatch.from_arrays([column], names=["text"]))


def test_values_that_no_row_uses_are_validated_too():
    """The next batch may use them, and they are not looked at twice."""
    with pytest.raises(pa.ArrowInvalid):
        StreamDictionaries().sound(batch([0], broken_text(1000)))


def test_what_was_added_or_replaced_is_validated():
    sound = pa.array(["a"] * 999)
    known = StreamDictionaries()
    known.sound(batch([0], sound))
    with pytest.raises(pa.ArrowInvalid):
        known.sound(batch([0], broken_text(1000)))
    known = StreamDictionaries()
    known.sound(batch([0], pa.array(["a"] * 1000)))
    known.begin_anew()
    with pytest.raises(pa.ArrowInvalid):
        known.sound(batch([0], broken_text(1000)))


def test_columns_inside_structs():
    inner = batch([700, 1, 700], pa.array([str(number) for number in range(1000)])).column(0)
    struct = pa.StructArray.from_arrays(
        [inner, pa.array([1, 2, 3])], ["text", "number"], mask=pa.array([False, True, False])
    )
    whole = pa.RecordBatch.from_arrays([struct, pa.array([1, 2, 3])], names=["origin", "plain"])
    sound = StreamDictionaries().sound(whole)
    sound.validate(full=True)
    assert sound.to_pylist() == whole.to_pylist()
    assert len(sound.column(0).field(0).dictionary) == 2
