"""
The newest messages of a topic in memory, bounded in number and in bytes.
"""

from __future__ import annotations

__all__ = ["MessageCache"]

_SPARE = 16
"""One part in so many is evicted beyond what must be."""


class MessageCache:
    """
    Encoded messages by offset. One writer at a time, under the log's lock; readers need no lock.

    Args:
        count_max: messages at most.
        bytes_max: their bytes at most; the newest one stays however large it is.
    """

    __slots__ = ("_bodies", "_bytes_max", "_count_max", "first_offset", "nbytes")

    def __init__(self, *, count_max: int, bytes_max: int, first_offset: int) -> None:
        self._bodies: dict[int, bytes] = {}
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.first_offset = first_offset
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, offset: int, body: bytes) -> None:
        """
        Take the message of the next offset; the oldest go while there are too many.
        """
        self._bodies[offset] = body
        self.nbytes += len(body)
        if len(self._bodies) > self._count_max or self.nbytes > self._bytes_max:
            self._evict(offset)

    def _evict(self, newest: int) -> None:
        # A few more than must go, so that not every append of a full cache comes here.
        bodies = self._bodies
        count = self._count_max - self._count_max // _SPARE
        bytes_max = self._bytes_max - self._bytes_max // _SPARE
        while (len(bodies) > count or self.nbytes > bytes_max) and self.first_offset < newest:
            # The bound first: a reader that finds nothing under an offset then knows that it went.
            self.first_offset += 1
            self.nbytes -= len(bodies.pop(self.first_offset - 1))

    def take(self, offset: int, *, count_max: int) -> list[bytes]:
        """
        Return the messages from *offset* on that are here without a gap, at most *count_max*; none when it went.
        """
        get = self._bodies.get
        found = []
        for at in range(offset, offset + count_max):
            body = get(at)
            if body is None:
                break
            found.append(body)
        return found
