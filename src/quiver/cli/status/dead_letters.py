"""
The dead letters of the status page: each request runs `quiver dead-letters` in a process of its own.

So the page has no second implementation, a replay through Spark leaves nothing in this process, and content that cannot
be decoded cannot stop it. A dead letter is dropped when its destination has confirmed it, so a process that is killed
at its time limit loses nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quiver.errors import TransientError, UsageError
from quiver.store.format.names import check_subscriber_id

__all__ = ["ROWS_MAX", "Action", "DeadLetterCommands"]

Action = Literal["list", "show", "replay", "drop"]

ROWS_MAX = 200
"""The page shows so many dead letters, and so many rows of each; the command shows all of them."""

BUNDLES_MAX = 1000
_TIMEOUT_S = 600.0
_WAIT_S = 20.0


@dataclass
class DeadLetterCommands:
    """
    Runs one command at a time on the dead letters of a store.

    Attributes:
        directory: of the store.
        pipeline: the pipeline file whose exporters replay; None: nothing can be replayed.
        assignments: ``name=value`` texts for its placeholders.
    """

    directory: str
    pipeline: Path | None = None
    assignments: Sequence[str] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def run(self, action: Action, exporter: str, bundles: Sequence[str] = ()) -> Any:
        """
        Run *action* for the dead letters *bundles* of *exporter*, or for all without *bundles*; return its JSON.

        Raises:
            UsageError: a name is invalid, or nothing can be replayed here.
            TransientError: another command runs, or this one failed; the message has the reason.
        """
        check_subscriber_id(exporter)
        for text in bundles:
            segment, _, index = text.partition(":")
            if not (text.isascii() and segment.isdecimal() and index.isdecimal()):
                raise UsageError(f"{text!r} does not name a bundle")
        if len(bundles) > BUNDLES_MAX:
            raise UsageError(f"name at most {BUNDLES_MAX} bundles at once")
        options = ["--json"]
        if action == "replay":
            if self.pipeline is None:
                raise UsageError("only the page of a pipeline can replay: start it with the pipeline file")
            options += ["--pipeline", str(self.pipeline)]
            options += [part for text in self.assignments for part in ("--set", text)]
        command = [sys.executable, "-m", "quiver", "dead-letters", action, *options, "--"]
        command += [self.directory, exporter, *bundles]
        if not self._lock.acquire(timeout=_WAIT_S):
            raise TransientError("another command on dead letters is running; try again when it has ended")
        try:
            return _shortened(_run(command))
        finally:
            self._lock.release()


def _run(command: Sequence[str]) -> Any:
    try:
        done = subprocess.run(  # noqa: S603 - our own command, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TransientError(f"not finished after {_TIMEOUT_S:.0f} s; what was not confirmed is kept") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()
        raise TransientError(last[-1] if last else f"the command failed with exit code {done.returncode}") from None


def _shortened(found: Any) -> Any:
    """Return at most `ROWS_MAX` dead letters, each with at most so many rows of each view."""
    if not isinstance(found, list):
        return found
    for one in found[:ROWS_MAX]:
        for view, rows in one.get("content", {}).items():
            if isinstance(rows, list):
                one["content"][view] = rows[:ROWS_MAX]
    return found[:ROWS_MAX]
