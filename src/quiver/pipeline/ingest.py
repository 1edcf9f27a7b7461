"""
The ingest process: one store, and everything that listens.

Up: open and recover the store → register every exporter, durably → open the ports. Down, the other way: close the
ports, let requests in hand finish → seal what is open, so that Spark can read it → close the store.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from quiver.pipeline.child import INGEST_READY, ChildContext, child_main, write_ready
from quiver.pipeline.graph import Pipeline
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
    pipeline = context.pipeline
    with open_store(pipeline.persistence.path, pipeline.persistence.settings) as store:
        for name, _ in pipeline.exporters:
            # Before the first port opens: what arrives in between would not be theirs.
            store.register(name, start="earliest")
        store.activate()
        receivers: list[Any] = []
        try:
            _start_receivers(pipeline, store, receivers)
            listening = [receiver.settings.listening_addr for receiver in receivers]
            write_ready(context.run_dir, INGEST_READY, {"listening": listening})
            _log.info("listening on %s", ", ".join(listening))
            while not context.lifeline.wait(3600.0):
                pass
        finally:
            for receiver in receivers:
                receiver.stop(GRACE_S)
        _log.info("stopping: sealing what is open")
        store.flush()
    _log.info("stopped")


def _start_receivers(pipeline: Pipeline, store: Store, receivers: list[Any]) -> None:
    from quiver.receivers.otlp_grpc import OtlpGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured
    from quiver.receivers.otlp_http import OtlpHttpReceiver  # noqa: PLC0415

    for _, config in pipeline.receivers:
        intake: OtlpIntake | None = None
        listeners = ((config.grpc_address, OtlpGrpcReceiver), (config.http_address, OtlpHttpReceiver))
        for address, receiver_type in listeners:
            if address is None:
                continue
            settings = config.settings(address)
            # One window for both protocols: a client may come back by the other one.
            intake = intake or OtlpIntake(store, settings)
            receiver = receiver_type(store, settings, intake=intake)
            receivers.append(receiver)
            receiver.start()


if __name__ == "__main__":
    sys.exit(child_main(ingest))
