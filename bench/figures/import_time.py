"""
The time to import this library, over that of pyarrow, and the time until a program can open a store.

Each row is the median of new processes, minus that of `import pyarrow` alone. `import quiver` loads no other module of
the library: its names are loaded at first use.

    PYTHONPATH=bench .venv/bin/python bench/figures/import_time.py [--processes N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from time import perf_counter

_STATEMENTS = {
    "import quiver": "import pyarrow, quiver",
    "quiver.open": "import pyarrow, quiver; quiver.open",
    "quiver.read": "import pyarrow, quiver; quiver.read",
    "quiver --version": "import pyarrow, quiver.cli.main; quiver.cli.main.build_app()",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=15)
    processes = parser.parse_args().processes
    base_s = _median_s("import pyarrow", processes)
    print(f"import pyarrow: {base_s * 1e3:.0f} ms, with the start of Python")
    for name, statement in _STATEMENTS.items():
        print(f"{name}: {(_median_s(statement, processes) - base_s) * 1e3:.0f} ms more")


def _median_s(statement: str, processes: int) -> float:
    times = []
    for _ in range(processes):
        started = perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
