"""A Flight server of a small store, and clients of it."""

from contextlib import ExitStack

import pyarrow.flight as fl
import pytest
from flight_calls import Consumer, close

import quiver
from quiver.observe import InMemoryObserver
from quiver.receivers.flight.receiver import FlightReceiver
from quiver.receivers.flight.settings import FlightSettings
from quiver.receivers.flight.sources import served_store


@pytest.fixture
def opened():
    """Return a stack that closes what a test opens."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def store(tmp_path, opened):
    return opened.enter_context(quiver.open(tmp_path / "buffer"))


@pytest.fixture
def observer():
    return InMemoryObserver()


@pytest.fixture
def serve(store, opened, observer, tmp_path):
    """Return a function that starts a server of the store with some settings, and returns a client; `port` is its."""

    def start(*more, writable=True, **settings):
        stores = [served_store(tmp_path / "buffer", store if writable else None), *more]
        receiver = FlightReceiver(
            stores, FlightSettings(**{"listening_addr": "127.0.0.1:0", **settings}), observer=observer
        )
        start.receiver, start.port = receiver, opened.enter_context(receiver).port
        return opened.enter_context(fl.connect(f"grpc://127.0.0.1:{start.port}"))

    return start


@pytest.fixture
def consume(opened):
    """Return a function that starts a client of a subscription."""

    def start(client, **keys):
        consumer = Consumer(client, **keys)
        opened.callback(close, consumer.writer)
        return consumer

    return start
