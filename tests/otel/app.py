"""
An application with the SDK: `app.py STORE ENDPOINT FIRST` emits spans and log records with ascending ids.

It prints each id after the SDK's force_flush has returned for it, until it is killed. With `-` for ENDPOINT it does not
forward.
"""

import itertools
import sys

from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from quiver.otel import Forwarder, QuiverLogExporter, QuiverSpanExporter


def main() -> None:
    path, endpoint, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if endpoint != "-":
        Forwarder(path, endpoint)
    traces, logs = TracerProvider(), LoggerProvider()
    traces.add_span_processor(BatchSpanProcessor(QuiverSpanExporter(path)))
    logs.add_log_record_processor(BatchLogRecordProcessor(QuiverLogExporter(path)))
    tracer, logger = traces.get_tracer("app"), logs.get_logger("app")
    for number in itertools.count(first):
        with tracer.start_as_current_span("work", attributes={"id": number}):
            logger.emit(LogRecord(body=f"work {number}", attributes={"id": number}))
        if traces.force_flush() and logs.force_flush():
            print(number, flush=True)


main()
