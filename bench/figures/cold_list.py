"""
What a change of the cold list costs, by the number of its entries: appended to the file, beside a new file each time.

    PYTHONPATH=bench .venv/bin/python bench/figures/cold_list.py [--rounds N] [--quick]
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.cold.register import ColdRegister
from quiver.store.format.cold_list import ColdSegment
from report import BenchParser, Quick, Report, machine

ENTRIES = (100, 1_000, 4_000, 86_400)
CHANGES = 100


def entry(seq: int) -> ColdSegment:
    return ColdSegment(seq, 4_000_000, seq, 100, (seq, seq + 1), (seq, seq + 1), (seq, seq + 1), "verified")


def changes(register: ColdRegister, count: int, *, is_rewritten: bool) -> tuple[float, float]:
    """Return seconds of wall time and of the processor per change."""
    began, began_cpu = perf_counter(), process_time()
    for number in range(count):
        if is_rewritten:
            register.replace_all(register.entries())
        else:
            register.put(replace(entry(number), state="sent" if number % 2 else "verified"))
    return (perf_counter() - began) / count, (process_time() - began_cpu) / count


def main() -> None:
    options = BenchParser(__doc__, quick=Quick(share=10)).options()
    report = Report(
        "cold_list",
        f"Measured by `bench/figures/cold_list.py` ({machine()}; {options.rounds} rounds of {CHANGES // options.share} "
        "changes). Milliseconds per change, wall time and processor time, medians.",
        "entries", "appended", "processor", "rewritten", "processor", "rewritten to appended", "lowest to highest",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-cold-", dir=Path.cwd()) as scratch:
        for count in ENTRIES:
            directory = f"{scratch}/{count}/segments"
            REAL_FILES.make_dirs(directory)
            register = ColdRegister(REAL_FILES, directory, {"backend": "fs", "folder": "x"})
            register.replace_all(entry(seq) for seq in range(count))
            found = []
            for _ in range(options.rounds):
                register.put(entry(0))
                appended = changes(register, CHANGES // options.share, is_rewritten=False)
                rewritten = changes(register, max(CHANGES // options.share // 10, 1), is_rewritten=True)
                found.append((*appended, *rewritten))
            times = [f"{statistics.median(column) * 1e3:.2f}" for column in zip(*found, strict=True)]
            each = [row[2] / row[0] for row in found]
            ratio = f"{statistics.median(each):.1f} | {min(each):.1f} to {max(each):.1f}"
            report.add([f"| {count:,} | {' | '.join(times)} | {ratio} |"])
    report.finish(options.write)


if __name__ == "__main__":
    main()
