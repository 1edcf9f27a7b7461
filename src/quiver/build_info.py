"""The metric that describes the running program: `quiver.build_info`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from quiver.metric import Figures, Metric, Reading, gauge
from quiver.primitives.kernel import KERNEL

__all__ = ["PROCESS_METRICS", "installed_version"]


def installed_version() -> str:
    """Return the version of the installed package; empty if it is used from a directory."""
    try:
        return version("arrow-quiver")
    except PackageNotFoundError:
        return ""


def _build(_: Figures) -> Reading:
    kernel = "pure" if KERNEL is None else "compiled"
    yield 1, {"version": installed_version(), "python": platform.python_version(), "kernel": kernel}


PROCESS_METRICS: tuple[Metric, ...] = (
    gauge(
        "quiver.build_info",
        "",
        "Always 1; the attributes are the version, that of Python, and whether the kernel is compiled.",
        _build,
        "version",
        "python",
        "kernel",
    ),
)
"""Metrics of the process, whatever it does."""
