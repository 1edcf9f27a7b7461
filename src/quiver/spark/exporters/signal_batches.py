"""Routing by signal for an exporter on Spark: its query passes over the bundles of other signals, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from quiver.bundle import OTAP
from quiver.delivery.signal_filter import SignalFilter
from quiver.observe import Observer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SignalBatches", "views_of_signals"]


def views_of_signals(signals: Iterable[str]) -> frozenset[str]:
    """Return the tables of *signals*: the table of traces is called spans."""
    return frozenset("spans" if signal == "traces" else signal for signal in signals)


class SignalBatches:
    """
    Passes the bundles of a batch that have one of *signals* on to *each*. Pass it to ``foreachBatch``.

    The position of the query moves past the other bundles, which acknowledges them. A bundle with several signals is
    passed on; the exporter writes the tables of *signals* only.

    Args:
        each: takes the batch and its number.
        signals: those that pass.
        exporter: the name for the counts.
        observer: receives the counts. A batch that runs again is counted again.

    Raises:
        SettingsError: a signal is unknown or repeated, or there is none.
    """

    def __init__(
        self,
        each: Callable[[DataFrame, int], None],
        signals: Iterable[str],
        exporter: str,
        observer: Observer | None = None,
    ) -> None:
        self._each = each
        self._filter = SignalFilter(signals)
        self._exporter = exporter
        self._observer = observer

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Pass one batch on.

        Raises:
            Exception: any error of *each*.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

        skipped: Counter[str] = Counter()
        is_all_wanted = True
        for slots in batch.select("slots").toArrow().column(0).to_pylist():
            skipped.update(self._filter.unwanted(slots or ()))
            is_all_wanted &= self._filter.has_wanted(slots or ())
        if not is_all_wanted:
            passing = [f.lit(slot) for slot in OTAP.signals if self._filter.has_wanted([slot])]
            batch = batch.where(f.arrays_overlap(f.col("slots"), f.array(*passing)))
        self._each(batch, batch_id)
        if self._observer is not None:
            for signal, count in skipped.items():
                self._observer.count(
                    "quiver.exporter.skipped_bundles_total", count, exporter=self._exporter, signal=signal
                )
