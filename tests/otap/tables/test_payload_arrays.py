"""Which columns of a table become dictionaries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from quiver.otap.tables.payload_arrays import batch_of
from quiver.otap.tables.payload_schema import TABLES

LOG_ATTRIBUTES, LOGS = 31, 30
ROWS = 2_000


def column(name: str, array: pa.Array, payload: int = LOG_ATTRIBUTES) -> pa.Array:
    """Return *array* as the column *name* of a table."""
    return batch_of(TABLES[payload], {name: array}).column(0)


def texts(rows: int, distinct: int) -> pa.Array:
    return pa.array([f"value {number % distinct}" for number in range(rows)])


@pytest.mark.parametrize(
    ("distinct", "index"), [(2, pa.uint16()), (255, pa.uint16()), (300, pa.uint16()), (1_000, pa.uint16())]
)
def test_values_that_repeat_become_a_dictionary(distinct, index):
    array = texts(ROWS, distinct)
    found = column("str", array)
    assert found.type == pa.dictionary(index, pa.string())
    found.validate(full=True)
    assert found.dictionary_decode().equals(array)


def test_keys_have_the_narrowest_index():
    assert column("key", texts(ROWS, 255)).type.index_type == pa.uint8()
    assert column("key", texts(ROWS, 256)).type.index_type == pa.uint16()


def test_distinct_values_of_many_rows_are_plain():
    assert column("str", texts(ROWS, ROWS)).type == pa.string()
    identities = pa.array([number.to_bytes(16, "big") for number in range(1, ROWS)], pa.binary(16))
    assert column("trace_id", identities, LOGS).type == pa.binary(16)


def test_distinct_values_of_few_rows_are_a_dictionary():
    """The schema of small requests must not depend on their values."""
    assert pa.types.is_dictionary(column("str", texts(255, 255)).type)
    assert column("str", texts(256, 256)).type == pa.string()


def test_distinct_values_after_a_start_with_few_are_a_dictionary():
    array = pa.concat_arrays([texts(200, 2), texts(ROWS, ROWS)])
    assert pa.types.is_dictionary(column("str", array).type)


def test_distinct_values_with_few_nulls_are_plain_and_with_many_a_dictionary():
    """A null takes eight bytes in a plain column of integers, and two in a dictionary."""
    numbers = np.arange(ROWS) * 7
    dense = pa.array(numbers, mask=numbers % 3 == 0)
    sparse = pa.array(numbers, mask=numbers % 10 != 0)
    assert column("int", dense).equals(dense)
    found = column("int", sparse)
    assert found.type == pa.dictionary(pa.uint16(), pa.int64())
    found.validate(full=True)
    assert found.null_count == sparse.null_count
    assert found.dictionary_decode().equals(sparse)
