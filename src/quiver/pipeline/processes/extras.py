"""Which extra brings which module, for the one sentence that says what to install."""

from __future__ import annotations

__all__ = ["EXTRAS", "missing_extra"]

EXTRAS = {
    "typer": "cli", "rich": "cli", "pydantic": "cli", "yaml": "cli",
    "grpc": "otlp", "aiohttp": "otlp", "google": "otlp", "opentelemetry.proto": "otlp",
    "pyspark": "spark", "pandas": "spark", "numpy": "spark", "py4j": "spark",
    "websockets": "qwp", "obstore": "objects", "httpx": "etcd", "ptars": "otlp",
    "prometheus_client": "metrics", "opentelemetry.exporter.otlp": "dev", "opentelemetry.sdk": "otel",
    "opentelemetry": "metrics",
}  # fmt: skip
"""Module → the extra that brings it; the first that fits. The exporters that only the demo needs come with `dev`."""


def missing_extra(error: ModuleNotFoundError) -> str:
    """
    Return the sentence that says what to install.

    Raises:
        ModuleNotFoundError: *error*, when no extra brings the module: then it is a fault of ours.
    """
    name = error.name or ""
    for module, extra in EXTRAS.items():
        if name == module or name.startswith(f"{module}."):
            return f'{module} is not installed; run: pip install "arrow-quiver[{extra}]"'
    raise error
