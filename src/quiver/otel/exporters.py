"""
Exporters for the OpenTelemetry SDK that write spans, log records and metrics to a store.

Each export is one bundle with the OTLP request of the SDK's encoder, or with several requests if one would be too large
for many receivers. It succeeds when the store has the bundle, with the requested durability.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.view import Aggregation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS, Bundle
from quiver.errors import CapacityError, InvalidBundleError, QuiverError, SettingsError
from quiver.lazy_names import renamed_keyword
from quiver.otel.shared_store import lease_store
from quiver.settings import MIB, Settings

__all__ = ["QuiverLogExporter", "QuiverMetricExporter", "QuiverSpanExporter"]

TIMEOUT_S = 1.0
REQUEST_BYTES_MAX = 3 * MIB
"""Many receivers refuse requests above 4 MiB permanently."""

_log = logging.getLogger("quiver.otel")

StorePath = str | os.PathLike[str]


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's own name


class _StoreWriter:
    """The part that the three exporters share: the store and the counts of dropped items."""

    def __init__(
        self, signal: str, path: StorePath, settings: Settings | None, *, timeout: float, durable: bool
    ) -> None:
        if not 0 <= timeout <= 3600:
            raise SettingsError(f"timeout must be 0 to 3600, not {timeout}")
        self.signal = signal
        self.timeout = timeout
        self._durable = durable
        self._lease = lease_store(path, settings)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._is_losing = False
        self._is_shut_down = False

    def store(self, items: Sequence[Any], encode: Callable[[Sequence[Any]], _Message], timeout: float) -> bool:
        """
        Store *items* as one bundle, without those that *encode* fails on. Return whether any item was stored.

        Items that were not stored are counted. Does not raise.
        """
        unencodable: list[str] = []
        reason, problem = self._store(partial(_split, items, encode, unencodable), timeout)
        if unencodable:
            self._drop(len(unencodable), "unencodable", unencodable[0])
        left = len(items) - len(unencodable)
        if reason:
            self._drop(left, reason, problem)
        elif not unencodable:
            self._is_losing = False
        return not reason and left > 0

    def _store(self, requests: Callable[[], Iterator[bytes]], timeout: float) -> tuple[str, str]:
        if self._is_shut_down:
            return "shutdown", "the exporter was shut_down down"
        if not self._lease.is_ours:
            return "forked", "the process was forked after the exporter was created; create one in each child"
        data = list(requests())
        if not data:
            return "", ""
        column = pa.array(data, pa.binary())
        bundle = Bundle({OTLP_SLOTS[self.signal]: pa.record_batch([column], schema=OTLP_SCHEMA)})
        try:
            self._lease.store.ingest(bundle, durable=self._durable, timeout=timeout)
        except CapacityError as full:
            return "full", str(full)
        except InvalidBundleError as invalid:
            return "invalid", str(invalid)
        except (QuiverError, OSError) as error:
            return "failed", str(error)
        return "", ""

    def _drop(self, items: int, reason: str, problem: str) -> None:
        if self._lease.is_ours:
            with self._lock:
                self._dropped[reason] += items
            self._lease.observer.count("quiver.otel.dropped_items_total", items, signal=self.signal, reason=reason)
        else:
            # Without a lock: a thread of the parent may have held it when this process was forked.
            self._dropped[reason] += items
        if not self._is_losing:
            # Log only when dropping starts: the application may export its log through this exporter.
            self._is_losing = True
            _log.warning("%s are being dropped: %s", self.signal, problem)

    def flush(self) -> bool:
        """Sync the stored data. Return whether that succeeded."""
        if self._durable or self._is_shut_down:
            return True
        if not self._lease.is_ours:
            return False
        try:
            self._lease.store.sync()
        except (QuiverError, OSError):
            return False
        return True

    def dropped(self) -> dict[str, int]:
        """Return the dropped items by reason."""
        return dict(self._dropped)

    def shut_down(self) -> None:
        """Release the store. Idempotent."""
        self._is_shut_down = True
        try:
            self._lease.release()
        except (QuiverError, OSError) as error:
            _log.warning("the store did not close cleanly: %s", error)


def _split(
    items: Sequence[Any], encode: Callable[[Sequence[Any]], _Message], unencodable: list[str]
) -> Iterator[bytes]:
    """
    Yield requests for *items*, split until each is small enough or has one item.

    For an item that *encode* fails on, the reason is added to *unencodable*; the items next to it are not affected.
    """
    try:
        data = encode(items).SerializeToString()
    except Exception as error:  # noqa: BLE001 - no exception of the SDK's encoder may reach the application
        if len(items) == 1:
            unencodable.append(f"{type(error).__name__}: {error}")
            return
    else:
        if len(data) <= REQUEST_BYTES_MAX or len(items) == 1:
            yield data
            return
    middle = len(items) // 2
    yield from _split(items[:middle], encode, unencodable)
    yield from _split(items[middle:], encode, unencodable)


@dataclass(frozen=True, slots=True)
class _Point:
    """A data point with its metric, scope and resource."""

    resource: ResourceMetrics
    scope: ScopeMetrics
    metric: Metric
    point: Any


def _points(data: MetricsData) -> list[_Point]:
    return [
        _Point(resource, scope, metric, point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]


def _metrics_data(points: Sequence[_Point]) -> MetricsData:
    """Return *points*, in their original order, as the SDK would have exported them without the others."""
    resources = []
    for _, in_resource in groupby(points, key=lambda one: id(one.resource)):
        scopes = []
        for _, in_scope in groupby(in_resource, key=lambda one: id(one.scope)):
            metrics = []
            for _, in_metric in groupby(in_scope, key=lambda one: id(one.metric)):
                found = list(in_metric)
                data: Any = found[0].metric.data  # mypy does not support `replace` on a union
                metrics.append(replace(found[0].metric, data=replace(data, data_points=[one.point for one in found])))
            scopes.append(replace(found[0].scope, metrics=metrics))
        resources.append(replace(found[0].resource, scope_metrics=scopes))
    return MetricsData(resource_metrics=resources)


class _StoreExporter:
    """The interface that the SDK requires of every exporter, and the counts of dropped items."""

    _signal: ClassVar[str]

    @renamed_keyword("timeout_s", "timeout")
    def __init__(
        self,
        path: StorePath,
        *,
        settings: Settings | None = None,
        timeout: float = TIMEOUT_S,
        durable: bool = True,
    ) -> None:
        self._writer = _StoreWriter(self._signal, path, settings, timeout=timeout, durable=durable)

    @property
    def dropped_items(self) -> Mapping[str, int]:
        """
        The number of spans, log records or data points that were not stored, by reason: full, failed, invalid,
        unencodable, forked, shutdown.
        """
        return self._writer.dropped()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Make exported data durable, without waiting for the destination."""
        return self._writer.flush()

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ARG002 - the SDK's signature
        """Release the store; the last user closes it."""
        self._writer.shut_down()


class QuiverSpanExporter(_StoreExporter, SpanExporter):
    """
    Writes spans to a store; for a `BatchSpanProcessor`. All exporters of a process may share a directory.

    Args:
        path: the store's directory; created if missing.
        settings: settings of the store; None: `OTEL_SETTINGS`.
        timeout: how long an export may wait for space when the store is full, in addition to the time of the disk.
        durable: if True, an export returns when its data survive a power loss; otherwise when they survive the death of
            the process, and they are synced within `wal.flush_interval`.

    Raises:
        DirectoryInUseError: another process has the directory open.
        UsageError: this process has it open with other settings.
        UnsupportedFormatError: it was written by a newer version or with another adapter.
        OSError: the disk failed.
    """

    _signal = "traces"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """
        Store *spans*. On failure, none of them is stored, and all are counted in `dropped_items`.

        Items that cannot be encoded are counted there, too; the export of the others is a success.
        """
        if not spans:
            return SpanExportResult.SUCCESS
        is_stored = self._writer.store(spans, encode_spans, self._writer.timeout)
        return SpanExportResult.SUCCESS if is_stored else SpanExportResult.FAILURE


class QuiverLogExporter(_StoreExporter, LogRecordExporter):
    """Writes log records to a store; for a `BatchLogRecordProcessor`. Otherwise like `QuiverSpanExporter`."""

    _signal = "logs"

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """
        Store *batch*. On failure, none of its records is stored, and all are counted in `dropped_items`.

        Items that cannot be encoded are counted there, too; the export of the others is a success.
        """
        if not batch:
            return LogRecordExportResult.SUCCESS
        is_stored = self._writer.store(batch, encode_logs, self._writer.timeout)
        return LogRecordExportResult.SUCCESS if is_stored else LogRecordExportResult.FAILURE


class QuiverMetricExporter(_StoreExporter, MetricExporter):
    """
    Writes metrics to a store; for a `PeriodicExportingMetricReader`. Otherwise like `QuiverSpanExporter`.

    Args:
        preferred_temporality: instrument class → temporality, for the SDK.
        preferred_aggregation: instrument class → aggregation, for the SDK.
    """

    _signal = "metrics"

    @renamed_keyword("timeout_s", "timeout")
    def __init__(
        self,
        path: StorePath,
        *,
        settings: Settings | None = None,
        timeout: float = TIMEOUT_S,
        durable: bool = True,
        preferred_temporality: dict[type, AggregationTemporality] | None = None,
        preferred_aggregation: dict[type, Aggregation] | None = None,
    ) -> None:
        _StoreExporter.__init__(self, path, settings=settings, timeout=timeout, durable=durable)
        MetricExporter.__init__(self, preferred_temporality, preferred_aggregation)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """
        Store *metrics_data*. On failure, nothing of it is stored, and all data points are counted in `dropped_items`.

        Items that cannot be encoded are counted there, too; the export of the others is a success.
        """
        points = _points(metrics_data)
        if not points:
            return MetricExportResult.SUCCESS
        timeout = min(self._writer.timeout, max(timeout_millis, 0) / 1000)
        is_stored = self._writer.store(points, lambda some: encode_metrics(_metrics_data(some)), timeout)
        return MetricExportResult.SUCCESS if is_stored else MetricExportResult.FAILURE
