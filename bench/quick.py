"""
The most important comparisons with less work: a part of each benchmark, and one table at the end.

Each script does a share of its work in three rounds, so the noise is larger than on the page. The whole takes about
five minutes on two idle cores.

    .venv/bin/python bench/quick.py [SCRIPT …]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from report import SUMMARY, machine

HERE = Path(__file__).parent
PARTS = {
    "engines.py": ["--rows", "100", "--share", "4"],
    "ingest.py": ["--rows", "100", "--share", "5"],
    "decode.py": ["--share", "2"],
    "receive.py": ["--share", "8"],
    "topics.py": ["--only", "append", "read", "--share", "20"],
    "aof.py": ["--sizes", "128", "--share", "10"],
    "qwp.py": ["--share", "10"],
}
"""What each script is asked for, besides the number of rounds."""
ROUNDS = "3"


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-quick-", dir=Path.cwd()) as scratch:
        page = Path(scratch) / "page.md"
        sections = "".join(
            f"# {Path(name).stem}\n<!-- {Path(name).stem} -->\n<!-- end {Path(name).stem} -->\n" for name in chosen
        )
        page.write_text(f"{SUMMARY[0]}\n{SUMMARY[1]}\n{sections}")
        for script in chosen:
            print(f"… {script}", file=sys.stderr, flush=True)
            command = [sys.executable, HERE / script, "--rounds", ROUNDS, *PARTS[script], "--write", page]
            subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
        summary = page.read_text().split(SUMMARY[0])[1].split(SUMMARY[1])[0]
    print(summary.strip())
    print(f"\n{machine()}; {ROUNDS} rounds; {perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
