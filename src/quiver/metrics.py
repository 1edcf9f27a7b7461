"""
Metrics through the OpenTelemetry API: an observer, and the gauges of an open store. `metric_table` has their names.

`import quiver` does not need OpenTelemetry, nor does this module until one of the two is used; the extra `metrics`
brings it. Counters keep the architecture document's names::

    meter = opentelemetry.metrics.get_meter("quiver")
    with quiver.open("buffer/", observer=OpenTelemetryObserver(meter)) as store:
        observe_store(store, meter)
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.exporter_metrics import EXPORTER_METRICS
from quiver.metric import Figures, Metric, Reading
from quiver.metric_table import LOG_METRICS, METRICS
from quiver.observe import Value, log_event
from quiver.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

__all__ = [
    "LOG_METRICS",
    "METRICS",
    "Metric",
    "ObservedExporters",
    "ObservedLogs",
    "ObservedSender",
    "ObservedStore",
    "ObservedTopics",
    "OpenTelemetryObserver",
    "observe_exporters",
    "observe_logs",
    "observe_senders",
    "observe_store",
    "observe_topics",
]

_LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""OpenTelemetry's own are made for milliseconds: every fsync would land in the first."""

_SNAPSHOT_S = 0.5
"""The gauges of one collection are read from one look at the store, which is not older than this."""

T = TypeVar("T")

_LATER = {metric.name: metric for metric in LOG_METRICS}


class ObservedStore(Protocol):
    """What is asked of a store, be it one or one of several cores."""

    @property
    def settings(self) -> Settings:
        """How it behaves."""

    def stats(self) -> dict[str, Any]:
        """Return figures of this moment."""


class ObservedTopics(Protocol):
    """What is asked of a `TopicStore`."""

    def stats(self) -> dict[str, Any]:
        """Return figures of this moment."""


class ObservedLogs(Protocol):
    """What is asked of an `AofManager`."""

    def snapshot(self) -> Sequence[Any]:
        """Return what each open log says of itself, with its `name` and its `figures()`."""


class ObservedExporters(Protocol):
    """What is asked of the exporters of a pipeline."""

    def figures(self) -> dict[str, Any]:
        """Return each exporter's figures of this moment."""


class ObservedSender(Protocol):
    """What is asked of a `quiver.qwp.Sender`."""

    def stats(self) -> dict[str, Any]:
        """Return figures of this moment."""


class OpenTelemetryObserver:
    """
    Counts and latencies to a meter, events to the `quiver` logger.

    Args:
        meter: where the instruments are made; one observer for each meter.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            if metric.kind == "counter":
                counter = self._counters[metric.name] = meter.create_counter(metric.name, metric.unit, metric.meaning)
                if not metric.attributes:
                    # There from the start: a rate over a counter that appears with its first event does not see it.
                    counter.add(0)
            elif metric.kind == "histogram":
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name,
                    metric.unit,
                    metric.meaning,
                    explicit_bucket_boundaries_advisory=_LATENCY_BOUNDS_S,
                )

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        """Add *amount* to the counter *name*."""
        counter = self._counters.get(name)
        if counter is None:
            with self._lock:
                counter = self._counters.get(name)
                if counter is None:
                    known = _LATER.get(name)
                    unit, meaning = ("", "") if known is None else (known.unit, known.meaning)
                    counter = self._counters[name] = self._meter.create_counter(name, unit, meaning)
        counter.add(amount, _present(attributes))

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Take one value, in seconds, of the distribution *name*."""
        histogram = self._histograms.get(name)
        if histogram is None:
            with self._lock:
                histogram = self._histograms.get(name)
                if histogram is None:
                    known = _LATER.get(name)
                    histogram = self._histograms[name] = self._meter.create_histogram(
                        name,
                        "s",
                        "" if known is None else known.meaning,
                        explicit_bucket_boundaries_advisory=_LATENCY_BOUNDS_S,
                    )
        histogram.record(value, _present(attributes))

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Log *name* with its attributes as ``key=value``."""
        log_event(name, level, attributes)


def _present(attributes: dict[str, Value]) -> dict[str, str | int | float | bool]:
    return {key: value for key, value in attributes.items() if value is not None}


def observe_store(store: ObservedStore, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of a store with *meter*, read from `store.stats()` when a collection asks.

    The meter does not keep the store: when that is gone, the gauges say nothing. One store for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    look = _Look(store, clock, _by_core)
    for metric in METRICS:
        if metric.read is not None and metric not in EXPORTER_METRICS:
            meter.create_observable_gauge(metric.name, [_callback(look, metric.read)], metric.unit, metric.meaning)


def observe_exporters(exporters: ObservedExporters, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of exporters with *meter*, read from `exporters.figures()` when a collection asks.

    The meter does not keep the exporters: when they are gone, the gauges say nothing. Once for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    _register(_Look(exporters, clock, lambda one: {"exporters": one.figures()}), meter, "quiver.exporter.")


def observe_topics(topics: ObservedTopics, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of topics with *meter*, read from `topics.stats()` when a collection asks.

    The meter does not keep the topics: when they are gone, the gauges say nothing. One `TopicStore` for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    look = _Look(topics, clock, lambda one: one.stats())
    _register(look, meter, "danube_")


def observe_logs(manager: ObservedLogs, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of append-only logs with *meter*, and what they count of appends, read from
    `manager.snapshot()` when a collection asks.

    The meter does not keep the manager: when it is gone, the gauges say nothing. One `AofManager` for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    look = _Look(manager, clock, lambda one: {"logs": {log.name: log.figures() for log in one.snapshot()}})
    _register(look, meter, "aof_")


def observe_senders(senders: Iterable[ObservedSender], meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of QWP slots with *meter*, read from the `stats()` of *senders* when a collection asks.

    The meter does not keep the senders: those that are gone say nothing. Once for each meter, with all of its senders.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    group = weakref.WeakSet(senders)

    def figures(known: weakref.WeakSet[ObservedSender]) -> Figures:
        return {"slots": {slot: one for sender in known for slot, one in sender.stats()["slots"].items()}}

    _register(_Look(group, clock, figures, keeps=True), meter, "quiver.qwp.")


def _register(look: _Look[Any], meter: Meter, prefix: str) -> None:
    for metric in (*METRICS, *LOG_METRICS):
        if metric.read is not None and metric.name.startswith(prefix):
            counts = metric.kind == "counter"
            create = meter.create_observable_counter if counts else meter.create_observable_gauge
            create(metric.name, [_callback(look, metric.read)], metric.unit, metric.meaning)


def _callback(
    look: _Look[Any], read: Callable[[Figures], Reading]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        figures = look.figures()
        if figures is None:
            return []
        return [Observation(value, attributes) for value, attributes in read(figures) if value is not None]

    return observe


class _Look(Generic[T]):
    """The figures of a store, taken once for all gauges of a collection."""

    def __init__(self, store: T, clock: Clock, take: Callable[[T], Figures], *, keeps: bool = False) -> None:
        self._store = weakref.ref(store)
        self._kept = store if keeps else None
        self._clock = clock
        self._take = take
        self._lock = threading.Lock()
        self._taken_s = 0.0
        self._figures: Figures | None = None

    def figures(self) -> Figures | None:
        """Return figures that are fresh enough; None when the store is gone."""
        store = self._store()
        if store is None:
            return None
        with self._lock:
            now_s = self._clock.monotonic()
            if self._figures is None or now_s - self._taken_s >= _SNAPSHOT_S:
                self._figures = self._take(store)
                self._taken_s = now_s
            return self._figures


def _by_core(store: ObservedStore) -> Figures:
    figures = store.stats()
    if "cores" in figures:
        return figures
    size, cap = figures["disk_bytes"], store.settings.size_cap_bytes
    own = {**figures, "bytes": size, "cap_fraction": None if cap is None else size / cap}
    return {"cores": {0: own}, "subscribers": figures["subscribers"]}
