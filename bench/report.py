"""
What every benchmark shares: rounds side by side, ratios to a floor, noise, and one section of the page.

A bare figure says little on a machine whose disk is shared. So the contenders take turns in every round, each
figure is divided by the floor's of the same round, and the table shows the median ratio with the lowest and the
highest, beside how much the floor itself swung.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WARM_BYTES = 2 << 30
"""More than any turn touches: files in the page cache, what is read back of them, and memory."""


def warm_memory() -> None:
    """
    Touch memory and give it back, so that what follows gets pages that exist.

    In a virtual machine a page that was never touched, or was handed back to the host, costs ten times the work
    of filling it; whoever came first after a pause would pay that for the others.
    """
    block = mmap.mmap(-1, WARM_BYTES)
    step = 1 << 20
    zeros = bytes(step)
    for start in range(0, WARM_BYTES, step):
        block[start : start + step] = zeros
    block.close()


@dataclass
class Result:
    """Rates of one contender in one setting, one per round."""

    name: str
    rates: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def run_rounds(contenders: dict[str, Callable[[Path], float]], *, rounds: int, scratch: Path) -> dict[str, Result]:
    """
    Let every contender run once per round, each in an empty directory; the order turns with the rounds.

    A contender returns its rate (higher is better). The first round warms up and is not counted.
    """

    def several(run: Callable[[Path], float]) -> Callable[[Path], Mapping[str, float]]:
        return lambda directory: {"rate": run(directory)}

    found = run_rounds_of_several(
        {name: several(run) for name, run in contenders.items()}, rounds=rounds, scratch=scratch
    )
    return found["rate"]


def run_rounds_of_several(
    contenders: dict[str, Callable[[Path], Mapping[str, float]]], *, rounds: int, scratch: Path
) -> dict[str, dict[str, Result]]:
    """The same for contenders that return several figures at once: figure → contender → its values."""
    found: dict[str, dict[str, Result]] = {}
    names = list(contenders)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            directory = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
            gc.collect()
            if rounds > 1:  # a single round only shows that it runs
                warm_memory()
            try:
                figures = contenders[name](directory)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            for figure, value in figures.items() if turn else ():
                of_all = found.setdefault(figure, {known: Result(known) for known in names})
                of_all[name].rates.append(value)
    return found


def ratios(result: Result, floor: Result) -> tuple[float, float, float]:
    """Median, lowest and highest ratio to the floor, round by round."""
    each = [rate / base for rate, base in zip(result.rates, floor.rates, strict=True)]
    return statistics.median(each), min(each), max(each)


def noise(result: Result) -> float:
    """How far a contender's own rates lie apart: (highest - lowest) / median."""
    return (max(result.rates) - min(result.rates)) / result.median


def machine() -> str:
    """One line on where this ran."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def write_section(page: Path, name: str, text: str) -> None:
    """Replace the section between ``<!-- name -->`` and ``<!-- end name -->`` of *page*, or append it."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    whole = page.read_text() if page.exists() else ""
    block = f"{begin}\n{text.strip()}\n{end}"
    if begin in whole:
        head, rest = whole.split(begin, 1)
        whole = head + block + rest.split(end, 1)[1]
    else:
        whole = f"{whole.rstrip()}\n\n{block}\n"
    page.write_text(whole)


def as_json(results: dict[str, Result]) -> str:
    """All rates, for those who want to look closer."""
    return json.dumps({name: result.rates for name, result in results.items()})


def bench_parser(doc: str | None, *, rounds: int, quick: str) -> argparse.ArgumentParser:
    """
    What every benchmark is asked for: how many rounds, all of it or little (*quick* says how
    little), and the page.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--write", type=Path, help="put the table into this page")
    return parser


def show(lines: Sequence[str], name: str, page: Path | None) -> None:
    """Print the table, which follows two lines of introduction, and put both into section *name* of *page*."""
    print("\n".join(lines[2:]))
    if page is not None:
        write_section(page, name, "\n".join(lines))
