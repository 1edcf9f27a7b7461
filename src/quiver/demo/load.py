"""
One load process: logs, spans and metric points through the unmodified OpenTelemetry SDK and its OTLP exporters.

Run as ``python -m quiver.demo.load``. It prints a line of JSON for every step (`sent` and `confirmed` so far) and
writes the ids that an exporter reported as delivered to ``<out>/<worker>.<signal>.ids``, eight bytes each.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from quiver.clock import SYSTEM_CLOCK
from quiver.demo.names import ID_KEY, IDS_PER_WORKER, SIGNALS, ids_path

__all__ = ["CountingExporter", "main"]

EXPORT_TIMEOUT_S = 90.0
"""Much longer than a restart: the SDK retries instead of dropping its batch."""

STEP_S = 0.05
REPORT_S = 0.25

QUEUE_MAX = 1_000_000
"""With the SDK's default of 2,048, records are dropped as soon as the receiver is briefly unavailable."""

POINTS_PER_EXPORT = 500
"""The SDK merges attribute sets above 2,000 in an interval into one overflow point."""


class CountingExporter:
    """Wraps an exporter and records the ids of delivered items."""

    def __init__(self, inner: Any, ids_of: Callable[[Any], Iterable[int]]) -> None:
        self._inner = inner
        self._ids_of = ids_of
        self.confirmed: array[int] = array("q")
        self.failed = 0

    def export(self, batch: Any, **options: Any) -> Any:
        """Export *batch*, and record its ids if the result is SUCCESS."""
        result = self._inner.export(batch, **options)
        ids = list(self._ids_of(batch))
        if result.name == "SUCCESS":
            self.confirmed.extend(ids)
        else:
            self.failed += len(ids)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _log_ids(batch: Sequence[Any]) -> Iterable[int]:
    return (record.log_record.attributes[ID_KEY] for record in batch)


def _span_ids(batch: Sequence[Any]) -> Iterable[int]:
    return (span.attributes[ID_KEY] for span in batch)


def _point_ids(data: Any) -> Iterable[int]:
    return (
        point.attributes[ID_KEY]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    )


def _exporters(protocol: str, endpoint: str) -> dict[str, CountingExporter]:
    delta: dict[type, AggregationTemporality] = {Counter: AggregationTemporality.DELTA}
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        options: dict[str, Any] = {"endpoint": endpoint, "insecure": True, "timeout": EXPORT_TIMEOUT_S}
        inner: list[Any] = [OTLPLogExporter(**options), OTLPSpanExporter(**options)]
        metrics: Any = OTLPMetricExporter(**options, preferred_temporality=delta)
    else:
        from opentelemetry.exporter.otlp.proto.http import Compression  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http._log_exporter import (  # noqa: PLC0415
            OTLPLogExporter as HttpLogExporter,
        )
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter as HttpMetricExporter,
        )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as HttpSpanExporter,
        )

        base = f"http://{endpoint}/v1"
        options = {"timeout": EXPORT_TIMEOUT_S, "compression": Compression.Gzip}
        inner = [
            HttpLogExporter(endpoint=f"{base}/logs", **options),
            HttpSpanExporter(endpoint=f"{base}/traces", **options),
        ]
        metrics = HttpMetricExporter(endpoint=f"{base}/metrics", preferred_temporality=delta, **options)
    counted = zip(SIGNALS, [*inner, metrics], (_log_ids, _span_ids, _point_ids), strict=True)
    return {signal: CountingExporter(exporter, ids_of) for signal, exporter, ids_of in counted}


class _Worker:
    """Sends its share at a constant rate; with a slow receiver, the SDK queues and does not drop."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.totals = {signal: getattr(arguments, signal) for signal in SIGNALS}
        self.seconds = arguments.seconds
        self.sent = dict.fromkeys(SIGNALS, 0)
        self.first_id = arguments.worker * IDS_PER_WORKER
        self.exporters = _exporters(arguments.protocol, arguments.endpoint)
        resource = Resource.create({"service.name": f"demo-{arguments.worker}", "demo.protocol": arguments.protocol})
        self._logs = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(
            BatchLogRecordProcessor(self._exporter("logs"), schedule_delay_millis=200, max_queue_size=QUEUE_MAX)
        )
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(
            BatchSpanProcessor(self._exporter("spans"), schedule_delay_millis=200, max_queue_size=QUEUE_MAX)
        )
        reader = PeriodicExportingMetricReader(self._exporter("metrics"), export_interval_millis=math.inf)
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._logger = self._logs.get_logger("quiver.demo")
        self._tracer = self._traces.get_tracer("quiver.demo")
        self._counter = self._metrics.get_meter("quiver.demo").create_counter("demo.requests", unit="1")

    def _exporter(self, signal: str) -> Any:
        # The SDK declares its own classes; the wrapper has the same methods.
        return self.exporters[signal]

    def run(self) -> None:
        pause = threading.Event()
        started = SYSTEM_CLOCK.monotonic()
        reported = started
        points = threading.Thread(target=self._send_points, args=(pause, started), name="points")
        points.start()
        while self.sent["logs"] < self.totals["logs"] or self.sent["spans"] < self.totals["spans"]:
            now = SYSTEM_CLOCK.monotonic()
            for number in self._due("logs", now - started):
                self._log(number)
            for number in self._due("spans", now - started):
                self._span(number)
            if now - reported >= REPORT_S:
                self.report()
                reported = now
            pause.wait(STEP_S)
        flushing = [
            threading.Thread(target=self._logs.force_flush), threading.Thread(target=self._traces.force_flush), points,
        ]  # fmt: skip
        for thread in flushing[:2]:
            thread.start()
        for thread in flushing:
            while thread.is_alive():
                thread.join(REPORT_S)
                self.report()

    def _due(self, signal: str, elapsed_s: float) -> range:
        total = self.totals[signal]
        due = min(total, math.ceil(total * elapsed_s / self.seconds))
        numbers = range(self.first_id + self.sent[signal], self.first_id + due)
        self.sent[signal] = max(due, self.sent[signal])
        return numbers

    def _log(self, number: int) -> None:
        self._logger.emit(
            LogRecord(
                timestamp=SYSTEM_CLOCK.now_ns(),
                severity_number=SeverityNumber.INFO,
                severity_text="INFO",
                body=f"request {number} was answered",
                attributes={ID_KEY: number, "http.route": "/cart", "http.status": 200 if number % 50 else 500},
            )
        )

    def _span(self, number: int) -> None:
        attributes: dict[str, str | int] = {ID_KEY: number, "http.route": "/cart"}
        with self._tracer.start_as_current_span("GET /cart", attributes=attributes) as span:
            span.set_attribute("http.status", 200 if number % 50 else 500)

    def _send_points(self, pause: threading.Event, started: float) -> None:
        while self.sent["metrics"] < self.totals["metrics"]:
            numbers = self._due("metrics", SYSTEM_CLOCK.monotonic() - started)
            for first in range(0, len(numbers), POINTS_PER_EXPORT):
                for number in numbers[first : first + POINTS_PER_EXPORT]:
                    # A counter with delta temporality reports an attribute set once, in the next collection.
                    self._counter.add(1 + number % 7, {ID_KEY: number, "http.route": "/cart"})
                self._metrics.force_flush()
            pause.wait(10 * STEP_S)

    def report(self) -> None:
        line = {
            "sent": self.sent,
            "confirmed": {signal: len(exporter.confirmed) for signal, exporter in self.exporters.items()},
            "failed": {signal: exporter.failed for signal, exporter in self.exporters.items()},
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Send the share given on the command line. Return 0 if all of it was sent, confirmed or not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--protocol", choices=("grpc", "http"), required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    for signal in SIGNALS:
        parser.add_argument(f"--{signal}", type=int, required=True)
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(message)s")
    worker = _Worker(arguments)
    worker.run()
    for signal, exporter in worker.exporters.items():
        with (arguments.out / ids_path(arguments.worker, signal)).open("wb") as file:
            exporter.confirmed.tofile(file)
    worker.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
