"""Received records and bytes are counted once, when they are stored."""

import pytest

import quiver
from otlp_requests import log_request, metric_request, span_request
from quiver.observe import InMemoryObserver
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.settings import OtlpSettings


@pytest.fixture(params=["pass_through", "convert_to_arrow"])
def received(request, tmp_path):
    """Yield a function that receives a request, and the observer."""
    observer = InMemoryObserver()
    settings = OtlpSettings(otlp_handling=request.param, dedupe_window_s=60.0)
    with quiver.open(tmp_path / "store", background=False) as store:
        intake = OtlpIntake(store, settings, observer=observer)
        yield lambda signal, data: intake.accept(signal, data).outcome, observer


def counts(observer, name):
    return {
        dict(attributes)["signal"]: amount
        for (counted, attributes), amount in observer.counts.items()
        if counted == name
    }


def test_records_spans_and_points_are_counted(received):
    """By signal, in both ways of storing them."""
    accept, observer = received
    requests = {"logs": log_request(1, 2, 3), "traces": span_request(1, 2), "metrics": metric_request(1, 2, 3, 4)}
    for signal, request in requests.items():
        assert accept(signal, request) == "stored"
    assert counts(observer, "quiver.receiver.items_total") == {"logs": 3, "traces": 2, "metrics": 4}
    assert counts(observer, "quiver.receiver.bytes_total") == {name: len(data) for name, data in requests.items()}


def test_a_repeated_or_refused_request_is_not_counted(received):
    accept, observer = received
    data = log_request(1, 2)
    assert [accept("logs", data), accept("logs", data), accept("logs", b"\xff"), accept("logs", b"")] == [
        "stored", "duplicate", "invalid", "empty",
    ]  # fmt: skip
    assert counts(observer, "quiver.receiver.items_total") == {"logs": 2}
    assert counts(observer, "quiver.receiver.bytes_total") == {"logs": len(data)}
