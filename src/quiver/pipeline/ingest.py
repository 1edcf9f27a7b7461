"""
The ingest process: one store, everything that listens, and the exporters that need no Spark.

Up: open and recover the store → register every exporter, durably → open the ports. Down, the other way: close the
ports, let requests in hand finish → seal what is open, so that exporters can read it → send what can be sent in a few
seconds → close the store.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import Any

from quiver.observe import InMemoryObserver, Observer
from quiver.pipeline.child import INGEST_READY, ChildContext, child_main, write_ready
from quiver.pipeline.forwarding import Forwarding
from quiver.pipeline.graph import Pipeline
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.pipeline.otap_config import OtapReceiverConfig
from quiver.receivers.intake import OtlpIntake
from quiver.store.opening import open_store
from quiver.store.store import Store

__all__ = ["ingest"]

GRACE_S = 5.0

_log = logging.getLogger("quiver.pipeline")


def ingest(context: ChildContext) -> None:
    """
    Receive until asked to stop.

    Raises:
        DirectoryInUse: another process has the store open.
        RetryLater: an address is taken.
        FormatUnsupported: the store was written by a newer version.
        OSError: the disk refused.
    """
    # gRPC's own log tells of every failed handshake: whoever can reach the port could fill the disk with it.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    pipeline = context.pipeline
    endpoint = None if pipeline.metrics is None else MetricsEndpoint(pipeline.metrics.listen)
    observer = InMemoryObserver() if endpoint is None else endpoint.observer
    with open_store(pipeline.persistence.path, pipeline.persistence.settings, observer=observer) as store:
        for name, _ in pipeline.exporters:
            # Before the first port opens: what arrives in between would not be theirs.
            store.register(name, start="earliest")
        store.activate()
        with Forwarding(pipeline, store, observer):
            _receive(context, store, endpoint, observer)
            _log.info("stopping: sealing what is open")
            store.flush()
    _log.info("stopped")


def _receive(context: ChildContext, store: Store, endpoint: MetricsEndpoint | None, observer: Observer) -> None:
    receivers: list[Any] = []
    try:
        if endpoint is not None:
            endpoint.start(store)
        _start_receivers(context.pipeline, store, receivers, observer)
        listening = [receiver.settings.listening_addr for receiver in receivers]
        write_ready(context.run_dir, INGEST_READY, {"listening": listening})
        _log.info("listening on %s", ", ".join(listening))
        while not context.lifeline.wait(3600.0):
            pass
    finally:
        for receiver in receivers:
            receiver.stop(GRACE_S)
        if endpoint is not None:
            endpoint.stop()


def _start_receivers(pipeline: Pipeline, store: Store, receivers: list[Any], observer: Observer) -> None:
    from quiver.receivers.otap_grpc import OtapGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured
    from quiver.receivers.otlp_grpc import OtlpGrpcReceiver  # noqa: PLC0415
    from quiver.receivers.otlp_http import OtlpHttpReceiver  # noqa: PLC0415

    for _, config in pipeline.receivers:
        intake: OtlpIntake | None = None
        grpc_type: Any = OtlpGrpcReceiver
        if isinstance(config, OtapReceiverConfig):
            grpc_type = partial(OtapGrpcReceiver, otap=config.otap())
        listeners = ((config.grpc_address, grpc_type), (config.http_address, OtlpHttpReceiver))
        for address, receiver_type in listeners:
            if address is None:
                continue
            settings = config.settings(address)
            # One window for both protocols: a client may come back by the other one.
            intake = intake or OtlpIntake(store, settings, observer=observer)
            receiver = receiver_type(store, settings, intake=intake)
            receivers.append(receiver)
            receiver.start()


if __name__ == "__main__":
    sys.exit(child_main(ingest))
