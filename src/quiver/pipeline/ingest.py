"""
The ingest process: the stores, everything that listens, and the exporters that need no Spark.

Up: open and recover the stores → register every route, durably → open the ports. Down, the other way: close the
ports, let requests in hand finish → seal what is open, so that exporters can read it → stay until the Spark process has
written what it can, part of it into stores of this process → send what can be sent in time → close the stores.

With `--cores` there are several such processes on the same ports, each with the store of one core. The kernel deals
connections out among them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import AtCapacity, PipelineInvalid, QuiverError, WrongUse
from quiver.observe import InMemoryObserver, Observer
from quiver.pipeline.child import DRAIN_S, ChildContext, child_main, set_log_level, write_ready
from quiver.pipeline.counts import CountsRead
from quiver.pipeline.forwarding import Forwarding
from quiver.pipeline.graph import Buffer, Pipeline
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.pipeline.otap_config import OtapReceiverConfig
from quiver.pipeline.polled_config import PolledReceiverConfig
from quiver.pipeline.qwp_config import QwpReceiverConfig
from quiver.pipeline.receiver_config import OtlpReceiverConfig
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.otap_settings import OtapSettings
from quiver.receivers.qwp_settings import QwpSettings
from quiver.receivers.settings import OtlpSettings, split_address
from quiver.store.shard_opening import open_path
from quiver.store.shards import ShardedStore
from quiver.store.store import Store

__all__ = ["ingest", "settings_in_use"]

_Settings = TypeVar("_Settings", bound=OtlpSettings | QwpSettings)

GRACE_S = 5.0
LOOK_S = 5.0

AGE_WITH_CORES_S = 30.0
"""An SDK keeps its connection for ever. Asked to connect anew from time to time, all processes get their share."""

_log = logging.getLogger("quiver.pipeline")


@dataclass(slots=True)
class _Station:
    """
    One buffer of the pipeline, open: its store, who takes from it in this process, and what ends that.
    """

    part: Pipeline
    store: Store | ShardedStore
    own: Store
    observer: Observer
    sending: dict[str, Forwarding] = field(default_factory=dict)

    @property
    def buffer(self) -> Buffer:
        return self.part.buffers[0]

    def send(self) -> None:
        """
        Let the exporters of this process run on each store that is open and has none yet: cores are drained, too.
        """
        stores = [self.store] if isinstance(self.store, Store) else self.store.open_stores().values()
        for path in self.sending.keys() - {store.path for store in stores}:
            self.sending.pop(path).__exit__(None, None, None)  # drained, and gone
        for store in stores:
            if store.path not in self.sending:
                self.sending[store.path] = Forwarding(self.part, store, self.observer).__enter__()

    def stop_sending(self, drain_s: float = DRAIN_S) -> None:
        """
        Let them send what can be sent in *drain_s* seconds, all together, and end.
        """
        deadline = SYSTEM_CLOCK.monotonic() + drain_s
        while self.sending:
            _, forwarding = self.sending.popitem()
            forwarding.drain_s = max(deadline - SYSTEM_CLOCK.monotonic(), 0.0)
            forwarding.__exit__(None, None, None)


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
    endpoint = None if pipeline.metrics is None else MetricsEndpoint(_own_address(pipeline.metrics.listen, context))
    observer = InMemoryObserver() if endpoint is None else endpoint.observer
    with ExitStack() as stores:
        stations = [_open(part, context, observer, stores) for part in pipeline.parts()]
        try:
            for station in stations:
                station.send()
            if endpoint is not None:
                main = context.pipeline.main.name
                endpoint.start(next(one.own for one in stations if one.buffer.name == main))
            counts = CountsRead(context.run_dir, observer)
            _receive(context, stations, observer, counts)
            _close(context, stations)
            while not context.lifeline.wait(LOOK_S):
                _look(context, stations, counts)
            _take_over(stations)
        except BaseException:
            _stop_sending(stations, 0.0)
            raise
        finally:
            if endpoint is not None:
                endpoint.stop()
        _stop_sending(stations, context.lifeline.left_s(context.drain_s))
    _log.info("stopped")


def _close(context: ChildContext, stations: list[_Station]) -> None:
    """
    Seal all that was received, and say so: nothing more comes in.
    """
    _log.info("stopping: sealing what is open")
    for station in stations:
        try:
            station.store.flush()
        except AtCapacity as error:
            # It is in the log. What exporters take yet may make room for it.
            _log.warning("%s is not sealed yet: %s", station.buffer.name, error)
    with suppress(OSError):  # without room for it, whoever waits for this note goes on a little later
        write_ready(context.run_dir, context.ready_name, {"closed": True})


def _take_over(stations: list[_Station]) -> None:
    """
    Take over what the Spark process committed last, so that it can be sent on.
    """
    for station in stations:
        try:
            station.store.maintain()
        except (QuiverError, OSError) as error:
            _log.warning("%s: %s", station.buffer.name, error)


def _stop_sending(stations: list[_Station], drain_s: float) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + drain_s
    for station in stations:
        station.stop_sending(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))


def _own_address(address: str, context: ChildContext) -> str:
    """
    Return where this process tells its metrics: each core one port above the one before.
    """
    host, port = split_address(address)
    return address if context.core == 0 else f"{f'[{host}]' if ':' in host else host}:{port + context.core}"


def _open(part: Pipeline, context: ChildContext, observer: Observer, stores: ExitStack) -> _Station:
    config = part.persistence
    store: Store | ShardedStore
    if context.cores is None:
        store = own = stores.enter_context(open_path(config.path, config.settings, observer=observer))
    else:
        store = stores.enter_context(
            open_path(config.path, config.settings, cores=context.cores, core=context.core, observer=observer)
        )
        own = store.core(context.core)
    for name, _ in part.exporters:
        # Before the first port opens: what arrives in between would not be theirs.
        store.register(name, start="earliest")
    store.activate()
    return _Station(part, store, own, observer)


def _receive(context: ChildContext, stations: list[_Station], observer: Observer, counts: CountsRead) -> None:
    receivers: list[Any] = []
    try:
        for station in stations:
            _start_receivers(station, context, receivers, observer)
        listening = [receiver.settings.listening_addr for receiver in receivers]
        write_ready(context.run_dir, context.ready_name, {"listening": listening})
        _log.info("listening on %s", ", ".join(listening))
        while not context.lifeline.wait(LOOK_S) and not context.lifeline.is_closing:
            if context.lifeline.reload_asked():
                _reload(context, stations)
            _look(context, stations, counts)
    finally:
        for receiver in receivers:
            receiver.stop(GRACE_S)


def _look(context: ChildContext, stations: list[_Station], counts: CountsRead) -> None:
    if context.core == 0:
        counts.look()
    for station in stations:
        try:
            station.send()
        except WrongUse as error:
            # At the start this ends the process. A certificate that goes bad while it runs does not stop the receivers.
            _log.error("%s: its exporters stand still: %s", station.buffer.name, error)


def _reload(context: ChildContext, stations: list[_Station]) -> None:
    """
    Take over what the file says now of exporters and of the log's level; the supervisor looked at the rest.
    """
    if context.reread is None:
        return
    try:
        parts = {part.buffers[0].name: part for part in context.reread().parts()}
    except (PipelineInvalid, WrongUse) as error:
        _log.error("not reloaded: %s", error)
        return
    for station in stations:
        part = parts.get(station.buffer.name)
        if part is None:
            continue
        for name, _ in part.exporters:
            station.store.register(name, start="earliest")
        # All of them: a certificate may have been replaced below the same name.
        station.stop_sending()
        station.part = part
    set_log_level(next(iter(parts.values())))
    _log.info("reloaded")


def _start_receivers(station: _Station, context: ChildContext, receivers: list[Any], observer: Observer) -> None:
    from quiver.receivers.otap_grpc import OtapGrpcReceiver  # noqa: PLC0415 - an extra; only what is configured
    from quiver.receivers.otlp_grpc import OtlpGrpcReceiver  # noqa: PLC0415
    from quiver.receivers.otlp_http import OtlpHttpReceiver  # noqa: PLC0415

    for node in station.buffer.receivers:
        config = node.config
        if isinstance(config, PolledReceiverConfig):
            if context.core == 0:  # a position has one reader
                receivers.append(config.receiver(station.own, observer))
                receivers[-1].start()
            continue
        if isinstance(config, QwpReceiverConfig):
            from quiver.receivers.qwp import QwpReceiver  # noqa: PLC0415

            (settings,) = settings_in_use(config, station.buffer, context)[0].values()
            receivers.append(QwpReceiver(station.own, settings, observer=observer))
            receivers[-1].start()
            continue
        intake: OtlpIntake | None = None
        types: dict[str, Any] = {"grpc": OtlpGrpcReceiver, "http": OtlpHttpReceiver}
        if isinstance(config, OtapReceiverConfig):
            types["grpc"] = partial(OtapGrpcReceiver, otap=config.otap())
        for protocol, settings in settings_in_use(config, station.buffer, context)[0].items():
            # One window for both protocols: a client may come back by the other one.
            intake = intake or OtlpIntake(station.own, settings, observer=observer)
            receiver = types[protocol](station.own, settings, intake=intake)
            receivers.append(receiver)
            receiver.start()


def settings_in_use(
    config: OtlpReceiverConfig | QwpReceiverConfig, buffer: Buffer, context: ChildContext
) -> tuple[dict[str, Any], OtapSettings | None]:
    """
    Return the settings of each port that *config* opens to fill *buffer*, by protocol, and the limits of OTAP streams.

    Raises:
        SettingsInvalid: two of the settings contradict each other.
    """
    ports = {
        protocol: _settled(config.settings(address), buffer, context) for protocol, address in config.addresses.items()
    }
    return ports, config.otap() if isinstance(config, OtapReceiverConfig) else None


def _settled(settings: _Settings, buffer: Buffer, context: ChildContext) -> _Settings:
    """
    Return *settings* as they are here: in memory there is nothing to sync, and cores share the port.
    """
    if buffer.kind == "memory":
        settings = replace(settings, ack="logged")
    if context.cores is None:
        return settings
    keepalive = settings.keepalive
    if keepalive.max_connection_age_s is None:
        keepalive = replace(keepalive, max_connection_age_s=AGE_WITH_CORES_S)
    return replace(settings, share_port=True, keepalive=keepalive)


if __name__ == "__main__":
    sys.exit(child_main(ingest))
