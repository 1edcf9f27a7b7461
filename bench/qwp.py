"""
The QWP sender beside the official client, both against the same sink in a process of its own.

A rate is rows per second from the first row to the last confirmation. `row()` sends dictionaries that exist already;
*table* sends one Arrow table or data frame. The official client's data frames never go through store and forward;
ours always do. With ``--other PYTHON`` another interpreter runs its official client, too (version 5, say).

    .venv/bin/python bench/qwp.py [--rounds N] [--quick] [--other PYTHON] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from report import BenchParser, Quick, Report, machine, noise, ratios, run_rounds

HERE = Path(__file__).resolve().parent
ROWS = {"row()": 300_000, "pandas": 3_000_000, "Arrow": 3_000_000}
AIMS = {"row()": 0.5, "pandas": 0.6, "Arrow": 0.8}
FLOOR = "official"


def some_rows(count: int) -> list[tuple[dict[str, str], dict[str, Any], int]]:
    """Two symbols, six columns and a time, about 62 bytes on the wire."""
    return [
        (
            {"sym": f"SYM_{number % 100}", "side": "buy" if number % 2 else "sell"},
            {
                "price": 100.5 + number % 1000,
                "size": number % 77,
                "bid": 0.25 * (number % 99),
                "ok": number % 3 == 0,
                "venue": f"v{number % 7}",
                "trade": number,
            },
            1_700_000_000_000_000_000 + number,
        )
        for number in range(count)
    ]


def some_table(count: int) -> Any:
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(count)
    symbols = pa.DictionaryArray.from_arrays(
        pa.array((numbers % 100).astype(np.int32)), pa.array([f"SYM_{number}" for number in range(100)])
    )
    return pa.table(
        {
            "sym": symbols,
            "price": 100.5 + numbers % 1000,
            "size": numbers % 77,
            "bid": 0.25 * (numbers % 99),
            "trade": numbers,
            "venue": pa.array(["v1", "v22", "v333"] * (count // 3 + 1)).slice(0, count),
            "ts": pa.array(1_700_000_000_000_000_000 + numbers, pa.timestamp("ns")),
        }
    )


@contextmanager
def sink() -> Iterator[str]:
    """Start the far side; yield its address."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "qwp_sink.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def ours(case: str, source: Any, address: str, directory: Path | None) -> float:
    from quiver.qwp import Sender

    disk = f"sf_dir={directory};" if directory else ""
    with Sender.from_conf(
        f"ws::addr={address};{disk}sf_max_total_bytes=1G;close_flush_timeout_millis=60000;"
    ) as sender:
        started = perf_counter()
        if case == "row()":
            row = sender.row
            for symbols, columns, at in source:
                row("trades", symbols=symbols, columns=columns, at=at)
        else:
            sender.table("trades", source, at="ts")
        fsn = sender.flush()
        if not sender.wait_until_confirmed(fsn, 120):
            raise SystemExit("the sink did not confirm everything")
        return perf_counter() - started


def official(case: str, source: Any, address: str, directory: Path | None) -> float:
    try:
        from questdb import Sender, TimestampNanos
    except ImportError:  # version 5
        from questdb.ingress import Sender, TimestampNanos

    disk = f"sf_dir={directory};" if directory else ""
    rows = [(symbols, columns, TimestampNanos(at)) for symbols, columns, at in source] if case == "row()" else []
    started = perf_counter()
    # Its close waits for the last confirmation, and nothing else of it does in every version.
    with Sender.from_conf(f"ws::addr={address};{disk}close_flush_timeout_millis=60000;") as sender:
        if case == "row()":
            row = sender.row
            for symbols, columns, at in rows:
                row("trades", symbols=symbols, columns=columns, at=at)
        else:
            sender.dataframe(source, table_name="trades", at="ts")
    return perf_counter() - started


def source_of(case: str, rows: int) -> Any:
    if case == "row()":
        return some_rows(rows)
    table = some_table(rows)
    return table if case == "Arrow" else table.to_pandas()


def other(python: str, case: str, rows: int, address: str, directory: Path | None) -> float:
    """Let another interpreter run its official client; it prints its seconds."""
    command = [python, str(Path(__file__).resolve()), "--run-official", case, str(rows), address, str(directory or "")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(done.stdout.split()[-1])


def contenders(case: str, rows: int, address: str, python: str | None) -> dict[str, Callable[[Path], float]]:
    source = source_of(case, rows)
    found: dict[str, Callable[[Path], float]] = {
        "Quiver, on disk": lambda directory: rows / ours(case, source, address, directory / "sf"),
        "Quiver, in memory": lambda _: rows / ours(case, source, address, None),
        FLOOR: lambda _: rows / official(case, source, address, None),
    }
    if case == "row()":

        def on_disk(directory: Path) -> float:
            return rows / official(case, source, address, directory)

        found["official, on disk"] = on_disk
    if python is not None:
        found["other official"] = lambda _: rows / other(python, case, rows, address, None)
    return found


def main() -> None:
    parser = BenchParser(__doc__, quick=Quick(share=100))
    parser.add_argument("--cases", nargs="*", default=list(ROWS))
    parser.add_argument("--other", help="an interpreter with another official client")
    parser.add_argument(
        "--run-official", nargs=4, metavar=("CASE", "ROWS", "ADDRESS", "DIRECTORY"), help="used by --other"
    )
    options = parser.options()
    if options.run_official:
        case, rows, address, directory = options.run_official
        print(official(case, source_of(case, int(rows)), address, Path(directory) if directory else None))
        return
    report = Report(
        "qwp",
        f"Measured by `bench/qwp.py` ({machine()}; {options.rounds} rounds). A ratio is rows per second over the "
        "official client's, in memory, in the same round; until the last row is confirmed.",
        "case", "contender", "ratio to the official client", "lowest to highest", "rows/s (median)", "own swing", "aim",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-qwp-", dir=Path.cwd()) as scratch, sink() as address:
        for case in options.cases:
            turns = contenders(case, ROWS[case] // options.share, address, options.other)
            results = run_rounds(turns, rounds=options.rounds, scratch=Path(scratch))
            for name, result in results.items():
                median, low, high = ratios(result, results[FLOOR])
                aim = f"{AIMS[case]:.2f}" if name.startswith("Quiver") else ""
                row = (
                    f"| {case} | {name} | {median:.2f} | {low:.2f} to {high:.2f} | {result.median:,.0f} | "
                    f"{noise(result):.0%} | {aim} |"
                )
                report.add([row])
            report.compare(f"{case}, in memory", results["Quiver, in memory"], results[FLOOR], "rows/s")
            on_disk = results.get("official, on disk", results[FLOOR])
            report.compare(f"{case}, on disk", results["Quiver, on disk"], on_disk, "rows/s")
    report.finish(options.write)


if __name__ == "__main__":
    main()
