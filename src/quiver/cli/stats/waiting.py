"""The pending retries of an exporter, from its retry sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.cli.console.output import human_age
from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.retry_set import RetryEntry
from quiver.store.subscribers.retry_set import load_retry_set

__all__ = ["Waiting", "waiting_of", "when"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """
    The pending retries of an exporter.

    Attributes:
        retrying: the number of bundles.
        attempts: the maximum of their attempts.
        next_retry_s: the seconds until the first one is due; None if there are none, or if the exporter halted.
        halted: whether the exporter halted at one of them, until it is restarted.
        last_failure: the reason of the last failure, or of the halt.
        retry_problem: why a retry set cannot be read, and what to do.
    """

    retrying: int = 0
    attempts: int = 0
    next_retry_s: float | None = None
    halted: bool = False
    last_failure: str | None = None
    retry_problem: str | None = None


def waiting_of(fs: FileSystem, roots: Sequence[str], subscriber: str, *, now_ns: int) -> Waiting:
    """
    Return the pending retries of *subscriber* in all stores *roots*. Takes no lock.

    Raises:
        OSError: a file cannot be read.
    """
    entries: list[RetryEntry] = []
    problems: list[str] = []
    for root in roots:
        try:
            entries += load_retry_set(fs, root, subscriber)
        except CorruptionError as damage:
            problems.append(f"{damage}; quiver repair or its exporter repairs it")
    problem = "; ".join(problems) or None
    if not entries:
        return Waiting(retry_problem=problem)
    due = min(entries, key=lambda entry: (not entry.is_halted, entry.next_try_at_ns))
    return Waiting(
        retrying=len(entries),
        attempts=max(entry.attempts for entry in entries),
        next_retry_s=None if due.is_halted else max(0.0, (due.next_try_at_ns - now_ns) / 1e9),
        halted=due.is_halted,
        last_failure=due.reason,
        retry_problem=problem,
    )


def when(seconds: float | None, *, halted: bool = False) -> str | None:
    """Return when a retry is due, human-readable; None if never."""
    if halted:
        return "halted"
    return None if seconds is None else f"in {human_age(seconds)}" if seconds else "now"
