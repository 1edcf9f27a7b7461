"""Names the extra to install for a missing module."""

from __future__ import annotations

__all__ = ["EXTRAS", "missing_extra"]

EXTRAS = {
    "typer": "cli", "rich": "cli", "pydantic": "cli", "yaml": "cli",
    "grpc": "otlp", "aiohttp": "otlp", "google": "otlp", "opentelemetry.proto": "otlp",
    "pyspark": "spark", "pandas": "spark", "numpy": "spark", "py4j": "spark",
    "packaging": "spark",
    "websockets": "qwp", "obstore": "objects", "httpx": "etcd", "ptars": "otlp",
    "deltalake": "delta", "pyiceberg": "iceberg", "sqlalchemy": "iceberg",
    "prometheus_client": "metrics", "opentelemetry.exporter.otlp": "dev", "opentelemetry.sdk": "otel",
    "opentelemetry": "metrics",
}  # fmt: skip
"""Module → the extra that contains it; the first match counts. Exporters that only the demo needs are in `dev`."""


def missing_extra(error: ModuleNotFoundError) -> str:
    """
    Return a sentence that names the extra to install.

    Raises:
        ModuleNotFoundError: *error*, if no extra contains the module: this is a bug in Quiver.
    """
    name = error.name or ""
    for module, extra in EXTRAS.items():
        if name == module or name.startswith(f"{module}."):
            return f'{module} is not installed; run: pip install "arrow-quiver[{extra}]"'
    raise error
