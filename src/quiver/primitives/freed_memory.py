"""
Let processes keep the memory that they free, so that decoding the next batch reuses its pages.

Decoding allocates and frees blocks of megabytes for each batch. By default glibc and Arrow's allocator return them to
the operating system, and the next batch pays for new pages: half of the time of a view. Both read their settings from
the environment when a process starts, so the settings are for processes that Quiver starts. Other allocators ignore
them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KEEP_FREED_MEMORY", "keeping_freed_memory"]

KEEP_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # smaller blocks come from memory that is reused
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),  # as much free memory stays with the process
    "MIMALLOC_PURGE_DELAY": "-1",  # Arrow's allocator returns nothing
}
"""Variables of the environment. A process that has them occupies the memory of its largest batches until it ends."""


def keeping_freed_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """Return *environment* with the variables of `KEEP_FREED_MEMORY`, unless it sets one of them."""
    if environment.keys() & KEEP_FREED_MEMORY.keys():
        return dict(environment)
    return {**environment, **KEEP_FREED_MEMORY}
