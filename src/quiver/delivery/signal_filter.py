"""
Routing by signal: the part of a bundle that an exporter with `signals` receives.

A bundle without any of these signals is acknowledged for this exporter without being sent, and counted. The other
exporters of the buffer are not affected: each is a subscriber of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from quiver.errors import SettingsError
from quiver.observe import Observer
from quiver.slots import OTAP, OTLP_SLOTS, Adapter

if TYPE_CHECKING:
    from quiver.bundle import Bundle

__all__ = ["OTHER", "SIGNALS", "SignalFilter", "check_signals", "count_skipped"]

SIGNALS = tuple(OTLP_SLOTS)
"""The signals by their OpenTelemetry names: logs, traces, metrics."""

OTHER = "other"
"""The signal of slots that the adapter does not name, such as QWP tables. No exporter with `signals` receives them."""


def check_signals(signals: Iterable[object]) -> tuple[str, ...]:
    """
    Return *signals*, in the order of `SIGNALS`.

    Raises:
        SettingsError: one is unknown or repeated, or there is none.
    """
    given = list(signals)
    for signal in given:
        if signal not in SIGNALS:
            hint = "; did you mean traces?" if signal in ("spans", "trace") else f"; known are {', '.join(SIGNALS)}"
            raise SettingsError(f"signals: there is no signal {signal}{hint}")
        if given.count(signal) > 1:
            raise SettingsError(f"signals: {signal} is listed twice")
    if not given:
        raise SettingsError("signals: an empty list would deliver nothing; list signals, or leave it out for all")
    return tuple(signal for signal in SIGNALS if signal in given)


def count_skipped(observer: Observer, exporter: str, signals: Iterable[str]) -> None:
    """Count the signals of one bundle that *exporter* does not receive."""
    for signal in signals:
        observer.count("quiver.exporter.skipped_bundles_total", exporter=exporter, signal=signal)


class SignalFilter:
    """
    Selects the slots of some signals. Pure and immutable.

    Args:
        signals: those that pass.
        adapter: the slot table.

    Raises:
        SettingsError: a signal is unknown or repeated, or there is none.
    """

    def __init__(self, signals: Iterable[str], adapter: Adapter = OTAP) -> None:
        self.signals = check_signals(signals)
        self._adapter = adapter

    def unwanted(self, slots: Iterable[int]) -> tuple[str, ...]:
        """Return the signals of *slots* that do not pass, in alphabetical order."""
        return tuple(sorted({self._signal(slot) for slot in slots} - {*self.signals, ""}))

    def has_wanted(self, slots: Iterable[int]) -> bool:
        """Return whether a slot of *slots* belongs to a signal that passes."""
        return any(self._signal(slot) in self.signals for slot in slots)

    def wanted(self, slots: Collection[int]) -> list[int]:
        """Return the slots that pass; those that any signal may use pass together with a slot of a signal."""
        if not self.has_wanted(slots):
            return []
        passing = {*self.signals, ""}
        return [slot for slot in slots if self._signal(slot) in passing]

    def part(self, bundle: Bundle) -> Bundle:
        """Return the part of *bundle* that passes: the bundle itself if all of it does, one without slots if none."""
        slots = self.wanted(bundle.slots)
        if len(slots) == len(bundle.slots):
            return bundle
        return bundle.of_read({slot: bundle[slot] for slot in slots}, bundle.ingested_at_ns, bundle.adapter)

    def _signal(self, slot: int) -> str:
        """Return the signal of *slot*; empty if any signal may use it, such as the attributes of resources."""
        return self._adapter.signals.get(slot) or ("" if slot in self._adapter.slots else OTHER)
