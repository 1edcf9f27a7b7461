"""A destination made of our own receivers and a store."""

from contextlib import contextmanager

import quiver
from quiver.otap import decode_requests
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

RECEIVERS = {"grpc": OtlpGrpcReceiver, "http": OtlpHttpReceiver}
SLOTS = {"logs": 60, "spans": 61, "metrics": 62}


@contextmanager
def destination(directory, *, protocol="grpc", port=0):
    """Yield the receiver, which stores requests in *directory*."""
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{port}", workers=2)
    with quiver.open(directory) as store, RECEIVERS[protocol](store, settings) as receiver:
        yield receiver


def rows(directory, view):
    """Return the rows of one view of the store in *directory*, in order of arrival."""
    found = []
    with quiver.read(directory) as reader:
        for _, bundle in reader.bundles():
            if SLOTS[view] in bundle:
                found += bundle[SLOTS[view]].column(0).to_pylist()
    decoded = decode_requests(found, view)
    assert decoded.bad == ()
    return decoded.batch.to_pylist()


def value(attributes, key):
    """Return one attribute of a row."""
    return next((item for item in dict(attributes)[key].values() if item is not None), None)
