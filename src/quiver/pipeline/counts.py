"""
The counters of the Spark process: it writes them to a file, and the first ingest process serves them as metrics.

The Spark process opens no port: metrics have one port per core. Each start of the Spark process counts from zero, and
so does each start of the ingest process; neither counts twice what the other reported before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["SPARK_COUNTS", "CountsRead", "CountsWritten"]

SPARK_COUNTS = "spark-counts.json"
COUNTS_BYTES_MAX = 1024 * 1024

_Key = tuple[str, tuple[tuple[str, Any], ...]]


class CountsWritten:
    """
    The writer: an observer, and the file with the counts of this process.

    Args:
        run_dir: the directory of the file.
        pid: the id of this process; another process starts at zero.
    """

    def __init__(self, run_dir: Path, pid: int) -> None:
        self.observer = InMemoryObserver()
        self._path = run_dir / SPARK_COUNTS
        self._pid = pid
        self._written: Mapping[_Key, int] = {}

    def write(self) -> None:
        """
        Write the counts to the file if they changed.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        counts = dict(self.observer.counts)
        if counts == self._written:
            return
        rows = [[name, dict(attributes), amount] for (name, attributes), amount in sorted(counts.items())]
        replace_file(REAL_FILES, str(self._path), json.dumps({"pid": self._pid, "counts": rows}).encode() + b"\n")
        self._written = counts


class CountsRead:
    """The reader: adds what was counted since the last read to *observer*."""

    def __init__(self, run_dir: Path, observer: Observer) -> None:
        self._path = str(run_dir / SPARK_COUNTS)
        self._observer = observer
        self._pid: object = None
        self._reported: dict[_Key, int] = {}

    def look(self) -> None:
        """Add the new counts of the other process. A missing or unreadable file adds nothing."""
        try:
            recorded = json.loads(REAL_FILES.read_all(self._path, size_max=COUNTS_BYTES_MAX))
            pid = recorded["pid"]
            counts: dict[_Key, int] = {
                (str(name), tuple(sorted(attributes.items()))): int(amount)
                for name, attributes, amount in recorded["counts"]
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return
        if pid != self._pid:
            self._pid, self._reported = pid, {}
        for key, amount in counts.items():
            more = amount - self._reported.get(key, 0)
            if more > 0 or key not in self._reported:  # a counter that is 0 is reported once, too
                self._observer.count(key[0], more, **dict(key[1]))
        self._reported = counts
