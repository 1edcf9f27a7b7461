"""
The tutorials, followed literally: files are written, commands run in one shell, and their output is compared.

In a page, a block with a `title` is a file. A `console` block has commands after `$ `, and below each the lines that it
prints, in this order; `…` is any text. Other lines may be in between: background processes print to the same terminal.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ports import free_ports
from quiver.clock import SYSTEM_CLOCK

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_SPARK = {"spark.md", "lake-table.md"}
PORTS = ("4317", "4318", "4321", "9464", "14317", "8333")
TIMEOUT_S = 120.0

PAGES = [
    pytest.param(page, marks=[pytest.mark.slow, pytest.mark.spark] if page in NEEDS_SPARK else [], id=page)
    for page in sorted(path.name for path in FOLDER.glob("*.md") if path.name != "README.md")
]


class Shell:
    """One shell, with its background processes."""

    def __init__(self, directory: Path) -> None:
        scripts = str(Path(sys.executable).parent)
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        self._send("set -m")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")

    def run(self, command: str, expected: list[str]) -> None:
        """Run *command*; wait until it has ended, or in the background, until it has printed what is expected."""
        is_background = command.rstrip().endswith("&")
        self._send(command if is_background else f"{command}\necho '::end' $?")
        printed: list[str] = []
        wanted = [pattern_of(line) for line in expected if line.strip() not in {"", "…"}]
        deadline = SYSTEM_CLOCK.monotonic() + TIMEOUT_S
        status = None
        while (wanted and is_background) or (status is None and not is_background):
            try:
                line = self.lines.get(timeout=max(0.0, deadline - SYSTEM_CLOCK.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"$ {command}\nnot printed: {expected}\nprinted:\n" + "\n".join(printed)
            if line.startswith("::end "):
                status = line.split()[1]
                break
            printed.append(line)
            if wanted and wanted[0].fullmatch(" ".join(line.split())):
                del wanted[0]
        shown = "\n".join(printed)
        assert not wanted, f"$ {command}\nnot printed: {wanted[0].pattern}\nprinted:\n{shown}"
        assert status in {None, "0"} or "kill -9" in command or "--crash" in command, f"$ {command}: {status}\n{shown}"

    def close(self) -> None:
        """Stop the background processes, and the shell."""
        self._send("kill $(jobs -p) 2>/dev/null; wait; exit")
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def pattern_of(line: str) -> re.Pattern[str]:
    """Return the pattern of a printed line; `…` is any text, and the amount of white space does not count."""
    return re.compile(".*".join(map(re.escape, " ".join(line.split()).split("…"))))


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Return each command of a `console` block, with the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.name != "posix", reason="the commands are for a POSIX shell")
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_can_be_followed(page: str, tmp_path: Path) -> None:
    """Every command succeeds and prints what the page shows. Ports are replaced by free ones."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = re.sub(rf"(?<![\d.]){port}(?!\d)", str(free), text)
    shell = Shell(tmp_path)
    ran = 0
    try:
        for language, info, content in BLOCK.findall(text):
            title = re.search(r'title="([^"]+)"', info)
            if title is not None:
                path = tmp_path / title[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
            elif language == "console":
                for command, expected in commands_of(content):
                    shell.run(command, expected)
                    ran += 1
    finally:
        shell.close()
    assert ran >= 4


def test_every_tutorial_is_listed() -> None:
    """In the index of the tutorials."""
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
