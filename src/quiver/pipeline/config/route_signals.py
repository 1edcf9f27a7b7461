"""
Which signals take each route: those that all of its connections let pass, and its exporter receives.

The filter is at the start of a route, in front of its processors: data of another signal is acknowledged there. So
a processor sees only these signals, too, and `route_tables` refuses one that reads another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from quiver.delivery.signal_filter import SIGNALS
from quiver.pipeline.config.exporter import ExporterConfig
from quiver.pipeline.config.flow import BufferPlan
from quiver.pipeline.config.parse import Document
from quiver.pipeline.config.receiver import OtlpReceiverConfig
from quiver.pipeline.config.shapes import RawNode

if TYPE_CHECKING:
    from quiver.pipeline.model import Buffer, Node, Pipeline

__all__ = ["Signals", "route_signals", "undelivered_signals"]

Signals = tuple[str, ...] | None
"""The signals that pass; None for all."""


def route_signals(
    document: Document, raw: Mapping[str, RawNode], plans: Sequence[BufferPlan], nodes: Mapping[str, Node]
) -> dict[str, Signals]:
    """
    Return the signals of each route by its name.

    Raises:
        PipelineError: an exporter receives no signal that its connections let pass.
    """
    # A route into an implicit buffer ends, after that buffer, at one exporter.
    ends = {plan.name: plan.routes[0].name for plan in plans if plan.kind in {"staged", "memory"} and plan.routes}
    found: dict[str, Signals] = {}
    for plan in plans:
        for route in plan.routes:
            end = route.name if route.into is None else ends.get(route.into, "")
            config = nodes[end].config if end in nodes else None
            taken = config.signals if isinstance(config, ExporterConfig) else None
            both = _both(route.signals, taken)
            if both == ():
                reason = f"{end} receives {_listed(taken)}, but its connections let pass only {_listed(route.signals)}"
                raise document.invalid((*raw[end].path, "config", "signals"), reason)
            found[route.name] = both
    return found


def _both(first: Signals, second: Signals) -> Signals:
    if first is None or second is None:
        return first if second is None else second
    return tuple(one for one in first if one in second)


def _listed(signals: Iterable[str] | None) -> str:
    return " and ".join(signals or ())


def undelivered_signals(pipeline: Pipeline) -> list[tuple[Buffer, list[Node], list[str]]]:
    """
    Return each buffer that stores signals which none of its exporters receives, its receivers of them, and the signals.

    A buffer without an exporter only buffers, and is not listed.
    """
    buffers = {buffer.name: buffer for buffer in pipeline.buffers}
    found = []
    for buffer in pipeline.buffers:
        if not buffer.routes:
            continue
        missing = [signal for signal in SIGNALS if signal not in _delivered(buffer, buffers)]
        receivers = [node for node in buffer.receivers if not {*missing}.isdisjoint(_accepted(node))]
        lost = [signal for signal in missing if any(signal in _accepted(node) for node in receivers)]
        if lost:
            found.append((buffer, receivers, lost))
    return found


def _delivered(buffer: Buffer, buffers: Mapping[str, Buffer]) -> set[str]:
    """Return the signals that an exporter after *buffer* receives; processors may turn any signal into another."""
    found: set[str] = set()
    for route in buffer.routes:
        passing = set(SIGNALS if route.signals is None else route.signals)
        if route.into is not None and not route.processors and buffers[route.into].routes:
            passing &= _delivered(buffers[route.into], buffers)
        found |= passing
    return found


def _accepted(node: Node) -> tuple[str, ...]:
    """Return the signals that a receiver is known to accept; a topic or the store of another program may hold any."""
    return SIGNALS if isinstance(node.config, OtlpReceiverConfig) else ()
