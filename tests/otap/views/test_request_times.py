"""The range of event times in OTLP requests: that of the rows of the view, with and without the compiled kernel."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from otap_random import random_request

from otlp_requests import log_request, metric_request, span_request
from quiver.otap import request_times as module
from quiver.otap.request_nesting import NESTINGS, nested_items_in_python
from quiver.otap.request_shapes import SHAPES
from quiver.otap.request_times import RequestTimes, request_times
from quiver.otap.views.event_time import event_times
from quiver.otap.views.view import decode_requests

REQUESTS = {"logs": log_request, "spans": span_request, "metrics": metric_request}
EVENT_TIMES = {
    "logs": ["time_unix_nano", "observed_time_unix_nano"],
    "spans": ["start_time_unix_nano"],
    "metrics": ["time_unix_nano"],
}


class PythonTwin:
    nested_items = staticmethod(nested_items_in_python)


@pytest.fixture(params=["kernel", "python", "protobuf"])
def way(request, monkeypatch):
    if request.param == "kernel" and module.KERNEL is None:
        pytest.skip("the compiled kernel is not in use")
    if request.param != "kernel":
        monkeypatch.setattr(module, "KERNEL", PythonTwin if request.param == "python" else None)
    return request.param


@pytest.mark.parametrize("view", NESTINGS)
def test_the_nesting_is_that_of_the_messages(view):
    """The field numbers are those of the installed protobuf messages."""
    shape = SHAPES[view]
    messages = [shape.request.DESCRIPTOR]
    names = [{shape.resources}, {shape.scopes}, {shape.items}]
    if view == "metrics":
        names += [{"gauge", "sum", "histogram", "exponential_histogram", "summary"}, {"data_points"}]
    for level, repeated, expected in zip(NESTINGS[view].levels, NESTINGS[view].repeated, names, strict=True):
        fields = [message.fields_by_number[number] for message in messages for number in level]
        assert {field.name for field in fields} == expected
        others = [field for message in messages for field in message.fields if field not in fields]
        assert {field.number for field in others if field.type in {field.TYPE_STRING, field.TYPE_MESSAGE}} == set(
            repeated
        )
        messages = [field.message_type for field in fields]
    for item in messages:
        assert [item.fields_by_number[number].name for number in NESTINGS[view].times] == EVENT_TIMES[view]


@pytest.mark.parametrize("view", REQUESTS)
def test_the_range_of_some_requests(view, way):
    """The earliest and the latest time, and the number of items; times of 0 are unknown."""
    requests = [REQUESTS[view](*times) for times in ((30, 0, 50, 40, 60), (), (20,), (0,))]
    array = pa.array([b"junk", *requests, b"junk"], pa.binary()).slice(1, 4)
    assert request_times(array, view) == RequestTimes(7, 20, 60)
    assert request_times(array.slice(3), view) == RequestTimes(1, 0, -1)
    assert request_times(array.slice(1, 1), view) == request_times(array.slice(0, 0), view) == RequestTimes(0, 0, -1)
    assert request_times(pa.array([], pa.binary()), view) == RequestTimes(0, 0, -1)


def test_what_has_no_range(way):
    """A truncated request, a time after 2262, a missing value."""
    whole = log_request(10, 20)
    assert request_times(pa.array([whole, whole[:-1]]), "logs") is None
    assert request_times(pa.array([log_request(10, 2**63)]), "logs") is None
    assert request_times(pa.array([whole, None]), "logs") is None
    assert request_times(pa.array([log_request(0, 7, observed=(5,))]), "logs") == RequestTimes(2, 5, 7)


@pytest.mark.parametrize("view", REQUESTS)
def test_random_requests_have_the_range_of_their_rows(view, way):
    """All fields that OTLP has, in any combination."""
    for seed in range(30):
        data = random_request(view, seed)
        rows = decode_requests([data], view)
        found = request_times(pa.array([data]), view)
        times = [time for time in event_times(rows.batch, view).to_pylist() if time is not None]
        if times and max(times) == 2**63 - 1:
            assert found is None or found.max_ns == 2**63 - 1
        else:
            assert found == RequestTimes(sum(rows.rows), min(times, default=0), max(times, default=-1))


@given(st.binary(max_size=60))
def test_any_bytes_have_a_range_or_none(data):
    """Where the rows exist, their times are in the range."""
    for view in NESTINGS:
        found = request_times(pa.array([data]), view)
        rows = decode_requests([data], view)
        if found is not None and not rows.bad:
            times = event_times(rows.batch, view).to_pylist()
            assert all(time is None or found.min_ns <= time <= found.max_ns for time in times)
