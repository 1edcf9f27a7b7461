"""
The store beside the Rust engine of the same design, side by side in one run: the same data, the same kind of directory,
a process of its own for every turn.

The script times four things: ingest in three modes, until the last bundle is in a sealed segment; delivery to one
subscriber with an acknowledgement for each bundle, values not touched; replay of the log of a process that died; the
seal of what it held. Ingest begins with the same number of bundles that are not timed. The buffers of *received*
batches are views of an immutable message; all others are in memory that a producer could change. The Rust engine is
`bench/rivals/rust_engine`, built by `make rival-rust`.

    .venv/bin/python bench/engines.py [--rounds N] [--quick] [--rows N …] [--parts wal …] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quiver.primitives.kernel import KERNEL
from report import BenchParser, Report, Result, machine, noise, ratios, run_rounds_of_several

HERE = Path(__file__).parent
RUST_ENGINE = HERE / "rivals" / "rust_engine" / "target" / "release" / "rust-engine"
STORE, RIVAL, RUNS = "Quiver", "Rust engine", "Quiver, runs of 256"
PURE, PURE_RUNS = "Quiver, pure", "Quiver, pure, runs of 256"
RECEIVED, PURE_RECEIVED = "Quiver, received batches", "Quiver, pure, received batches"

ROWS = (10, 100, 1_000, 8_192)
MODES = {"wal": "log, 25 ms", "synced": "log, synced each", "segment_only": "segment only"}
BUNDLES = {
    "wal": {10: 60_000, 100: 20_000, 1_000: 2_400, 8_192: 300},
    "synced": {10: 6_000, 100: 6_000, 1_000: 2_400, 8_192: 300},
    "segment_only": {10: 60_000, 100: 20_000, 1_000: 2_400, 8_192: 300},
}
REPLAYS = {10: 40_000, 100: 10_000, 1_000: 2_000, 8_192: 300}
RECEIVED_ROWS = 8_192
"""Received batches of this size are large enough to be kept without a copy."""
REOPENED = 1_000
REPLAY = "replay"

Run = Callable[[Path], Mapping[str, float]]


@dataclass(frozen=True)
class Shown:
    """One figure of a turn in the table."""

    key: str
    what: str
    rows: int
    unit: str = "bundles/s"


def ask(engine: list[str], *words: str) -> dict[str, float]:
    done = subprocess.run([*engine, *words], capture_output=True, text=True, check=False)
    if not done.stdout:
        sys.exit(f"{engine[-1]} {' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def engines() -> dict[str, list[str]]:
    ours = [sys.executable, str(HERE / "engine.py")]
    found = {STORE: ours, RIVAL: [str(RUST_ENGINE)]}
    if KERNEL is not None:
        found[PURE] = ["env", "QUIVER_PURE=1", *ours]
    if not RUST_ENGINE.exists():
        print("the Rust engine is not built (make rival-rust): it is left out", file=sys.stderr)
        del found[RIVAL]
    return found


def ingesting(engine: list[str], mode: str, rows: int, bundles: int, word: str = "bench") -> Run:
    def run(directory: Path) -> dict[str, float]:
        found = ask(engine, word, mode, str(rows), str(bundles), str(directory / "store"))
        delivered = 2 * bundles  # those that were not timed, too
        if (found["delivered"], found["rows"]) != (delivered, delivered * rows):
            sys.exit(f"{engine[-1]}: {found} where {delivered} bundles of {rows} rows were taken in")
        deliver = {
            "deliver": delivered / found["deliver_s"],
            "deliver µs": found["deliver_processor_s"] * 1e6 / delivered,
        }
        ingest = {"ingest": bundles / found["total_s"], "ingest µs": found["total_processor_s"] * 1e6 / bundles}
        return {"bench": ingest | deliver, "runs": deliver, "received": ingest}[word]

    return run


def reopening(engine: list[str], rows: int, bundles: int) -> Run:
    def run(directory: Path) -> dict[str, float]:
        ask(engine, "fill", str(rows), str(bundles), str(directory / "store"))
        found = ask(engine, "reopen", str(directory / "store"))
        if found["delivered"] != bundles:
            sys.exit(f"{engine[-1]}: {found} after {bundles} bundles were logged")
        return {
            "replay": bundles / found["open_s"],
            "replay µs": found["open_processor_s"] * 1e6 / bundles,
            "finalize": found["segment_bytes"] / 1e6 / found["finalize_s"],
            "finalize µs": found["finalize_processor_s"] * 1e6 / bundles,
        }

    return run


def lines_of(shown: Shown, found: dict[str, Result], processor: dict[str, Result]) -> Iterator[str]:
    for name, result in found.items():
        if not result.rates:  # it does not do this
            continue
        median, low, high = ratios(result, found.get(RIVAL, result))
        yield (
            f"| {shown.what} | {shown.rows:,} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | "
            f"{result.median:,.0f} {shown.unit} | {processor[name].median:,.1f} | {noise(result):.0%} |"
        )


def scenarios(
    known: dict[str, list[str]], share: int, chosen: list[int], parts: list[str]
) -> Iterator[tuple[dict[str, Run], list[Shown]]]:
    for mode, words in ((mode, words) for mode, words in MODES.items() if mode in parts):
        for rows in chosen:
            bundles = BUNDLES[mode][rows] // share
            runs = {name: ingesting(engine, mode, rows, bundles) for name, engine in known.items()}
            # The Rust engine has no runs. A turn of its own: the first reader pays for the checksums.
            runs[RUNS] = ingesting(known[STORE], mode, rows, bundles, "runs")
            if PURE in known:
                runs[PURE_RUNS] = ingesting(known[PURE], mode, rows, bundles, "runs")
            if mode == "segment_only" and rows == RECEIVED_ROWS:
                runs[RECEIVED] = ingesting(known[STORE], mode, rows, bundles, "received")
                if PURE in known:
                    runs[PURE_RECEIVED] = ingesting(known[PURE], mode, rows, bundles, "received")
            yield runs, [Shown("ingest", words, rows), Shown("deliver", f"deliver and ack, {words}", rows)]
    if REPLAY not in parts:
        return
    for rows in chosen:
        runs = {name: reopening(engine, rows, REPLAYS[rows] // share) for name, engine in known.items()}
        yield runs, [Shown("replay", "replay", rows), Shown("finalize", "seal one segment", rows, "MB/s")]
    runs = {name: reopening(engine, 100, REOPENED // share) for name, engine in known.items()}
    yield runs, [Shown("replay", f"reopen, {REOPENED:,} entries", 100)]


def main() -> None:
    parser = BenchParser(__doc__)
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--parts", nargs="*", choices=[*MODES, REPLAY], default=[*MODES, REPLAY])
    options = parser.options()
    report = Report(
        "engines",
        f"Measured by `bench/engines.py` ({machine()}; {options.rounds} rounds). A ratio is the rate over the Rust "
        "engine's in the same round. Processor time is that of all threads, in µs per bundle.",
        "what", "rows", "engine", "ratio to the Rust engine", "lowest to highest", "rate (median)", "processor µs",
        "own swing",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-engines-", dir=Path.cwd()) as scratch:
        for runs, figures in scenarios(engines(), options.share, options.rows, options.parts):
            found = run_rounds_of_several(runs, rounds=options.rounds, scratch=Path(scratch))
            for shown in figures:
                results = found[shown.key]
                report.add(lines_of(shown, results, found[f"{shown.key} µs"]))
                ours, pure = (RUNS, PURE_RUNS) if shown.key == "deliver" else (STORE, PURE)
                if RIVAL in results:
                    what = f"{shown.what}, {shown.rows:,} rows"
                    report.compare(what, results[ours], results[RIVAL], shown.unit, pure=results.get(pure))
                    if RECEIVED in results and results[RECEIVED].rates:
                        pure_received = results.get(PURE_RECEIVED)
                        report.compare(
                            f"{what}, received", results[RECEIVED], results[RIVAL], shown.unit, pure=pure_received
                        )
    report.finish(options.write)


if __name__ == "__main__":
    main()
