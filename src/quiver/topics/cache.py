"""The newest messages of a topic in memory, bounded in number and in bytes."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

__all__ = ["MessageCache"]

_BLOCKS = 16
"""A full cache has about this many blocks; messages are evicted a block at a time."""

_Block = tuple[int, list[bytes]]
_first_of = itemgetter(0)


class MessageCache:
    """
    Encoded messages by offset. One writer at a time, under the log's lock; readers need no lock.

    Messages are stored in blocks of consecutive offsets. Only the newest block grows. The tuple of blocks is replaced
    in one assignment, so a reader sees each message at its place or not at all.

    Args:
        count_max: the maximum number of messages.
        bytes_max: the maximum of their bytes; the newest message stays however large it is.
        first_offset: of the first message to be added.
    """

    __slots__ = (
        "_block_bytes_max",
        "_block_count_max",
        "_blocks",
        "_bytes_max",
        "_count_max",
        "_newest",
        "_newest_bytes",
        "_older_bytes",
        "_older_count",
        "_roll_bytes",
    )

    def __init__(self, *, count_max: int, bytes_max: int, first_offset: int) -> None:
        self._block_count_max = max(1, count_max // _BLOCKS)
        self._block_bytes_max = max(1, bytes_max // _BLOCKS)
        # Reserve space for a full newest block from its beginning.
        self._count_max = count_max - self._block_count_max + 1
        self._bytes_max = bytes_max - self._block_bytes_max
        self._roll_bytes = self._block_bytes_max
        self._newest: list[bytes] = []
        self._newest_bytes = self._older_bytes = self._older_count = 0
        self._blocks: tuple[_Block, ...] = ((first_offset, self._newest),)

    def __len__(self) -> int:
        return sum(len(bodies) for _, bodies in self._blocks)

    @property
    def nbytes(self) -> int:
        """The bytes of all cached messages."""
        return self._older_bytes + self._newest_bytes

    @property
    def first_offset(self) -> int:
        """The oldest cached offset; that of the next message when the cache is empty."""
        return self._blocks[0][0]

    def add(self, body: bytes) -> None:
        """Add the message of the next offset; evict the oldest messages beyond the limits."""
        newest = self._newest
        newest.append(body)
        self._newest_bytes += len(body)
        if self._newest_bytes >= self._roll_bytes or len(newest) >= self._block_count_max:
            self._begin_block(len(body))

    def _begin_block(self, last_bytes: int) -> None:
        *older, (first, bodies) = self._blocks
        sealed = [(first, bodies)]
        if last_bytes >= self._block_bytes_max and len(bodies) > 1:
            # A large message is a block by itself: small messages before it can be evicted without it.
            sealed = [(first, bodies[:-1]), (first + len(bodies) - 1, bodies[-1:])]
        older += sealed
        self._older_bytes += self._newest_bytes
        self._older_count += len(bodies)
        removed = 0
        while removed < len(older) - 1 and (self._older_count > self._count_max or self._older_bytes > self._bytes_max):
            self._older_count -= len(older[removed][1])
            self._older_bytes -= sum(map(len, older[removed][1]))
            removed += 1
        # A single message may exceed the limit: it is evicted with the next one.
        self._roll_bytes = self._block_bytes_max if self._older_bytes <= self._bytes_max else 0
        self._newest = []
        self._newest_bytes = 0
        self._blocks = (*older[removed:], (first + len(bodies), self._newest))

    def take(self, offset: int, *, count_max: int) -> list[bytes]:
        """Return at most *count_max* messages from *offset* on, without a gap; none if *offset* was evicted."""
        blocks = self._blocks
        at = bisect_right(blocks, offset, key=_first_of) - 1
        found: list[bytes] = []
        if at < 0:
            return found
        for first, bodies in blocks[at:]:
            start = offset + len(found) - first
            found += bodies[start : start + count_max - len(found)]
            if len(found) >= count_max:
                break
        return found
