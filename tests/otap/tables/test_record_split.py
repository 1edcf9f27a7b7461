"""Requests are split between records: the parts have the same records in the same order, with their context."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otap_oracle import REQUESTS
from otap_random import random_request
from otap_strategies import requests

from quiver.otap.record_split import SplitRequest, split_request
from quiver.primitives.scan import Damage

SIGNALS = {"logs": "logs", "spans": "traces", "metrics": "metrics"}
ITEMS = {"logs": "log_records", "spans": "spans", "metrics": "metrics"}
KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def without(message, *fields: str) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    for field in fields:
        copy.ClearField(field)
    return copy.SerializeToString(deterministic=True)


def records(request: bytes, view: str) -> list[tuple]:
    """Return every record with the messages around it, and every resource, scope or metric without records."""
    found = []
    message = REQUESTS[view].FromString(request)
    for resource in getattr(message, message.DESCRIPTOR.fields[0].name):
        scopes = resource.DESCRIPTOR.fields_by_number[2].name
        around = without(resource, scopes)
        for scope in getattr(resource, scopes):
            inner = (around, without(scope, ITEMS[view]))
            for item in getattr(scope, ITEMS[view]):
                found += [(*inner, *one) for one in points(item)] if view == "metrics" else [(*inner, whole(item))]
            if not getattr(scope, ITEMS[view]):
                found.append(inner)
        if not getattr(resource, scopes):
            found.append((around,))
    return found


def whole(message) -> bytes:
    return message.SerializeToString(deterministic=True)


def points(metric) -> list[tuple]:
    kind = next((kind for kind in KINDS if metric.HasField(kind)), None)
    data = None if kind is None else getattr(metric, kind)
    if data is None or not data.data_points:
        return [(whole(metric),)]
    around = (without(metric, kind), kind, without(data, "data_points"))
    return [(*around, whole(point)) for point in data.data_points]


def parts_of(request: bytes, view: str, bytes_max: int) -> list[bytes]:
    split = split_request(request, SIGNALS[view])
    assert isinstance(split, SplitRequest)
    at, found = 0, []
    while at < len(split):
        part, end = split.part(at, len(split), bytes_max)
        assert len(part) <= bytes_max or end - at == 1 or cannot_be_split(part, view, bytes_max)
        assert end > at
        found.append(part)
        at = end
    return found


def cannot_be_split(part: bytes, view: str, bytes_max: int) -> bool:
    """Return whether the messages around the records are too large by themselves, to within a few bytes."""
    return max(sum(len(one) for one in record[:-1]) for record in records(part, view)) > bytes_max - 64


@pytest.mark.parametrize("view", SIGNALS)
@given(data=st.data())
def test_the_parts_have_the_records_of_the_request(view, data):
    """For any request and any limit."""
    request = data.draw(requests(view)).SerializeToString()
    bytes_max = data.draw(st.integers(1, 300))
    parts = parts_of(request, view, bytes_max)

    assert [one for part in parts for one in records(part, view)] == records(request, view)


@pytest.mark.parametrize("view", SIGNALS)
def test_a_large_request_fills_its_parts(view):
    """With records of a few hundred bytes, each part but the last uses nearly the limit."""
    message = REQUESTS[view]()
    for seed in range(400):
        message.MergeFromString(random_request(view, seed))
    request = message.SerializeToString()
    largest = len(request) // 5
    parts = parts_of(request, view, largest)

    assert [one for part in parts for one in records(part, view)] == records(request, view)
    assert len(parts) <= 8
    split = split_request(request, SIGNALS[view])
    assert records(split.select([(0, len(split))]), view) == records(request, view)
    assert records(split.select([(1, 2), (5, 9)]), view) == [
        *records(split.part(1, 2, 1)[0], view),
        *records(split.part(5, 9, 1 << 30)[0], view),
    ]


def test_unknown_fields_are_kept():
    """Unknown fields around records and inside them are in every part that they belong to."""
    unknown = b"\xfa\x01\x03abc"  # field 31
    record = b"\x1a\x01x" + unknown
    scope = unknown + b"\x12" + bytes([len(record)]) + record + b"\x12" + bytes([len(record)]) + record
    resource = b"\x12" + bytes([len(scope)]) + scope + unknown
    request = b"\x0a" + bytes([len(resource)]) + resource
    parts = parts_of(request, "logs", 40)

    assert len(parts) == 2
    assert [part.count(unknown) for part in parts] == [3, 3]
    assert parts[0] == parts[1]


def test_a_resource_above_the_limit_is_not_repeated():
    """A thousand records of such a resource stay one part: each one alone would be as large."""
    message = REQUESTS["logs"]()
    for name, count in (("a", 3), ("b" * 5000, 1000), ("c", 3)):
        resource = message.resource_logs.add(schema_url=name)
        for number in range(count):
            resource.scope_logs.add().log_records.add(time_unix_nano=number)
    request = message.SerializeToString()
    parts = parts_of(request, "logs", 2000)

    assert [len(records(part, "logs")) for part in parts] == [3, 1000, 3]


def test_invalid_bytes_are_refused():
    """Truncated bytes, a group, a varint that is too long."""
    for junk in (b"\x0a\x05abc", b"\x0b", b"\x0a" + b"\xff" * 11, b"\x0d\x00", b"\x0a\x02\x12\x05"):
        assert isinstance(split_request(junk, "logs"), Damage)


@given(st.binary(max_size=200))
def test_splitting_any_bytes_does_not_raise(data):
    for signal in SIGNALS.values():
        split = split_request(data, signal)
        assert isinstance(split, Damage) or len(split.select([(0, len(split))])) >= 0


def test_a_metric_with_two_kinds_of_data_is_not_split():
    """In protobuf only the last kind counts: splitting one of them would change which one that is."""
    point = b"\x0a\x02\x19\x00"
    metric = b"\x2a" + bytes([len(point)]) + point + b"\x3a" + bytes([len(point)]) + point
    scope = b"\x12" + bytes([len(metric)]) + metric
    resource = b"\x12" + bytes([len(scope)]) + scope
    split = split_request(b"\x0a" + bytes([len(resource)]) + resource, "metrics")

    assert isinstance(split, SplitRequest)
    assert len(split) == 1
