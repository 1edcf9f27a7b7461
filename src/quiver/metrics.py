"""
Metrics through the OpenTelemetry API: the table of all of them, an observer, and the gauges of an open store.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.observe import Value, log_event
from quiver.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

__all__ = ["METRICS", "Metric", "ObservedStore", "OpenTelemetryObserver", "observe_store"]

_LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""OpenTelemetry's own are made for milliseconds: every fsync would land in the first."""

_SNAPSHOT_S = 0.5
"""The gauges of one collection are read from one look at the store, which is not older than this."""

Figures = Mapping[str, Any]
Reading = Iterator[tuple[float | None, dict[str, str]]]


class ObservedStore(Protocol):
    """
    What is asked of a store, be it one or one of several cores.
    """

    @property
    def settings(self) -> Settings:
        """
        How it behaves.
        """

    def stats(self) -> dict[str, Any]:
        """
        Return figures of this moment.
        """


def _of_store(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        # Several cores: the figure is the sum over them.
        yield sum(one[key] for one in figures["cores"].values()), {}

    return read


def _of_core(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for core, one in figures["cores"].items():
            yield one[key], {"core_id": str(core)}

    return read


def _of_subscriber(key: str) -> Callable[[Figures], Reading]:
    def read(figures: Figures) -> Reading:
        for subscriber, one in figures["subscribers"].items():
            yield one[key], {"subscriber": subscriber}

    return read


def _unsynced(figures: Figures) -> Reading:
    yield sum(one["wal_position"] - one["wal_synced_position"] for one in figures["cores"].values()), {}


@dataclass(frozen=True, slots=True)
class Metric:
    """
    One metric.

    Attributes:
        name: as it is emitted.
        kind: counters and histograms come from an observer, gauges from `observe_store`.
        unit: in OpenTelemetry's notation.
        meaning: one sentence.
        attributes: what it is told apart by.
        read: of a gauge, its values and their attributes among the figures of a store.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    read: Callable[[Figures], Reading] | None = None


def _counter(name: str, unit: str, meaning: str, *attributes: str) -> Metric:
    return Metric(name, "counter", unit, meaning, attributes)


def _gauge(name: str, unit: str, meaning: str, read: Callable[[Figures], Reading], *attributes: str) -> Metric:
    return Metric(name, "gauge", unit, meaning, attributes, read)


METRICS: tuple[Metric, ...] = (
    # Taking in.
    _counter(
        "quiver.ingest.throttle_total", "{bundle}", "Bundles that were refused or had to wait: something was full."
    ),
    _counter("quiver.receiver.requests_total", "{request}", "OTLP requests answered.", "signal", "outcome"),
    _counter("quiver.receiver.batches_total", "{batch}", "OTAP batches answered.", "signal", "outcome"),
    _counter(
        "quiver.receiver.dedupe_unread_total", "{entry}", "Log entries that the duplicate window could not look into."
    ),
    _counter("quiver.receiver.unauthorized_total", "{request}", "Requests without known credentials.", "protocol"),
    _counter(
        "quiver.receiver.connections_refused_total", "{connection}", "Connections that were one too many.", "protocol"
    ),
    _counter(
        "quiver.receiver.left_out_total",
        "{part}",
        "Parts of OTLP requests that tables have no place for.",
        "signal",
        "what",
    ),
    # The log.
    Metric("quiver.wal.fsync.duration", "histogram", "s", "Seconds of one sync of the log."),
    _counter("quiver.wal.torn_tail_total", "{file}", "Ends of the log that a crash had cut, found at open."),
    _gauge("quiver.wal.bytes", "By", "Bytes of all log files on disk, zeros ahead included.", _of_store("wal_bytes")),
    _gauge("quiver.wal.files", "{file}", "Log files, the active one included.", _of_store("wal_files")),
    _gauge("quiver.wal.unsynced_bytes", "By", "Bytes that a power loss would take at this moment.", _unsynced),
    # Segments.
    _counter("quiver.segment.sealed_total", "{segment}", "Segments written."),
    _counter("quiver.segment.flush_failures_total", "{attempt}", "Writes of a segment that the disk refused."),
    _counter("quiver.segment.dropped_total", "{segment}", "Segments dropped by policy before all had them.", "reason"),
    _counter("quiver.segment.damaged_bundles_total", "{bundle}", "Bundles of segments that were found damaged."),
    _gauge("quiver.segment.count", "{segment}", "Sealed segments on disk.", _of_store("segments")),
    _gauge("quiver.segment.bytes", "By", "Bytes of sealed segments.", _of_store("segment_bytes")),
    _gauge(
        "quiver.segment.incomplete",
        "{segment}",
        "Sealed segments that not every subscriber has finished; all while there is none.",
        _of_store("incomplete_segments"),
    ),
    _gauge("quiver.segment.open_bytes", "By", "Bytes of bundles in the open segment.", _of_store("open_bytes")),
    _gauge("quiver.segment.open_bundles", "{bundle}", "Bundles in the open segment.", _of_store("open_bundles")),
    # Subscribers.
    _counter("quiver.subscriber.acked_bundles_total", "{bundle}", "Bundles acknowledged.", "subscriber"),
    _counter("quiver.subscriber.rejected_bundles_total", "{bundle}", "Bundles rejected for good.", "subscriber"),
    _counter("quiver.subscriber.deferred_bundles_total", "{bundle}", "Bundles given back for later.", "subscriber"),
    _counter(
        "quiver.subscriber.dropped_bundles_total",
        "{bundle}",
        "Bundles that a subscriber will never get.",
        "subscriber",
        "reason",
    ),
    _counter("quiver.subscriber.read_errors_total", "{bundle}", "Bundles that could not be read.", "subscriber"),
    _counter("quiver.subscriber.audit_lost_lines_total", "{line}", "Lines that the trail of outcomes lost."),
    _gauge(
        "quiver.subscriber.lag_bundles",
        "{bundle}",
        "Sealed bundles that it has not resolved, claimed ones included.",
        _of_subscriber("pending_bundles"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.lag_bytes",
        "By",
        "The pending bundles' share of their files.",
        _of_subscriber("lag_bytes"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.lag_seconds",
        "s",
        "Age of the oldest segment with a pending bundle; 0 when there is none.",
        _of_subscriber("lag_seconds"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.claimed_bundles",
        "{bundle}",
        "Bundles handed out at this moment.",
        _of_subscriber("claimed_bundles"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.progress_age_seconds",
        "s",
        "Seconds since its progress file changed.",
        _of_subscriber("progress_age_seconds"),
        "subscriber",
    ),
    _gauge(
        "quiver.subscriber.orphan",
        "{subscriber}",
        "1 when nobody has registered it since the start; it holds its data all the same.",
        _of_subscriber("orphan"),
        "subscriber",
    ),
    # Sending on.
    _counter(
        "quiver.exporter.requests_total",
        "{request}",
        "OTLP requests sent on, by what became of them: confirmed, retried, refused.",
        "exporter",
        "signal",
        "outcome",
        "reason",
    ),
    _counter(
        "quiver.exporter.rejected_items_total",
        "{item}",
        "Records, spans and points that a far side did not take of a request that it confirmed.",
        "exporter",
        "signal",
    ),
    _counter(
        "quiver.otel.dropped_items_total",
        "{item}",
        "Items that an exporter of the OpenTelemetry SDK could not keep.",
        "signal",
        "reason",
    ),
    # Room and recovery.
    _counter("quiver.gc.evictions_total", "{segment}", "Segments deleted.", "reason"),
    _counter("quiver.retention.size_emergency_total", "{time}", "Times that the size cap made data be dropped."),
    _gauge("quiver.core.bytes", "By", "Bytes on disk, of everything.", _of_core("bytes"), "core_id"),
    _gauge(
        "quiver.core.cap_fraction",
        "{fraction}",
        "Bytes on disk over the size cap; nothing without a cap.",
        _of_core("cap_fraction"),
        "core_id",
    ),
    Metric("quiver.recovery.duration", "histogram", "s", "Seconds that opening the store took."),
    _counter("quiver.recovery.damaged_files_total", "{file}", "Damage found at open; a copy is kept.", "kind"),
    _gauge("quiver.quarantine.files", "{file}", "Damaged files and ranges kept.", _of_store("quarantined_files")),
)
"""Every metric of the store, its receivers and its exporters."""


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
        """
        Add *amount* to the counter *name*.
        """
        counter = self._counters.get(name)
        if counter is None:
            with self._lock:
                counter = self._counters.get(name)
                if counter is None:
                    counter = self._counters[name] = self._meter.create_counter(name)
        counter.add(amount, _present(attributes))

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """
        Take one value, in seconds, of the distribution *name*.
        """
        histogram = self._histograms.get(name)
        if histogram is None:
            with self._lock:
                histogram = self._histograms.get(name)
                if histogram is None:
                    histogram = self._histograms[name] = self._meter.create_histogram(
                        name, "s", explicit_bucket_boundaries_advisory=_LATENCY_BOUNDS_S
                    )
        histogram.record(value, _present(attributes))

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        """
        Log *name* with its attributes as ``key=value``.
        """
        log_event(name, level, attributes)


def _present(attributes: dict[str, Value]) -> dict[str, str | int | float | bool]:
    return {key: value for key, value in attributes.items() if value is not None}


def observe_store(store: ObservedStore, meter: Meter, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """
    Register every gauge of `METRICS` with *meter*, read from `store.stats()` when a collection asks.

    The meter does not keep the store: when that is gone, the gauges say nothing. One store for each meter.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """
    look = _Look(store, clock)
    for metric in METRICS:
        if metric.read is not None:
            meter.create_observable_gauge(metric.name, [_callback(look, metric.read)], metric.unit, metric.meaning)


def _callback(look: _Look, read: Callable[[Figures], Reading]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - an extra

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        figures = look.figures()
        if figures is None:
            return []
        return [Observation(value, attributes) for value, attributes in read(figures) if value is not None]

    return observe


class _Look:
    """
    The figures of a store, taken once for all gauges of a collection.
    """

    def __init__(self, store: ObservedStore, clock: Clock) -> None:
        self._store = weakref.ref(store)
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_s = 0.0
        self._figures: Figures | None = None

    def figures(self) -> Figures | None:
        """
        Return figures that are fresh enough; None when the store is gone.
        """
        store = self._store()
        if store is None:
            return None
        with self._lock:
            now_s = self._clock.monotonic()
            if self._figures is None or now_s - self._taken_s >= _SNAPSHOT_S:
                self._figures = _by_core(store)
                self._taken_s = now_s
            return self._figures


def _by_core(store: ObservedStore) -> Figures:
    figures = store.stats()
    if "cores" in figures:
        return figures
    size, cap = figures["disk_bytes"], store.settings.size_cap_bytes
    own = {**figures, "bytes": size, "cap_fraction": None if cap is None else size / cap}
    return {"cores": {0: own}, "subscribers": figures["subscribers"]}
