"""
Where the store stands on its performance goals, each beside the bare log of the same mode in the same run.

P1 to P7 (`figures/store_writes.py`): durable appends of 1 KiB, of 100 × 1 KiB, of 16 × 64 KiB, of Arrow batches; CPU
per bundle; many producers; sealing. P8 to P12 and P14 (`figures/store_reads.py`): reading, replay, acknowledging,
draining a backlog, what the buffer costs a pipeline, bytes on disk. P9's start-up with many segments is `startup.py`.

    .venv/bin/python bench/goals.py [--rounds N] [--quick] [--goals P1 …] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import store_reads, store_writes
from figures.goal import Goal
from report import BenchParser, Report, Result, machine, noise, run_rounds_of_several


def ratio_words(result: Result, floor: Result, *, lower_is_better: bool) -> str:
    each = [
        base / mine if lower_is_better else mine / base for mine, base in zip(result.rates, floor.rates, strict=True)
    ]
    return f"{statistics.median(each):.2f} | {min(each):.2f} to {max(each):.2f}"


def lines_of(goal: Goal, found: dict[str, dict[str, Result]]) -> Iterator[str]:
    for figure in goal.figures:
        known = {name: result for name, result in found.get(figure.key, {}).items() if result.rates}
        floor = known[goal.floor]
        for name, result in known.items():
            words = ratio_words(result, floor, lower_is_better=figure.lower_is_better)
            yield (
                f"| {goal.key} | {goal.what}: {figure.unit} | {name} | {result.median:{figure.style}} | {words} | "
                f"{noise(result):.0%} | {figure.aim if name == goal.ours else ''} |"
            )


def measure(goal: Goal, report: Report, rounds: int, scratch: Path) -> None:
    """
    Run the contenders of one goal, and report its figures. Those with an aim are in the summary.

    With `QUIVER_PURE` set, only the two that are compared there run: their ratio is all that is written.
    """
    contenders = goal.contenders
    if os.environ.get("QUIVER_PURE"):
        contenders = {name: run for name, run in contenders.items() if name in {goal.ours, goal.floor}}
    found = run_rounds_of_several(contenders, rounds=rounds, scratch=scratch)
    report.add(lines_of(goal, found))
    for figure in goal.figures:
        results = found.get(figure.key, {})
        if figure.aim and goal.ours != goal.floor and goal.ours in results:
            report.compare(
                f"{goal.key}: {goal.what}: {figure.unit}", results[goal.ours], results[goal.floor], "",
                lower_is_better=figure.lower_is_better, style=figure.style,
            )  # fmt: skip


def main() -> None:
    parser = BenchParser(__doc__)
    parser.add_argument("--goals", nargs="*", help="only these, as P1 P7")
    options = parser.options()
    report = Report(
        "goals",
        f"Measured by `bench/goals.py` ({machine()}; {options.rounds} rounds). The ratio is to the goal's floor, the "
        "row with 1.00, in the same round, and more is better also where the figure is a time; the aim is 0.95 "
        "wherever a sync is waited for.",
        "goal", "what", "contender", "median", "ratio to the floor", "lowest to highest", "own swing", "goal's figure",
    )  # fmt: skip
    share = options.share
    with tempfile.TemporaryDirectory(prefix="bench-goals-", dir=Path.cwd()) as scratch:
        for goal in (*store_writes.goals(share), *store_reads.goals(share)):
            if options.goals and goal.key not in options.goals:
                continue
            measure(goal, report, options.rounds, Path(scratch))
    report.finish(options.write)


if __name__ == "__main__":
    main()
