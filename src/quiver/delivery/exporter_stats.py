"""
Counts of an exporter's deliveries and failures, and its report, a small file next to the store's progress files.

All exporters use it, in any process. The counts go to an observer and start at 0 in each process. The report survives
a restart: it has the time of the last delivery and the last failure.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.atomic import replace_advisory_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.small_file import read_checked
from quiver.store.format.exporter_report import (
    FAILURE_TYPES,
    REPORT_BYTES_MAX,
    ExporterReport,
    Failure,
    FailureType,
    cut_message,
    decode_report,
    encode_report,
)
from quiver.store.format.names import report_name

__all__ = ["ExporterStats", "begin_counts", "load_report"]

SAVE_EVERY_S = 5.0
"""The last success in the report is at most this old. The first failure and the recovery from it are written
immediately."""


def begin_counts(observer: Observer, exporter: str) -> None:
    """Start every counter of *exporter* at 0: a rate misses the first event of a counter that appears with it."""
    observer.count("quiver.exporter.batches_total", 0, exporter=exporter)
    observer.count("quiver.exporter.rows_total", 0, exporter=exporter)
    observer.count("quiver.exporter.bytes_total", 0, exporter=exporter)
    for kind in FAILURE_TYPES:
        observer.count("quiver.exporter.failures_total", 0, exporter=exporter, type=kind)


def load_report(fs: FileSystem, root: str, exporter: str) -> ExporterReport | None:
    """
    Return the report of *exporter* in the store at *root*, or None if there is none.

    Raises:
        CorruptionError: the file is damaged. No data depend on it; its exporter replaces it.
        UsageError: not a valid name of an exporter.
        OSError: it cannot be read.
    """
    path = f"{root}/{report_name(exporter)}"
    try:
        return read_checked(fs, path, decode_report, REPORT_BYTES_MAX)
    except NotADirectoryError:
        return None


class ExporterStats:
    """
    The counts and the report of one exporter. Thread-safe.

    Args:
        exporter: its name.
        observer: receives the counts.
        roots: the directories of the stores that it reads; the report is written to each. Empty: it is not written.
        fs: the file system.
        clock: timestamps deliveries and limits how often the report is written.
    """

    def __init__(
        self,
        exporter: str,
        observer: Observer | None = None,
        *,
        roots: Sequence[str] = (),
        fs: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.exporter = exporter
        self._observer = observer or InMemoryObserver()
        self._roots = tuple(roots)
        self._fs = fs
        self._clock = clock
        self._lock = threading.Lock()
        self._report = self._written = self._load()
        self._written_at_s = clock.monotonic() - SAVE_EVERY_S
        begin_counts(self._observer, exporter)

    def _load(self) -> ExporterReport:
        found = []
        for root in self._roots:
            # The first save replaces an unreadable report.
            with contextlib.suppress(CorruptionError, OSError):
                found.append(load_report(self._fs, root, self.exporter) or ExporterReport())
        times = [one.last_success_at_ns for one in found if one.last_success_at_ns is not None]
        failures = [one.last_failure for one in found if one.last_failure is not None]
        return ExporterReport(max(times, default=None), max(failures, key=lambda one: one.at_ns, default=None))

    @property
    def report(self) -> ExporterReport:
        """The last success and the last failure, including those of earlier processes."""
        return self._report

    def delivered(self, rows: int, size_bytes: int) -> None:
        """Count one delivered batch."""
        self._observer.count("quiver.exporter.batches_total", exporter=self.exporter)
        self._observer.count("quiver.exporter.rows_total", rows, exporter=self.exporter)
        self._observer.count("quiver.exporter.bytes_total", size_bytes, exporter=self.exporter)
        with self._lock:
            # Later than the failure before it, even if the wall clock was set back.
            failure = self._report.last_failure
            now_ns = max(self._clock.now_ns(), 0 if failure is None else failure.at_ns)
            self._report = ExporterReport(now_ns, failure)

    def failed(self, kind: FailureType, message: str) -> None:
        """Count one failed attempt; *message* is the human-readable reason."""
        self._observer.count("quiver.exporter.failures_total", exporter=self.exporter, type=kind)
        with self._lock:
            success_ns = self._report.last_success_at_ns
            now_ns = max(self._clock.now_ns(), 0 if success_ns is None else success_ns + 1)
            self._report = ExporterReport(success_ns, Failure(kind, cut_message(message), now_ns))

    def save(self, *, is_last: bool = False) -> None:
        """
        Write the report if it changed and is due.

        It is due immediately when failures started or stopped, or with *is_last*; otherwise every `SAVE_EVERY_S`
        seconds.

        Raises:
            OSError: the disk failed; the next call tries again.
        """
        with self._lock:
            report, now_s = self._report, self._clock.monotonic()
            is_due = is_last or now_s - self._written_at_s >= SAVE_EVERY_S
            if report == self._written or not (is_due or report.is_failing != self._written.is_failing):
                return
            data = encode_report(report)
            for root in self._roots:
                # A removed core has no directory.
                with contextlib.suppress(FileNotFoundError):
                    replace_advisory_file(self._fs, f"{root}/{report_name(self.exporter)}", data)
            self._written, self._written_at_s = report, now_s
