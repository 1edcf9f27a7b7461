"""
Exporters for the OpenTelemetry SDK, into a store: spans, log records, metrics.

Each export is one bundle: what the SDK's own encoder makes of it, an OTLP request, or several when one would be too
large for a far side to take. It succeeds when the store has it, as safe as was asked for.
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
from quiver.otel.shared_store import lease_store
from quiver.settings import MIB, Settings

__all__ = ["QuiverLogExporter", "QuiverMetricExporter", "QuiverSpanExporter"]

TIMEOUT_S = 1.0
REQUEST_BYTES_MAX = 3 * MIB
"""Many far sides take 4 MiB at most, and refuse more for good."""

_log = logging.getLogger("quiver.otel")

StorePath = str | os.PathLike[str]


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's own name


class _Intake:
    """What the three exporters have in common: the store, and the account of what it did not take."""

    def __init__(
        self, signal: str, path: StorePath, settings: Settings | None, *, timeout_s: float, durable: bool
    ) -> None:
        if not 0 <= timeout_s <= 3600:
            raise SettingsError(f"timeout_s must be 0 to 3600, not {timeout_s}")
        self.signal = signal
        self.timeout_s = timeout_s
        self._durable = durable
        self._lease = lease_store(path, settings)
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()
        self._is_losing = False
        self._is_shut = False

    def keep(self, items: Sequence[Any], encode: Callable[[Sequence[Any]], _Message], timeout_s: float) -> bool:
        """
        Store *items* as one bundle, those left out that *encode* cannot say; False when none of them was kept. What
        was not is counted. Raises nothing.
        """
        unsaid: list[str] = []
        reason, problem = self._keep(partial(_split, items, encode, unsaid), timeout_s)
        if unsaid:
            self._drop(len(unsaid), "unencodable", unsaid[0])
        left = len(items) - len(unsaid)
        if reason:
            self._drop(left, reason, problem)
        elif not unsaid:
            self._is_losing = False
        return not reason and left > 0

    def _keep(self, requests: Callable[[], Iterator[bytes]], timeout_s: float) -> tuple[str, str]:
        if self._is_shut:
            return "shutdown", "the exporter was shut down"
        if not self._lease.is_ours:
            return "forked", "the process was forked after the exporter was made; make one in each child"
        data = list(requests())
        if not data:
            return "", ""
        column = pa.array(data, pa.binary())
        bundle = Bundle({OTLP_SLOTS[self.signal]: pa.record_batch([column], schema=OTLP_SCHEMA)})
        try:
            self._lease.store.ingest(bundle, durable=self._durable, timeout=timeout_s)
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
            # Once for each time it begins: an application may export its own log, through this very exporter.
            self._is_losing = True
            _log.warning("%s are being dropped: %s", self.signal, problem)

    def flush(self) -> bool:
        """Make what was kept durable; False when that was not possible."""
        if self._durable or self._is_shut:
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

    def shut(self) -> None:
        """Give the store back. Idempotent."""
        self._is_shut = True
        try:
            self._lease.release()
        except (QuiverError, OSError) as error:
            _log.warning("the store did not close cleanly: %s", error)


def _split(items: Sequence[Any], encode: Callable[[Sequence[Any]], _Message], unsaid: list[str]) -> Iterator[bytes]:
    """
    Yield *items* as requests that are small enough, if each of them is; add to *unsaid* why, for each item that
    *encode* cannot say: it takes none of its neighbours along.
    """
    try:
        data = encode(items).SerializeToString()
    except Exception as error:  # noqa: BLE001 - the edge: what the SDK's encoder raises must not reach the application
        if len(items) == 1:
            unsaid.append(f"{type(error).__name__}: {error}")
            return
    else:
        if len(data) <= REQUEST_BYTES_MAX or len(items) == 1:
            yield data
            return
    middle = len(items) // 2
    yield from _split(items[:middle], encode, unsaid)
    yield from _split(items[middle:], encode, unsaid)


@dataclass(frozen=True, slots=True)
class _Point:
    """A data point, and all that it is in."""

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
    """Return *points*, which stand in their order, as what the SDK would have exported of them alone."""
    resources = []
    for _, in_resource in groupby(points, key=lambda one: id(one.resource)):
        scopes = []
        for _, in_scope in groupby(in_resource, key=lambda one: id(one.scope)):
            metrics = []
            for _, in_metric in groupby(in_scope, key=lambda one: id(one.metric)):
                found = list(in_metric)
                data: Any = found[0].metric.data  # mypy knows no `replace` of one of several
                metrics.append(replace(found[0].metric, data=replace(data, data_points=[one.point for one in found])))
            scopes.append(replace(found[0].scope, metrics=metrics))
        resources.append(replace(found[0].resource, scope_metrics=scopes))
    return MetricsData(resource_metrics=resources)


class _Keeping:
    """What the SDK asks of every exporter, and the account of what was not kept."""

    _signal: ClassVar[str]

    def __init__(
        self,
        path: StorePath,
        *,
        settings: Settings | None = None,
        timeout_s: float = TIMEOUT_S,
        durable: bool = True,
    ) -> None:
        self._intake = _Intake(self._signal, path, settings, timeout_s=timeout_s, durable=durable)

    @property
    def dropped_items(self) -> Mapping[str, int]:
        """
        Spans, log records or data points that were not kept, by reason: full, failed, invalid, unencodable, forked,
        shutdown.
        """
        return self._intake.dropped()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Make what was exported durable. It is not waited for the far side."""
        return self._intake.flush()

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ARG002 - the SDK's signature
        """Give the store back; the last user closes it."""
        self._intake.shut()


class QuiverSpanExporter(_Keeping, SpanExporter):
    """
    Keeps spans in a store; for a `BatchSpanProcessor`. All exporters of a process may share a directory.

    Args:
        path: the store's directory; created when missing.
        settings: how the store behaves; `OTEL_SETTINGS` when None.
        timeout_s: how long an export may wait for room when the store is full. The disk's own time comes on top.
        durable: an export returns when its data would survive a power loss; otherwise when the death of the process
            cannot take it, and it is synced within `wal.flush_interval`.

    Raises:
        DirectoryInUseError: another process has the directory open.
        UsageError: this process has it open with other settings.
        UnsupportedFormatError: it was written by a newer version or under another adapter.
        OSError: the disk refused.
    """

    _signal = "traces"

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """
        Keep *spans*; a failure is counted in `dropped_items`, and nothing of the batch was kept. What cannot be
        encoded is counted there, too, and the rest is a success.
        """
        if not spans:
            return SpanExportResult.SUCCESS
        kept = self._intake.keep(spans, encode_spans, self._intake.timeout_s)
        return SpanExportResult.SUCCESS if kept else SpanExportResult.FAILURE


class QuiverLogExporter(_Keeping, LogRecordExporter):
    """Keeps log records in a store; for a `BatchLogRecordProcessor`. Otherwise as `QuiverSpanExporter`."""

    _signal = "logs"

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """
        Keep *batch*; a failure is counted in `dropped_items`, and nothing of the batch was kept. What cannot be
        encoded is counted there, too, and the rest is a success.
        """
        if not batch:
            return LogRecordExportResult.SUCCESS
        kept = self._intake.keep(batch, encode_logs, self._intake.timeout_s)
        return LogRecordExportResult.SUCCESS if kept else LogRecordExportResult.FAILURE


class QuiverMetricExporter(_Keeping, MetricExporter):
    """
    Keeps metrics in a store; for a `PeriodicExportingMetricReader`. Otherwise as `QuiverSpanExporter`.

    Args:
        preferred_temporality: instrument class → temporality, for the SDK.
        preferred_aggregation: instrument class → aggregation, for the SDK.
    """

    _signal = "metrics"

    def __init__(
        self,
        path: StorePath,
        *,
        settings: Settings | None = None,
        timeout_s: float = TIMEOUT_S,
        durable: bool = True,
        preferred_temporality: dict[type, AggregationTemporality] | None = None,
        preferred_aggregation: dict[type, Aggregation] | None = None,
    ) -> None:
        _Keeping.__init__(self, path, settings=settings, timeout_s=timeout_s, durable=durable)
        MetricExporter.__init__(self, preferred_temporality, preferred_aggregation)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        """
        Keep *metrics_data*; a failure is counted in `dropped_items`, and nothing of it was kept. What cannot be encoded
        is counted there, too, and the rest is a success.
        """
        points = _points(metrics_data)
        if not points:
            return MetricExportResult.SUCCESS
        timeout_s = min(self._intake.timeout_s, max(timeout_millis, 0) / 1000)
        kept = self._intake.keep(points, lambda some: encode_metrics(_metrics_data(some)), timeout_s)
        return MetricExportResult.SUCCESS if kept else MetricExportResult.FAILURE
