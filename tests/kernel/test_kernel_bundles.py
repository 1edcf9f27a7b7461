"""The bundles that the compiled kernel makes of batches are those of its twin."""

import copy
import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.bundle import OTAP, Bundle, _FieldsInPython

FIELDS = _FieldsInPython.__slots__


@pytest.fixture(scope="session")
def fields(kernel):
    """The type of the kernel, of which `Bundle` is a subclass."""
    assert issubclass(Bundle, kernel.BundleFields)
    return kernel.BundleFields


class Source:
    """An iterator that ends or fails after *count* items, and records the requests."""

    def __init__(self, name, count, error, requests):
        self.name, self.count, self.error, self.requests = name, count, error, requests
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.requests.append((self.name, self.at))
        if self.at == self.count:
            raise self.error
        self.at += 1
        return (self.name, self.at)


def read(cls, counts, errors, stop):
    """Return the fields of the bundles, the requests, and the error."""
    requests = []
    batches, times_ns = map(Source, ("batch", "time"), counts, errors, (requests, requests))
    found = []
    bundles = cls.each_of_read(30, batches, times_ns, OTAP)
    try:
        for bundle in bundles:
            assert type(bundle) is cls
            found.append([getattr(bundle, name) for name in FIELDS])
            if len(found) == stop:
                break
    except ValueError as error:
        return found, requests, str(error)
    return found, requests, None


@given(
    counts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    errors=st.tuples(*[st.sampled_from([StopIteration(), ValueError("damaged")])] * 2),
    stop=st.integers(1, 6),
)
def test_every_bundle_and_every_request_is_that_of_the_twin(fields, counts, errors, stop):
    """Whichever of batches and times ends or fails first, and if the loop is left early."""
    assert read(fields, counts, errors, stop) == read(_FieldsInPython, counts, errors, stop)


def test_a_subclass_makes_its_own_bundles(fields):
    """Also one with a dictionary, which the garbage collector visits."""

    class Named(Bundle):
        pass

    (bundle,) = Named.each_of_read(30, ["batch"], [7], OTAP)
    bundle.itself = bundle
    assert type(bundle) is Named
    assert bundle[30] == "batch"
    del bundle
    assert gc.collect() > 0


@pytest.mark.parametrize("stop", [0, 2, 5])
def test_nothing_is_kept_after_the_last_use(fields, stop):
    """Neither by the bundles nor by an iterator that is left early."""
    batch, time_ns, adapter = object(), 1 << 80, object()
    before = [sys.getrefcount(one) for one in (batch, time_ns, adapter)]
    bundles = fields.each_of_read(30, [batch] * 5, [time_ns] * 5, adapter)
    kept = [next(bundles) for _ in range(stop)]
    assert sys.getrefcount(batch) > before[0]
    del bundles, kept
    assert [sys.getrefcount(one) for one in (batch, time_ns, adapter)] == before


def test_a_field_without_a_value_is_missing(fields):
    """As a slot of a class is."""
    bundle = Bundle.__new__(Bundle)
    for name in FIELDS:
        with pytest.raises(AttributeError, match=name):
            getattr(bundle, name)


def test_a_bundle_can_be_copied(fields):
    """The copy has the same fields."""
    (bundle,) = Bundle.each_of_read(30, ["batch"], [7], OTAP)
    again = copy.copy(bundle)
    assert [getattr(again, name) for name in FIELDS] == [getattr(bundle, name) for name in FIELDS]


@pytest.mark.parametrize("wrong", [(30, [], []), (30, 5, [], OTAP), (30, [], 5, OTAP)])
def test_arguments_that_are_missing_or_no_iterables_are_refused(fields, wrong):
    """A wrong argument is an error at once, not while reading."""
    with pytest.raises(TypeError):
        fields.each_of_read(*wrong)
