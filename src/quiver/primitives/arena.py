"""
Memory for bytes with the same lifetime: allocated in sequence, released together, and reused.

Touching a fresh page costs the kernel more than filling it; in a virtual machine, several times more. So a log
that keeps its written bytes until a segment is sealed allocates them from large blocks that were touched before.
A block gets its pages when it is mapped, which takes the kernel a third less time than one page at a time; the first
one of a pool does not, because the store may never fill it. Blocks do not request huge pages: their cost varies too
much with the memory that is free.
"""

from __future__ import annotations

import mmap
import threading

__all__ = ["Arena", "BlockPool"]

BLOCK_BYTES = 8 * 1024 * 1024


_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)  # Linux


def _map(nbytes: int, flags: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


class BlockPool:
    """
    Blocks that arenas borrow. Thread-safe.

    Args:
        keep_bytes_max: returned blocks beyond this size are released to the system.
    """

    def __init__(self, *, keep_bytes_max: int) -> None:
        self._keep_blocks_max = max(1, keep_bytes_max // BLOCK_BYTES)
        self._lock = threading.Lock()
        self._free: list[memoryview] = []
        self._flags = 0

    def borrow(self, nbytes: int) -> memoryview:
        """Return a writable block of at least *nbytes*; its contents are arbitrary."""
        if nbytes <= BLOCK_BYTES:
            with self._lock:
                if self._free:
                    return self._free.pop()
            nbytes = BLOCK_BYTES
        flags, self._flags = self._flags, _POPULATE
        # Signed bytes, as pyarrow's buffers are: one can be assigned to the other without a cast.
        return memoryview(_map(nbytes, flags)).cast("b")

    def give_back(self, blocks: list[memoryview]) -> None:
        """Take *blocks* back. They, and views of them, must not be used any more."""
        with self._lock:
            for block in blocks:
                if len(block) == BLOCK_BYTES and len(self._free) < self._keep_blocks_max:
                    self._free.append(block)


class Arena:
    """Allocates consecutive regions. Not thread-safe."""

    __slots__ = ("_block", "_blocks", "_end", "_pool", "_used")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: list[memoryview] = []
        self._block = memoryview(b"")
        self._used = 0
        self._end = 0

    def take(self, nbytes: int) -> memoryview:
        """Return a writable region of exactly *nbytes* (signed), 8-byte aligned, valid until `release`."""
        start = self._used
        end = start + nbytes
        if end > self._end:
            self._block = self._pool.borrow(nbytes)
            self._blocks.append(self._block)
            self._end = len(self._block)
            start, end = 0, nbytes
        self._used = start + ((nbytes + 7) & ~7)
        return self._block[start:end]

    def untake(self, region: memoryview) -> None:
        """Return the region that was allocated last."""
        self._used -= (len(region) + 7) & ~7

    def release(self) -> None:
        """Return all memory to the pool. Regions allocated before must not be used any more."""
        blocks, self._blocks = self._blocks, []
        self._block = memoryview(b"")
        self._used = self._end = 0
        self._pool.give_back(blocks)
