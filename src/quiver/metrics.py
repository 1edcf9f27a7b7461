"""
Metrics through the OpenTelemetry API: an observer, and the gauges of open logs. `metric_table` has their names.

OpenTelemetry, in the extra `metrics`, is only imported when one of them is used::

    meter = opentelemetry.metrics.get_meter("quiver")
    with quiver.open("buffer/", observer=OpenTelemetryObserver(meter)) as store:
        observe_store(store, meter)
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quiver.build_info import PROCESS_METRICS
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.exporter_metrics import EXPORTER_METRICS
from quiver.metric import Figures, Metric, Reading, exported_name
from quiver.metric_table import LOG_METRICS, METRICS
from quiver.observe import Value, log_event
from quiver.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

__all__ = [
    "LOG_METRICS",
    "METRICS",
    "PROCESS_METRICS",
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
    "observe_stores",
    "observe_topics",
]

_LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""OpenTelemetry's defaults are for milliseconds: every fsync would be in the first bucket."""

_SIZE_BOUNDS_BYTES = tuple(float(4**power) for power in range(6, 18))
"""4 KiB to 16 GiB."""

_SNAPSHOT_S = 0.5
"""The gauges of one collection share a snapshot of the store that is at most this old."""

T = TypeVar("T")

_LATER = {metric.name: metric for metric in LOG_METRICS}


class ObservedStore(Protocol):
    """The part of a store that is observed, whether it has one core or several."""

    @property
    def settings(self) -> Settings:
        """The settings of the store."""

    def stats(self) -> dict[str, Any]:
        """Return the current figures."""


class ObservedTopics(Protocol):
    """The part of a `TopicStore` that is observed."""

    def stats(self) -> dict[str, Any]:
        """Return the current figures."""


class ObservedLogs(Protocol):
    """The part of an `AofManager` that is observed."""

    def snapshot(self) -> Sequence[Any]:
        """Return a snapshot of each open log, with its `name` and its `figures()`."""


class ObservedExporters(Protocol):
    """The part of a pipeline's exporters that is observed."""

    def figures(self) -> dict[str, Any]:
        """Return the current figures of each exporter."""


class ObservedSender(Protocol):
    """The part of a `quiver.qwp.Sender` that is observed."""

    def stats(self) -> dict[str, Any]:
        """Return the current figures."""


class OpenTelemetryObserver:
    """
    Sends counts and latencies to a meter, and events to the `quiver` logger.

    Args:
        meter: creates the instruments; use one observer for each meter.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            if metric.kind == "counter":
                counter = self._counters[metric.name] = meter.create_counter(
                    exported_name(metric.name), metric.unit, metric.meaning
                )
                if not metric.attributes:
                    # Start at 0: a rate misses the first event of a counter that appears with it.
                    counter.add(0)
            elif metric.kind == "histogram":
                self._histograms[metric.name] = _histogram(meter, metric)
        for metric in PROCESS_METRICS:
            if metric.read is not None:
                meter.create_observable_gauge(metric.name, [_constant(metric.read)], metric.unit, metric.meaning)

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        """Add *amount* to the counter *name*."""
        counter = self._counters.get(name)
        if counter is None:
            with self._lock:
                counter = self._counters.get(name)
                if counter is None:
                    known = _LATER.get(name)
                    unit, meaning = ("", "") if known is None else (known.unit, known.meaning)
                    counter = self._counters[name] = self._meter.create_counter(exported_name(name), unit, meaning)
        counter.add(amount, _present(attributes))

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Record one value, in the unit of the metric, in the histogram *name*."""
        histogram = self._histograms.get(name)
        if histogram is None:
            with self._lock:
                histogram = self._histograms.get(name)
                if histogram is None:
                    known = _LATER.get(name) or Metric(name, "histogram", "s", "")
                    histogram = self._histograms[name] = _histogram(self._meter, known)
        histogram.record(value, _present(attributes))

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """Log *name* with its attributes as ``key=value``."""
        log_event(name, level, attributes)


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    bounds = _LATENCY_BOUNDS_S if metric.unit == "s" else _SIZE_BOUNDS_BYTES
    return meter.create_histogram(
        exported_name(metric.name), metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=bounds
    )


def _constant(read: Callable[[Figures], Reading]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return a callback for figures of the process, which do not change."""
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

    values = [(value, attributes) for value, attributes in read({}) if value is not None]
    return lambda _: [Observation(value, attributes) for value, attributes in values]


def _present(attributes: dict[str, Value]) -> dict[str, str | int | float | bool]:
    return {key: value for key, value in attributes.items() if value is not None}


def observe_store(store: ObservedStore, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of a store with *meter*. Each collection reads them from `store.stats()`.

    The meter only has a weak reference: after the store is garbage-collected, the gauges have no values. Use one store
    for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    _register_stores([(_Snapshot(store, clock, _by_core), {})], meter)


def observe_stores(stores: Mapping[str, ObservedStore], meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of several stores with *meter*, as `observe_store` does for one.

    Args:
        stores: the stores by name; the name is the attribute `buffer` of each value.
        meter: creates the instruments.
        clock: measures the age of the figures.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    _register_stores([(_Snapshot(store, clock, _by_core), {"buffer": name}) for name, store in stores.items()], meter)


def _register_stores(snapshots: Sequence[tuple[_Snapshot[Any], Mapping[str, str]]], meter: Meter) -> None:
    for metric in METRICS:
        if metric.read is not None and metric not in EXPORTER_METRICS:
            callbacks = [_callback(snapshot, metric.read, more) for snapshot, more in snapshots]
            meter.create_observable_gauge(exported_name(metric.name), callbacks, metric.unit, metric.meaning)


def observe_exporters(exporters: ObservedExporters, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of exporters with *meter*. Each collection reads them from `exporters.figures()`.

    The meter only has a weak reference. Call it once for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    _register(_Snapshot(exporters, clock, lambda one: {"exporters": one.figures()}), meter, "quiver.exporter.")


def observe_topics(topics: ObservedTopics, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of topics with *meter*. Each collection reads them from `topics.stats()`.

    The meter only has a weak reference. Use one `TopicStore` for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    snapshot = _Snapshot(topics, clock, lambda one: one.stats())
    _register(snapshot, meter, "danube_")


def observe_logs(manager: ObservedLogs, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of append-only logs, and their counters of appends, with *meter*.

    Each collection reads them from `manager.snapshot()`. The meter only has a weak reference. Use one `AofManager` for
    each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    snapshot = _Snapshot(manager, clock, lambda one: {"logs": {log.name: log.figures() for log in one.snapshot()}})
    _register(snapshot, meter, "aof_")


def observe_senders(senders: Iterable[ObservedSender], meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of QWP slots with *meter*. Each collection reads them from the `stats()` of *senders*.

    The meter only has weak references to the senders. Call it once for each meter, with all of its senders.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    group = weakref.WeakSet(senders)

    def figures(known: weakref.WeakSet[ObservedSender]) -> Figures:
        return {"slots": {slot: one for sender in known for slot, one in sender.stats()["slots"].items()}}

    _register(_Snapshot(group, clock, figures, is_strong=True), meter, "quiver.qwp.")


def _register(snapshot: _Snapshot[Any], meter: Meter, prefix: str) -> None:
    for metric in (*METRICS, *LOG_METRICS):
        if metric.read is not None and metric.name.startswith(prefix):
            counts = metric.kind == "counter"
            create = meter.create_observable_counter if counts else meter.create_observable_gauge
            create(exported_name(metric.name), [_callback(snapshot, metric.read)], metric.unit, metric.meaning)


def _callback(
    snapshot: _Snapshot[Any], read: Callable[[Figures], Reading], more: Mapping[str, str] | None = None
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        figures = snapshot.figures()
        if figures is None:
            return []
        return [
            Observation(value, {**attributes, **(more or {})})
            for value, attributes in read(figures)
            if value is not None
        ]

    return observe


class _Snapshot(Generic[T]):
    """A snapshot of figures that all gauges of a collection share."""

    def __init__(self, store: T, clock: Clock, take: Callable[[T], Figures], *, is_strong: bool = False) -> None:
        self._store = weakref.ref(store)
        self._strong_reference = store if is_strong else None
        self._clock = clock
        self._take = take
        self._lock = threading.Lock()
        self._taken_s = 0.0
        self._figures: Figures | None = None

    def figures(self) -> Figures | None:
        """Return figures that are recent enough; None after the store was garbage-collected."""
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
