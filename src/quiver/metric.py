"""Descriptions of metrics: name, kind, unit and meaning, and how a gauge is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Figures", "Metric", "Reading", "counted", "counter", "exported_name", "gauge"]

Figures = Mapping[str, Any]
Reading = Iterator[tuple[float | None, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """
    One metric.

    Attributes:
        name: the name under which it is counted, which may be that of a log's specification; see `exported_name`.
        kind: counters and histograms come from an observer; gauges from `observe_store` and its counterparts.
        unit: the unit in OpenTelemetry's notation.
        meaning: a description in one sentence.
        attributes: the names of its attributes.
        read: for a gauge: reads its values and their attributes from the figures of a log.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    read: Callable[[Figures], Reading] | None = None


_EXPORTED = {"danube_": "quiver.topics.", "aof_": "quiver.aof."}
"""Prefix in the specification of a log → prefix of exported names."""


def exported_name(name: str) -> str:
    """Return the name under which the metric *name* is exported: all of them begin with ``quiver.``."""
    for prefix, exported in _EXPORTED.items():
        if name.startswith(prefix):
            return f"{exported}{name.removeprefix(prefix)}"
    return name


def counter(name: str, unit: str, meaning: str, *attributes: str) -> Metric:
    """Return a counter that an observer counts."""
    return Metric(name, "counter", unit, meaning, attributes)


def gauge(name: str, unit: str, meaning: str, read: Callable[[Figures], Reading], *attributes: str) -> Metric:
    """Return a gauge that *read* reads from figures."""
    return Metric(name, "gauge", unit, meaning, attributes, read)


def counted(name: str, unit: str, meaning: str, read: Callable[[Figures], Reading], *attributes: str) -> Metric:
    """Return a counter that *read* reads from figures."""
    return Metric(name, "counter", unit, meaning, attributes, read)
