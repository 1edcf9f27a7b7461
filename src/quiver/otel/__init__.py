"""
Exporters for the OpenTelemetry SDK that write telemetry to a local store, and a forwarder that sends it on.

::

    from quiver.otel import Forwarder, QuiverSpanExporter

    forwarder = Forwarder("telemetry/", "http://127.0.0.1:4317")
    provider.add_span_processor(BatchSpanProcessor(QuiverSpanExporter("telemetry/")))

An export succeeds when the data are durable in the store. It does not depend on the destination, which may be down for
hours while the application is killed and restarted. Requires the extra `otel`.

======================  ==========================================================================
module                  purpose
======================  ==========================================================================
`shared_store.py`       one open store for all exporters of a process
`exporters.py`          exporters for spans, log records and metrics
`forwarder.py`          a forwarder from the store to an OTLP endpoint
======================  ==========================================================================
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.exporters.settings import ExporterSettings
    from quiver.otel.exporters import QuiverLogExporter, QuiverMetricExporter, QuiverSpanExporter
    from quiver.otel.forwarder import Forwarder
    from quiver.otel.shared_store import OTEL_SETTINGS
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.exporters.settings": "ExporterSettings",
            "quiver.otel.exporters": "QuiverLogExporter QuiverMetricExporter QuiverSpanExporter",
            "quiver.otel.forwarder": "Forwarder",
            "quiver.otel.shared_store": "OTEL_SETTINGS",
        },
        extra="otel",
    )

__all__ = [
    "OTEL_SETTINGS",
    "ExporterSettings",
    "Forwarder",
    "QuiverLogExporter",
    "QuiverMetricExporter",
    "QuiverSpanExporter",
]
