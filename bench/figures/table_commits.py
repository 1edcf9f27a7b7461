"""The latency of a thousand commits to one table, in Delta and in Iceberg, without maintenance."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures.tables import TABLE_FORMATS, Tables, rows_of_requests
from report import BenchParser, Quick, Report, machine

COMMITS = 1_000
PARTS = 5


def latencies(kind: str, directory: Path, count: int) -> list[float]:
    """Return the milliseconds of each commit, in order."""
    tables = Tables(kind, directory)
    rows = rows_of_requests(1)[0]
    return [tables.commit(tables.write([rows.slice(number % rows.num_rows, 1)])) * 1000 for number in range(count)]


def lines(kind: str, took: list[float]) -> Iterator[str]:
    size = max(len(took) // PARTS, 1)
    for first in range(0, len(took) - size + 1, size):
        part = sorted(took[first : first + size])
        slow = part[min(len(part) * 99 // 100, len(part) - 1)]
        cells = f"{statistics.median(part):.1f} | {slow:.1f} | {part[-1]:.0f}"
        yield f"| {kind} | {first + 1:,} to {first + size:,} | {cells} |"


def main() -> None:
    options = BenchParser(__doc__, quick=Quick(share=50)).options()
    count = max(COMMITS // options.share, PARTS)
    report = Report(
        "table_commits",
        f"Measured by `bench/figures/table_commits.py` ({machine()}). Record and commit of one row, synced.",
        "format", "commits", "p50, ms", "p99, ms", "worst, ms",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-commits-", dir=Path.cwd()) as scratch:
        for kind in TABLE_FORMATS:
            report.add(lines(kind, latencies(kind, Path(scratch) / kind, count)))
    report.finish(options.write)


if __name__ == "__main__":
    main()
