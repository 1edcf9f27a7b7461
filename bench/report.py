"""
What every benchmark shares: rounds side by side, ratios to a floor, noise, and one section of the page.

A bare figure says little on a machine whose disk is shared. So the contenders take turns in every round, each
figure is divided by the floor's of the same round, and the table shows the median ratio with the lowest and the
highest, beside how much the floor itself swung.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import platform
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WARM_BYTES = 2 << 30
"""More than any turn touches: files in the page cache, what is read back of them, and memory."""
WARM_BYTES_MIN = 128 << 20
"""What is touched however small a share of the work is."""

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux, which Python does not name."""

_share = 1


def warm_memory() -> None:
    """
    Touch memory and release it, so that the next turn gets pages that exist.

    In a virtual machine, a page that was never touched or that was returned to the host costs ten times the work
    of filling it. Without this, the first contender after a pause would pay for the others. A script that does a share
    of its work touches a share of the memory: in a short run, touching memory took most of the time.
    """
    step = 1 << 20
    warm_bytes = max(WARM_BYTES // _share, WARM_BYTES_MIN) // step * step
    block = mmap.mmap(-1, warm_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)  # faster, if there are large pages
        block.madvise(_POPULATE_WRITE)
    except (AttributeError, OSError):  # not Linux, or before 5.14
        zeros = bytes(step)
        for start in range(0, warm_bytes, step):
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


def has_section(page: Path, name: str) -> bool:
    """Return whether *page* has a section of that name, with anything in it."""
    _, begin, rest = (page.read_text() if page.exists() else "").partition(f"<!-- {name} -->")
    return bool(begin and rest.partition(f"<!-- end {name} -->")[0].strip())


class Report:
    """
    The table of one script, and its rows in the summary at the top of the page.

    *name* is the section of the page. *introduction* is the line above the table.
    """

    def __init__(self, name: str, introduction: str, *columns: str) -> None:
        self.name = name
        self.lines = [introduction, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        self.comparisons: list[Comparison] = []

    def add(self, lines: Iterable[str]) -> None:
        """Add rows, or text below the table, and print them."""
        added = list(lines)
        print("\n".join(added), flush=True)
        self.lines += added

    def compare(
        self,
        what: str,
        ours: Result,
        rival: Result,
        unit: str,
        *,
        pure: Result | None = None,
        lower_is_better: bool = False,
        style: str = ",.0f",
    ) -> None:
        """
        Add a row to the summary: the median of *ours* beside that of *rival*, and the ratio by rounds.

        *pure* are our rates without the compiled kernel, in the same rounds.
        """
        if not ours.rates or not rival.rates:
            return

        def shown(which: Result) -> str:
            median, low, high = ratios(rival, which) if lower_is_better else ratios(which, rival)
            return f"{median:.2f} | {low:.2f} to {high:.2f}"

        figures = f"{ours.median:{style}} {unit}".rstrip() + f" | {rival.name}: {rival.median:{style}} | {shown(ours)}"
        without = shown(pure).split(" | ")[0] if pure is not None and pure.rates else ""
        self.comparisons.append(Comparison(what, figures, without))

    def finish(self, page: Path | None) -> None:
        """
        Print the rows of the summary; with a *page*, write them and the section of this script.

        With `QUIVER_PURE` set, and a page that has the section of a run with the compiled kernel, only the ratios are
        written, into the last column of its rows in the summary.
        """
        if self.comparisons:
            print("\n".join(["", *(str(row) for row in self.comparisons)]))
        if page is None:
            return
        if os.environ.get("QUIVER_PURE") and has_section(page, self.name):
            write_pure_ratios(page, self.name, self.comparisons)
            return
        write_section(page, self.name, "\n".join(self.lines))
        write_summary(page, self.name, self.comparisons)


@dataclass(frozen=True)
class Comparison:
    """One row of the summary: what is compared, the figures, and the ratio without the compiled kernel."""

    what: str
    figures: str
    without_kernel: str = ""

    def __str__(self) -> str:
        return f"| {self.what} | {self.figures} | {self.without_kernel} |"

    @property
    def ratio(self) -> str:
        return self.figures.split(" | ")[2]


SUMMARY = "<!-- summary -->", "<!-- end summary -->"
SUMMARY_COLUMNS = "part", "what", "Quiver", "beside", "ratio", "lowest to highest", "ratio, pure Python"


def write_summary(page: Path, name: str, comparisons: Sequence[Comparison]) -> None:
    """Replace the rows of section *name* in the summary of *page*, if it has one. Rows are in the order of sections."""
    text = page.read_text()
    if SUMMARY[0] not in text:
        return
    head, rest = text.split(SUMMARY[0], 1)
    old, tail = rest.split(SUMMARY[1], 1)
    part = part_of(text, name)
    rows = [line for line in old.splitlines() if line.startswith("| [") and not line.startswith(f"| {part} ")]
    rows += [f"| {part} {row}" for row in comparisons]
    parts = [part_of(text, found) for found in re.findall(r"<!-- end (\w+) -->", tail)]
    rows.sort(key=lambda row: parts.index(row[2:].split(" | ")[0]))
    table = "\n".join([f"| {' | '.join(SUMMARY_COLUMNS)} |", "|---" * len(SUMMARY_COLUMNS) + "|", *rows])
    page.write_text(f"{head}{SUMMARY[0]}\n{table}\n{SUMMARY[1]}{tail}")


def write_pure_ratios(page: Path, name: str, comparisons: Iterable[Comparison]) -> None:
    """Write the ratios into the last column of their rows in the summary of *page*."""
    text = page.read_text()
    part = part_of(text, name)
    ratio_of = {f"| {part} | {row.what} ": row.ratio for row in comparisons}
    lines = text.splitlines()
    for at, line in enumerate(lines):
        ratio = ratio_of.get("|".join(line.split("|")[:3]))
        if ratio is not None:
            lines[at] = "|".join([*line.split("|")[:7], f" {ratio} |"])
    page.write_text("\n".join(lines) + "\n")


def part_of(text: str, name: str) -> str:
    """Return a link to the heading above section *name*."""
    heading = re.findall(r"^#+ (.+)$", text.split(f"<!-- {name} -->", maxsplit=1)[0], re.MULTILINE)[-1]
    return f"[{heading}](#{heading.lower().replace(' ', '-')})"


@dataclass(frozen=True)
class Quick:
    """How much less `--quick` does: a *share*-th of the work, so many *rounds*."""

    share: int = 50
    rounds: int = 1


class BenchParser(argparse.ArgumentParser):
    """
    The options that all benchmarks have.

    The result has `rounds` and `share`: a benchmark does a `share`-th of its work. `--quick` sets both, to a little
    work that shows that the script runs.
    """

    def __init__(self, doc: str | None, *, rounds: int = 5, quick: Quick = Quick()) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._quick = quick
        self.add_argument("--rounds", type=int, default=rounds)
        little = f"a {quick.share}th of the work, {quick.rounds} round{'s'[: quick.rounds - 1]}"
        self.add_argument("--quick", action="store_true", help=little)
        self.add_argument("--share", type=int, default=1, metavar="N", help="do an N-th of the work")
        self.add_argument("--write", type=Path, help="put the table into this page")

    def options(self) -> argparse.Namespace:
        """Parse the command line."""
        global _share  # noqa: PLW0603 - one script per process
        options = self.parse_args()
        if options.quick:
            options.share, options.rounds = self._quick.share, self._quick.rounds
        _share = options.share
        return options
