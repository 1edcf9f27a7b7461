"""
The store beside the Rust engine of the same design, side by side in one run: the same data, the same kind of directory,
a process of its own for every turn.

What is timed: taking bundles in until the last one is in a sealed segment, in three modes; delivering them to one
subscriber with an acknowledgement each, values not touched; replaying the log of a process that died; sealing what it
held. The Rust engine is `bench/rivals/rust_engine`, built by `make rival-rust`.

    .venv/bin/python bench/engines.py [--rounds N] [--quick] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from report import Result, bench_parser, machine, noise, ratios, run_rounds_of_several, write_section

HERE = Path(__file__).parent
RUST_ENGINE = HERE / "rivals" / "rust_engine" / "target" / "release" / "rust-engine"
STORE, RIVAL, RUNS = "Quiver", "Rust engine", "Quiver, runs of 256"

ROWS = (10, 100, 1_000, 8_192)
MODES = {"wal": "log, 25 ms", "synced": "log, synced each", "segment_only": "segment only"}
BUNDLES = {
    "wal": {10: 60_000, 100: 20_000, 1_000: 2_400, 8_192: 300},
    "synced": {10: 6_000, 100: 6_000, 1_000: 2_400, 8_192: 300},
    "segment_only": {10: 60_000, 100: 20_000, 1_000: 2_400, 8_192: 300},
}
REPLAYS = {10: 40_000, 100: 10_000, 1_000: 2_000, 8_192: 300}
REOPENED = 1_000

Run = Callable[[Path], Mapping[str, float]]
Figures = dict[str, dict[str, Result]]


def ask(engine: list[str], *words: str) -> dict[str, float]:
    done = subprocess.run([*engine, *words], capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(f"{engine[-1]} {' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def engines() -> dict[str, list[str]]:
    found = {STORE: [sys.executable, str(HERE / "engine.py")], RIVAL: [str(RUST_ENGINE)]}
    if not RUST_ENGINE.exists():
        print("the Rust engine is not built (make rival-rust): it is left out", file=sys.stderr)
        del found[RIVAL]
    return found


def ingesting(engine: list[str], mode: str, rows: int, bundles: int, word: str = "bench") -> Run:
    def run(directory: Path) -> dict[str, float]:
        found = ask(engine, word, mode, str(rows), str(bundles), str(directory / "store"))
        if (found["delivered"], found["rows"]) != (bundles, bundles * rows):
            sys.exit(f"{engine[-1]}: {found} where {bundles} bundles of {rows} rows were taken in")
        deliver = {"deliver": bundles / found["deliver_s"]}
        return deliver if word == "runs" else {"ingest": bundles / found["total_s"], **deliver}

    return run


def reopening(engine: list[str], rows: int, bundles: int) -> Run:
    def run(directory: Path) -> dict[str, float]:
        ask(engine, "fill", str(rows), str(bundles), str(directory / "store"))
        found = ask(engine, "reopen", str(directory / "store"))
        if found["delivered"] != bundles:
            sys.exit(f"{engine[-1]}: {found} after {bundles} bundles were logged")
        return {
            "replay": bundles / found["open_s"],
            "finalize": found["segment_bytes"] / 1e6 / found["finalize_s"],
        }

    return run


def lines_of(what: str, rows: int, found: dict[str, Result], unit: str) -> Iterator[str]:
    for name, result in found.items():
        if not result.rates:  # it does not do this
            continue
        median, low, high = ratios(result, found.get(RIVAL, result))
        yield (
            f"| {what} | {rows:,} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} {unit} | "
            f"{noise(result):.0%} |"
        )


def scenarios(known: dict[str, list[str]], scale: int, chosen: list[int]) -> Iterator[tuple[dict[str, Run], Show]]:
    for mode, words in MODES.items():
        for rows in chosen:
            bundles = BUNDLES[mode][rows] // scale
            runs = {name: ingesting(engine, mode, rows, bundles) for name, engine in known.items()}
            # The Rust engine has no runs. A turn of its own: who reads first pays for checksums.
            runs[RUNS] = ingesting(known[STORE], mode, rows, bundles, "runs")
            yield (
                runs,
                [("ingest", words, rows, "bundles/s"), ("deliver", f"deliver and ack, {words}", rows, "bundles/s")],
            )
    for rows in chosen:
        runs = {name: reopening(engine, rows, REPLAYS[rows] // scale) for name, engine in known.items()}
        yield runs, [("replay", "replay", rows, "bundles/s"), ("finalize", "seal one segment", rows, "MB/s")]
    runs = {name: reopening(engine, 100, REOPENED // scale) for name, engine in known.items()}
    yield runs, [("replay", f"reopen, {REOPENED:,} entries", 100, "bundles/s")]


Show = list[tuple[str, str, int, str]]


def main() -> None:
    parser = bench_parser(__doc__, rounds=5, quick="a fiftieth of the bundles, one round")
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    lines = [
        (
            f"Measured by `bench/engines.py` ({machine()}; {rounds} rounds). A ratio is the rate over the Rust "
            "engine's in the same round."
        ),
        "",
        "| what | rows | engine | ratio to the Rust engine | lowest to highest | rate (median) | own swing |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(prefix="bench-engines-", dir=Path.cwd()) as scratch:
        for runs, shown in scenarios(engines(), 50 if options.quick else 1, options.rows):
            found = run_rounds_of_several(runs, rounds=rounds, scratch=Path(scratch))
            for figure, words, rows, unit in shown:
                table = list(lines_of(words, rows, found[figure], unit))
                print("\n".join(table), flush=True)
                lines += table
    if options.write:
        write_section(options.write, "engines", "\n".join(lines))


if __name__ == "__main__":
    main()
