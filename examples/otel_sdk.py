"""
An application with the OpenTelemetry SDK whose telemetry survives its own crash and an outage of the destination.

    python examples/otel_sdk.py                                   # to http://127.0.0.1:4317, available or not
    python examples/otel_sdk.py --to http://collector:4317 --seconds 60

Kill it, stop the destination, and start both again: all recorded telemetry arrives.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from quiver.otel import Forwarder, QuiverMetricExporter, QuiverSpanExporter

RESOURCE = Resource({"service.name": "shop"})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="spans and metrics through a local store")
    parser.add_argument("--directory", type=Path, default=Path("telemetry"), help="the local store")
    parser.add_argument("--to", default="http://127.0.0.1:4317", help="any OTLP endpoint")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)

    # Create the forwarder first: it is then stopped last, and can still send the data that the others flush.
    with Forwarder(options.directory, options.to) as forwarder:
        traces = TracerProvider(resource=RESOURCE)
        traces.add_span_processor(BatchSpanProcessor(QuiverSpanExporter(options.directory)))
        trace.set_tracer_provider(traces)
        reader = PeriodicExportingMetricReader(QuiverMetricExporter(options.directory), export_interval_millis=1000)
        metrics = MeterProvider([reader], resource=RESOURCE)
        orders = metrics.get_meter("shop").create_counter("orders")

        tracer = trace.get_tracer("shop")
        ends = time.monotonic() + options.seconds  # noqa: TID251 - a program, not the library
        number = 0
        while time.monotonic() < ends:  # noqa: TID251
            with tracer.start_as_current_span("order", attributes={"order.number": number}):
                orders.add(1)
                time.sleep(0.01)  # noqa: TID251
            number += 1

        traces.shutdown()
        metrics.shutdown()
        left = forwarder.stop()
        state = forwarder.state()
    print(f"{number} orders; {state.confirmed} requests confirmed, {left} bundles left for the next start")
    if state.problem:
        print(f"problem of the destination: {state.problem}")


if __name__ == "__main__":
    main()
