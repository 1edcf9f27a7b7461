"""The section `disk` of a pipeline file: one cap on the disk space of all buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver.clock import SYSTEM_CLOCK
from quiver.pipeline.config.formatting import size_words
from quiver.primitives.disk.file_system import directory_name
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.limits.disk_budget import DiskBudget, DiskShare, working_bytes

if TYPE_CHECKING:
    from quiver.pipeline.model import Pipeline

__all__ = ["budget_of", "buffer_share", "dead_letter_share", "too_small"]


def too_small(pipeline: Pipeline, cores: int = 1) -> str | None:
    """Return why the buffers of *pipeline* cannot work under its disk cap; None if they can, or without a cap."""
    if pipeline.disk is None:
        return None
    needed = sum(_reserved(pipeline, cores).values())
    if pipeline.disk.size_cap >= needed:
        return None
    return (
        f"disk.size_cap must hold wal.rotation_target and two segments of each buffer and core: "
        f"{size_words(needed)}; it is {size_words(pipeline.disk.size_cap)}"
    )


def budget_of(pipeline: Pipeline, cores: int | None) -> DiskBudget | None:
    """Return the disk budget of *pipeline* for this process; None without a cap."""
    if pipeline.disk is None:
        return None
    return DiskBudget(REAL_FILES, pipeline.disk.size_cap, _reserved(pipeline, cores or 1), clock=SYSTEM_CLOCK)


def buffer_share(budget: DiskBudget | None, path: str) -> DiskShare | None:
    """Return the share of *budget* for the buffer at *path*; None without a budget."""
    return None if budget is None else budget.buffer(directory_name(path))


def dead_letter_share(budget: DiskBudget | None, path: str) -> DiskShare | None:
    """Return the share of *budget* for the dead letters of the buffer at *path*; None without a budget."""
    return None if budget is None else budget.dead_letters(directory_name(path))


def _reserved(pipeline: Pipeline, cores: int) -> dict[str, int]:
    return {
        directory_name(buffer.config.path): working_bytes(buffer.config.settings, cores)
        for buffer in pipeline.buffers
        if buffer.kind != "memory"
    }
