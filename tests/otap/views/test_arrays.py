"""Steps over whole columns return what the same step over single values returns."""

import random

import numpy as np
import pyarrow as pa
import pytest

from quiver.otap.arrays import FallbackNeededError, checked_text, hex_ids, placed, require_distinct, signed, times
from quiver.otap.views.schemas import TIME


def binary(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.mark.parametrize("values", [[], [""], ["", "é", ""], ["a", "b"], ["ü", "日本", "", "x", "🙂"]])
def test_valid_text_is_returned_as_strings(values):
    encoded = binary(*(value.encode() for value in values))
    assert checked_text(encoded).equals(pa.array(values, pa.string()))
    assert checked_text(encoded.slice(1)).to_pylist() == values[1:]


@pytest.mark.parametrize(
    "values",
    [
        (b"\xc3", b"\xa9"),  # a character that ends in the next value
        (b"a", b"\xff", b"b"),
        (b"a", b"\xed\xa0\x80"),  # a surrogate
        ("é".encode(), b"", "é".encode()[:1]),
    ],
)
def test_invalid_text_needs_the_fallback(values):
    with pytest.raises(FallbackNeededError):
        checked_text(binary(*values))


def test_text_is_refused_like_a_check_of_each_value():
    dice = random.Random(7)
    alphabet = [b"a", "é".encode(), "日".encode(), b"\x80", b"\xc3", b"\xe6\x97", b"\xa5", b""]
    answers = set()
    for _ in range(2000):
        values = binary(*(b"".join(dice.choices(alphabet, weights=(9, 4, 4, 1, 1, 1, 1, 3), k=2)) for _ in range(3)))
        try:
            expected = values.cast(pa.string())
        except pa.ArrowInvalid:
            expected = None
        try:
            found = checked_text(values)
        except FallbackNeededError:
            found = None
        assert (found is None) == (expected is None)
        assert found is None or found.equals(expected)
        answers.add(found is None)
    assert len(answers) == 2


@pytest.mark.parametrize("start", [0, 2])
def test_values_are_placed_between_nulls(start):
    values = pa.array(["left", "out", "a", "", "ccc"]).slice(start)
    there = np.zeros(9, np.bool_)
    rows = np.array([1, 3, 4, 6, 8])[: len(values)]
    there[rows] = True
    expected: list[str | None] = [None] * 9
    for row, value in zip(rows, values.to_pylist(), strict=True):
        expected[row] = value
    for found in (placed(values, there), placed(values, there, rows)):
        found.validate(full=True)
        assert found.to_pylist() == expected


def is_distinct(lists: list[list[str]]) -> bool:
    keys = pa.array([key for one in lists for key in one], pa.string())
    try:
        require_distinct(keys, np.array([len(one) for one in lists], np.int32))
    except FallbackNeededError:
        return False
    return True


@pytest.mark.parametrize("rows", [3, 700])
@pytest.mark.parametrize("more", [[], ["k" * 300], ["other"] * 0])
def test_a_duplicate_key_is_found_among_few_and_many_lists(rows, more):
    # The bytes of the first two are equal, the lengths of the last two.
    kinds = [["ab", "c", "d"], ["a", "bcd"], ["é", "x"], [], ["only"], ["x", "é", *more]]
    lists = [kinds[row % len(kinds)] for row in range(rows)]
    assert is_distinct(lists)
    for duplicate in (["ab", "ab"], ["", "x", ""], ["c", "a", "b", "c"]):
        assert not is_distinct([*lists, duplicate])
        assert not is_distinct([duplicate, *lists])


def test_a_duplicate_key_is_found_among_lists_that_all_differ():
    lists = [[f"key {row}", f"other {row}"] for row in range(2000)]
    assert is_distinct(lists)
    lists[1234][1] = lists[1234][0]
    assert not is_distinct(lists)


def test_numbers_beyond_the_range_and_unknown_times_are_null():
    numbers = pa.array([0, 1, 999, 1000, 2**63 - 1, 2**63, 2**64 - 1], pa.uint64())
    assert signed(numbers).to_pylist() == [0, 1, 999, 1000, 2**63 - 1, None, None]
    assert signed(numbers.slice(5)).to_pylist() == [None, None]
    found = times(numbers)
    assert found.type == TIME
    assert found.cast(pa.int64()).to_pylist() == [None, *(n // 1000 for n in numbers.to_pylist()[1:])]


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 24])
def test_ids_of_any_width(width):
    """Ids are lower-case hex, also in a slice; empty ids and zeros are null, and widths may differ."""
    dice = random.Random(width)
    zeros, half = bytes(width), bytes(width - 1) + b"\x01"
    ids = [dice.choice([b"", zeros, half, half[::-1], dice.randbytes(width)]) for _ in range(200)]
    for found in ids, ids[3:], [one for one in ids if one], [*ids, b"\x00\x0f"], [b""] * 3, [zeros]:
        expected = [one.hex() if any(one) else None for one in found]
        assert hex_ids(pa.array(found, pa.binary())).to_pylist() == expected
        assert hex_ids(pa.array([b"?", *found], pa.binary()).slice(1)).to_pylist() == expected


@pytest.mark.parametrize("one_of", [1, 2, 7, 8, 9, 50, 1000])
def test_values_are_placed_however_rare_they_are(one_of):
    """Each value is in its row, and the other rows are null, also for a slice of values."""
    there = np.arange(300) % one_of == one_of // 2
    values = binary(*(str(row).encode() for row in np.flatnonzero(there)))
    expected = [str(row).encode() if is_there else None for row, is_there in enumerate(there.tolist())]
    assert placed(values, there).to_pylist() == expected
    assert (
        placed(pa.concat_arrays([binary(b"??"), values]).slice(1), there, np.flatnonzero(there)).to_pylist() == expected
    )
