"""
The ingest process: the stores, the receivers, and the exporters that need no Spark.

Start: open and recover the stores → register every route durably → open the ports. Stop: close the ports and finish the
requests in progress → seal the open segments, so that exporters can read them → wait until the Spark process has
written what it can, partly into stores of this process → send what can be sent in time → close the stores.

With `--cores` there are several such processes on the same ports, each with the store of one core. The kernel
distributes connections among them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.exporter_stats import begin_counts
from quiver.errors import CapacityError, PipelineError, QuiverError, StoreClosedError, UsageError
from quiver.observe import AttributedObserver, InMemoryObserver, Observer
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.counts import CountsRead
from quiver.pipeline.disk import budget_of, buffer_share, dead_letter_share
from quiver.pipeline.exporter_figures import ExporterFigures
from quiver.pipeline.forwarding import Forwarding
from quiver.pipeline.health import Health
from quiver.pipeline.metrics_endpoint import MetricsEndpoint
from quiver.pipeline.model import Buffer, Node, Pipeline
from quiver.pipeline.port_limits import KEPT_FOR_LOGS, connection_share, too_many_connections
from quiver.pipeline.processes.child import DRAIN_S, ChildContext, child_main, set_log_level, write_closed, write_ready
from quiver.primitives.disk.descriptors import RESERVE, descriptor_limit
from quiver.receivers.settings import split_address
from quiver.store.cores.opening import open_path
from quiver.store.cores.store import MultiCoreStore
from quiver.store.limits.disk_budget import DiskBudget, DiskShare
from quiver.store.store import Store

__all__ = ["ingest"]

GRACE_S = 5.0
LOOK_S = 1.0
"""A failed store refuses every request: the process must end soon, so that a new one reopens the store."""

_log = logging.getLogger("quiver.pipeline")


@dataclass(slots=True)
class _Station:
    """An open buffer of the pipeline: its store, and the exporters of this process that read it."""

    part: Pipeline
    store: Store | MultiCoreStore
    own: Store
    observer: Observer
    dead_letter_share: DiskShare | None = None
    sending: dict[str, Forwarding] = field(default_factory=dict)

    @property
    def buffer(self) -> Buffer:
        return self.part.buffers[0]

    def send(self) -> None:
        """Start the exporters of this process on each open store that has none yet, including cores to be drained."""
        for path in self.sending.keys() - {store.path for store in self.open_stores()}:
            self.sending.pop(path).__exit__(None, None, None)  # drained and removed
        for store in self.open_stores():
            if store.path in self.sending:
                self.sending[store.path].require_alive()
                continue
            try:
                cores = self.store.core_count if isinstance(self.store, MultiCoreStore) else 1
                forwarding = Forwarding(
                    self.part, store, self.observer, stores=cores, dead_letter_share=self.dead_letter_share
                )
                self.sending[store.path] = forwarding.__enter__()
            except StoreClosedError:
                if store in self.open_stores():
                    raise
                # A former core without data: it was removed in the meantime.

    def require_healthy(self) -> None:
        """
        Check that no store has failed.

        Raises:
            StoreFailedError: a store has failed and accepts nothing until it is reopened.
        """
        for store in self.open_stores():
            store.require_healthy()

    def open_stores(self) -> list[Store]:
        """Return the open stores of this process: one, or one for each of its cores."""
        return [self.store] if isinstance(self.store, Store) else list(self.store.open_stores().values())

    def let_go(self, part: Pipeline) -> None:
        """Release the subscribers of exporters in *part* that other processes serve, such as the Spark process."""
        for name in dict(self.part.forwarders).keys() - dict(part.forwarders).keys():
            try:
                self.store.register(name, start="earliest").release()
            except (QuiverError, OSError) as error:
                _log.warning("%s stays with this process until it ends: %s", name, error)

    def stop_sending(self, drain_s: float = DRAIN_S) -> None:
        """Let the exporters send for up to *drain_s* seconds in total, then stop them."""
        deadline = SYSTEM_CLOCK.monotonic() + drain_s
        while self.sending:
            _, forwarding = self.sending.popitem()
            forwarding.drain_s = max(deadline - SYSTEM_CLOCK.monotonic(), 0.0)
            forwarding.__exit__(None, None, None)


def ingest(context: ChildContext) -> None:
    """
    Receive until asked to stop.

    Raises:
        DirectoryInUseError: another process has the store open.
        TransientError: an address is taken.
        UnsupportedFormatError: the store was written by a newer version.
        StoreFailedError: a store failed; another process can open it again.
        OSError: the disk refused.
    """
    # gRPC logs every failed handshake: any client that can reach the port could fill the disk with log lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    pipeline = context.pipeline
    RESERVE.keep(KEPT_FOR_LOGS)
    health = Health()
    endpoint = None
    with ExitStack() as stores:
        if pipeline.metrics is not None:
            # Start this first, so that probes get an answer while a long log is recovered.
            endpoint = MetricsEndpoint(_own_address(pipeline.metrics.listen, context), health)
            stores.callback(endpoint.stop)
            endpoint.start()
        observer = InMemoryObserver() if endpoint is None else endpoint.observer
        budget = budget_of(pipeline, context.cores)
        stations = [_open(part, context, observer, stores, budget) for part in pipeline.parts()]
        exporters = ExporterFigures(lambda: _stores_of_exporters(stations))
        try:
            _begin_counts(context, stations)
            for station in stations:
                station.send()
            if endpoint is not None:
                if len(stations) == 1:
                    endpoint.observe(stations[0].own)
                else:
                    endpoint.observe_buffers({station.buffer.name: station.own for station in stations})
                endpoint.observe_exporters(exporters)
            for station in stations:
                health.watch(station.buffer.name, station.own)
            counts = CountsRead(context.run_dir, observer)
            _receive(context, stations, counts, health)
            _close(context, stations)
            while not context.watchdog.wait(LOOK_S):
                _look(context, stations, counts)
            _take_over(stations)
        except BaseException:
            _stop_sending(stations, 0.0)
            raise
        _stop_sending(stations, context.watchdog.left_s(context.drain_s))
    _log.info("stopped")


def _stores_of_exporters(stations: list[_Station]) -> dict[str, list[Store]]:
    return {name: station.open_stores() for station in stations for name, _ in station.part.exporters}


def _begin_counts(context: ChildContext, stations: list[_Station]) -> None:
    """Create the counters of the exporters on Spark now: their process may take long to start."""
    if context.core == 0:
        for station in stations:
            for name, _ in station.part.queries:
                begin_counts(station.observer, name)


def _close(context: ChildContext, stations: list[_Station]) -> None:
    """Seal all received data and note that no more will arrive."""
    _log.info("stopping: sealing open segments")
    for station in stations:
        try:
            station.store.seal()
        except CapacityError as error:
            # The data is in the log. Exporters may still free space for its segment.
            _log.warning("%s is not sealed yet: %s", station.buffer.name, error)
    write_closed(context.run_dir, context.ready_name)


def _take_over(stations: list[_Station]) -> None:
    """Import the last batches that the Spark process committed, so that they can be sent."""
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
    """Return the address of the metrics of this process: each core uses the next port."""
    host, port = split_address(address)
    return address if context.core == 0 else f"{f'[{host}]' if ':' in host else host}:{port + context.core}"


def _open(
    part: Pipeline, context: ChildContext, observer: Observer, stores: ExitStack, budget: DiskBudget | None
) -> _Station:
    config = part.persistence
    named = _naming(part.buffers[0], context, observer)
    # Buffers in memory use no disk space.
    budget = None if part.buffers[0].kind == "memory" else budget
    share = buffer_share(budget, config.path)
    store: Store | MultiCoreStore
    if context.cores is None:
        store = own = stores.enter_context(open_path(config.path, config.settings, observer=named, share=share))
    else:
        opened = open_path(
            config.path, config.settings, cores=context.cores, core=context.core, observer=named, share=share
        )
        store = stores.enter_context(opened)
        own = store.core(context.core)
    for name, _ in part.exporters:
        # Register before the first port opens: subscribers would miss data that arrives earlier.
        store.register(name, start="earliest")
    store.activate()
    return _Station(part, store, own, observer, dead_letter_share(budget, config.path))


def _naming(buffer: Buffer, context: ChildContext, observer: Observer) -> Observer:
    """Return the observer for the store and the receivers of *buffer*: their counts name it, if there are several."""
    # The names of exporters are unique, so they need no buffer.
    return observer if len(context.pipeline.buffers) == 1 else AttributedObserver(observer, buffer=buffer.name)


def _receive(context: ChildContext, stations: list[_Station], counts: CountsRead, health: Health) -> None:
    receivers: list[Receiver] = []
    limit = descriptor_limit()
    share = connection_share(context.pipeline, limit)
    warning = too_many_connections(context.pipeline, limit)
    if warning is not None:
        _log.warning("%s", warning)
    try:
        for station in stations:
            for node in station.buffer.receivers:
                for receiver in node.config.receivers(_place(node, station, context, health, share)):
                    receivers.append(receiver)
                    receiver.start()
        listening = [receiver.settings.listening_addr for receiver in receivers]
        health.alive(SYSTEM_CLOCK.monotonic())
        health.phase = "listening"
        write_ready(context.run_dir, context.ready_name, {"listening": listening})
        _log.info("listening on %s", ", ".join(listening))
        while not context.watchdog.wait(LOOK_S) and not context.watchdog.is_closing:
            if context.watchdog.reload_requested():
                _reload(context, stations)
            _look(context, stations, counts)
            health.alive(SYSTEM_CLOCK.monotonic())
    finally:
        health.phase = "stopping"
        for receiver in receivers:
            receiver.stop(GRACE_S)


def _look(context: ChildContext, stations: list[_Station], counts: CountsRead) -> None:
    if context.core == 0:
        counts.look()
    for station in stations:
        station.require_healthy()
        try:
            station.send()
        except UsageError as error:
            # At startup this ends the process. A certificate that becomes invalid later does not stop the receivers.
            _log.error("%s: its exporters are stopped: %s", station.buffer.name, error)


def _reload(context: ChildContext, stations: list[_Station]) -> None:
    """Apply changes of exporters and of the log level from the file; the supervisor handles all other changes."""
    if context.reread is None:
        return
    try:
        parts = {part.buffers[0].name: part for part in context.reread().parts()}
    except (PipelineError, UsageError) as error:
        _log.error("not reloaded: %s", error)
        return
    for station in stations:
        part = parts.get(station.buffer.name)
        if part is None:
            continue
        for name, _ in part.exporters:
            station.store.register(name, start="earliest")
        # Restart all exporters: a certificate may have been replaced under the same name.
        station.stop_sending()
        station.let_go(part)
        station.part = part
    _begin_counts(context, stations)
    set_log_level(next(iter(parts.values())))
    _log.info("reloaded")


def _place(
    node: Node, station: _Station, context: ChildContext, health: Health, connection_share: float
) -> ReceiverPlace:
    observer = _naming(station.buffer, context, station.observer)
    if len(context.pipeline.receivers) > 1:
        observer = AttributedObserver(observer, receiver=node.name)
    return ReceiverPlace(
        station.own,
        observer,
        is_durable=station.buffer.kind != "memory",
        cores=context.cores,
        core=context.core,
        problems=health.store_problems,
        connection_share=connection_share,
    )


if __name__ == "__main__":
    sys.exit(child_main(ingest))
