"""The conversion of str objects in the kernel returns the arrays of its twin, and leaves other objects to it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quiver.qwp.tables import objects_in_kernel, objects_in_python


class Text(str):
    """A subclass, which is left to the twin."""

    __slots__ = ()


texts = st.text(max_size=30)
missing = st.sampled_from([None, float("nan"), pd.NA, pd.NaT])
others = st.one_of(missing, st.binary(max_size=4), st.integers(), st.floats(), st.booleans(), texts.map(Text))
surrogates = st.characters(categories=["Cs"])


def objects(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def answer(convert, values):
    try:
        array = convert(values)
    except Exception as error:
        return type(error), str(error)
    array.validate(full=True)
    return array.type, array.null_count, repr(array.to_pylist())


def assert_same(values):
    in_kernel = answer(objects_in_kernel, values)
    assert in_kernel == answer(objects_in_python, values)
    return in_kernel


@given(values=st.lists(st.one_of(texts, st.none()), max_size=30))
@example(values=["x" * 5000, "", None, "é" * 9000, "last"])
@example(values=[None, None])
def test_texts(kernel, values):
    """Texts and missing ones become the same array."""
    assert_same(objects(values))


@given(
    values=st.lists(texts, max_size=10), more=st.lists(st.one_of(others, surrogates), max_size=3), at=st.integers(0, 10)
)
def test_other_objects(kernel, values, more, at):
    """Other objects among texts have the same result, or the same error."""
    values[at:at] = more
    assert_same(objects(values))


def test_objects_that_the_kernel_converts(kernel):
    """Texts with None and NaN are converted; a surrogate, a subclass, bytes and numbers are left to the twin."""
    valid, offsets, content = kernel.pack_texts(objects(["a", None, "é", float("nan"), ""]))
    assert (valid, bytes(content)) == (bytes([0b10101]), "aé".encode())
    assert np.frombuffer(offsets, np.int32).tolist() == [0, 1, 1, 3, 3, 3]
    for other in ("\ud800", Text("b"), b"b", 1, 1.5, pd.NA):
        assert kernel.pack_texts(objects(["a", other])) is None


def test_a_column_that_is_not_contiguous(kernel):
    """Every second object, and the columns of a frame with several of them, become the same array."""
    values = objects([f"text {number}" for number in range(20)])
    assert assert_same(values[::2]) == assert_same(objects(values[::2].tolist()))
    frame = pd.DataFrame({"a": values, "b": values[::-1]})
    for column in (frame["a"], frame["b"], frame[::3]["b"]):
        assert_same(column.to_numpy())


@pytest.mark.parametrize("values", [np.arange(3), np.array(["a", "b"]), b"12345678", bytearray(16)])
def test_arrays_without_objects_are_refused(kernel, values):
    """The kernel never takes other bytes for the addresses of objects."""
    with pytest.raises(TypeError, match="not an array of objects"):
        kernel.pack_texts(values)
