"""
What one exporter delivered, how its attempts failed, and its report: a small file beside the store's progress.

The same for every exporter, in whichever process it runs. The counts go to an observer and begin anew with each
process. What an operator asks after a restart, when it last delivered and what it last failed with, stands in the
report.
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
"""The time of the last success is as old as this in the report. A first failure, or the end of one, is written at
once."""


def begin_counts(observer: Observer, exporter: str) -> None:
    """
    Let every counter of *exporter* begin at 0: a rate over one that appears with its first event
    does not see that.
    """
    observer.count("quiver.exporter.batches_total", 0, exporter=exporter)
    observer.count("quiver.exporter.rows_total", 0, exporter=exporter)
    observer.count("quiver.exporter.bytes_total", 0, exporter=exporter)
    for kind in FAILURE_TYPES:
        observer.count("quiver.exporter.failures_total", 0, exporter=exporter, type=kind)


def load_report(fs: FileSystem, root: str, exporter: str) -> ExporterReport | None:
    """
    Return what the report of *exporter* in the store at *root* says; None when there is none.

    Raises:
        CorruptionError: the file is no report. Nothing relies on it; its exporter writes it anew.
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
        observer: takes the counts.
        roots: the directories of the stores that it reads; each gets the report. Without any, nothing is written.
        files: the file system.
        clock: says when something was delivered, and spaces the writes.
    """

    def __init__(
        self,
        exporter: str,
        observer: Observer | None = None,
        *,
        roots: Sequence[str] = (),
        files: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.exporter = exporter
        self._observer = observer or InMemoryObserver()
        self._roots = tuple(roots)
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._report = self._written = self._load()
        self._written_at_s = clock.monotonic() - SAVE_EVERY_S
        begin_counts(self._observer, exporter)

    def _load(self) -> ExporterReport:
        found = []
        for root in self._roots:
            # What cannot be read is replaced with the first thing that there is to say.
            with contextlib.suppress(CorruptionError, OSError):
                found.append(load_report(self._files, root, self.exporter) or ExporterReport())
        times = [one.last_success_at_ns for one in found if one.last_success_at_ns is not None]
        failures = [one.last_failure for one in found if one.last_failure is not None]
        return ExporterReport(max(times, default=None), max(failures, key=lambda one: one.at_ns, default=None))

    @property
    def report(self) -> ExporterReport:
        """How the last attempts ended, those of earlier processes included."""
        return self._report

    def delivered(self, rows: int, size_bytes: int) -> None:
        """Count one batch that was delivered."""
        self._observer.count("quiver.exporter.batches_total", exporter=self.exporter)
        self._observer.count("quiver.exporter.rows_total", rows, exporter=self.exporter)
        self._observer.count("quiver.exporter.bytes_total", size_bytes, exporter=self.exporter)
        with self._lock:
            # Later than the failure that it ends, also where the wall clock went back.
            failure = self._report.last_failure
            now_ns = max(self._clock.now_ns(), 0 if failure is None else failure.at_ns)
            self._report = ExporterReport(now_ns, failure)

    def failed(self, kind: FailureType, message: str) -> None:
        """Count one attempt that failed; *message* says why, for people."""
        self._observer.count("quiver.exporter.failures_total", exporter=self.exporter, type=kind)
        with self._lock:
            success_ns = self._report.last_success_at_ns
            now_ns = max(self._clock.now_ns(), 0 if success_ns is None else success_ns + 1)
            self._report = ExporterReport(success_ns, Failure(kind, cut_message(message), now_ns))

    def save(self, *, is_last: bool = False) -> None:
        """
        Write the report when it is due: at once when failures began or ended, else every `SAVE_EVERY_S` seconds if it
        changed. With *is_last* whenever it changed.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        with self._lock:
            report, now_s = self._report, self._clock.monotonic()
            is_due = is_last or now_s - self._written_at_s >= SAVE_EVERY_S
            if report == self._written or not (is_due or report.is_failing != self._written.is_failing):
                return
            data = encode_report(report)
            for root in self._roots:
                # A core that is gone has no directory any more.
                with contextlib.suppress(FileNotFoundError):
                    replace_advisory_file(self._files, f"{root}/{report_name(self.exporter)}", data)
            self._written, self._written_at_s = report, now_s
