"""The last success and failure of exporters, from their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.cli.console.output import human_age
from quiver.delivery.exporter_stats import load_report
from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.exporter_report import ExporterReport

__all__ = ["LastError", "Reported", "reported", "since_success"]


@dataclass(frozen=True, slots=True)
class LastError:
    """
    The last failure of an exporter.

    Attributes:
        type: the type of the failure.
        message: the reason.
        at_ns: the time in nanoseconds since 1970.
        is_over: whether something was delivered since then.
    """

    type: str
    message: str
    at_ns: int
    is_over: bool

    def in_words(self, now_ns: int) -> str:
        """Return the failure as one line."""
        return f"{self.type}, {human_age(max(now_ns - self.at_ns, 0) / 1e9)} ago: {self.message}"


@dataclass(frozen=True, slots=True)
class Reported:
    """
    The report of an exporter.

    Attributes:
        last_success_at_ns: the time of the last delivery; None: never, or it is not an exporter.
        last_error: the last failure; None: none, or it is not an exporter.
        report_problem: why a report cannot be read.
    """

    last_success_at_ns: int | None = None
    last_error: LastError | None = None
    report_problem: str | None = None

    @property
    def error(self) -> LastError | None:
        """The last failure, unless it is over."""
        return None if self.last_error is None or self.last_error.is_over else self.last_error


def reported(fs: FileSystem, roots: Sequence[str], exporter: str) -> Reported:
    """
    Merge the reports of *exporter* in the stores *roots*, each of which may have a different instance of it.

    The result has the last success of all, and the last failure, preferably one that is not over.

    Raises:
        OSError: a file cannot be read.
    """
    found: list[ExporterReport] = []
    problems: list[str] = []
    for root in roots:
        try:
            report = load_report(fs, root, exporter)
        except CorruptionError as damage:
            problems.append(f"{damage}; no data depend on it, and its exporter replaces it")
            continue
        if report is not None:
            found.append(report)
    times = [one.last_success_at_ns for one in found if one.last_success_at_ns is not None]
    errors = [
        LastError(one.last_failure.type, one.last_failure.message, one.last_failure.at_ns, not one.is_failing)
        for one in found
        if one.last_failure is not None
    ]
    last = max(errors, key=lambda one: (not one.is_over, one.at_ns), default=None)
    return Reported(max(times, default=None), last, "; ".join(problems) or None)


def since_success(one: Reported, now_ns: int) -> str | None:
    """Return how long ago the last delivery was, human-readable; None if never."""
    at_ns = one.last_success_at_ns
    return None if at_ns is None else human_age(max(now_ns - at_ns, 0) / 1e9)
