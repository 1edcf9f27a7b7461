"""A real process that is stopped with SIGSTOP, for minutes by its clock and for a moment by ours."""

from __future__ import annotations

import ast
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_SETUP = """
import mmap, struct, sys, time
from quiver.clock import SystemClock

class StretchedClock(SystemClock):
    def __init__(self, path):
        with open(path, "r+b") as file:
            self._added = mmap.mmap(file.fileno(), 8)

    def monotonic(self):
        return time.monotonic() + struct.unpack("d", self._added)[0]

    def now_ns(self):
        return time.time_ns() + round(struct.unpack("d", self._added)[0] * 1e9)

clock = StretchedClock(sys.argv[1])
"""
_LOOP = """
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""


class StoppedProcess:
    """
    Runs *program*, in which `clock` is the time, and then evaluates expressions.

    Args:
        directory: for the file that sets its clock.
        program: its first statements; `sys.argv[2]` is *argument*.
        argument: its argument.
    """

    def __init__(self, directory: Path, program: str, argument: object) -> None:
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(8))
        command = [sys.executable, "-c", _SETUP + program + _LOOP, str(self._clock), str(argument)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, expression: str) -> Any:
        """Return the value of *expression* in the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{expression}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "it ended"
        return ast.literal_eval(answer)

    def stop(self) -> None:
        """Return when the process is stopped."""
        os.kill(self._process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on_after(self, seconds: float) -> None:
        """Continue the stopped process; for it, *seconds* have passed."""
        self._clock.write_bytes(struct.pack("d", seconds))
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Terminate it, and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if self._process.wait(60):
            raise AssertionError(f"it ended with {self._process.returncode}")
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._process.kill()
            self._process.communicate()
