"""
Which bundles of one segment may go out: a set of small numbers that is cut into words. Pure.

One number of 65,536 bits would do, but each step would copy all of it.
"""

from __future__ import annotations

__all__ = ["FreeBits"]

_WORD_BITS = 512
_WORD_BYTES = _WORD_BITS // 8


class FreeBits:
    """
    A set of indices. Not thread-safe.

    Attributes:
        count: how many are in it.
    """

    __slots__ = ("_high", "_low", "_words", "count")

    def __init__(self, bits: int) -> None:
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        self.count = bits.bit_count()
        self._words = [
            int.from_bytes(data[at : at + _WORD_BYTES], "little") for at in range(0, len(data), _WORD_BYTES)
        ] or [0]
        # No word below the one or above the other has a bit.
        self._low = 0
        self._high = len(self._words) - 1

    def add(self, index: int) -> None:
        """Put *index* in."""
        at, bit = divmod(index, _WORD_BITS)
        words = self._words
        if at >= len(words):
            words.extend([0] * (at + 1 - len(words)))
        mask = 1 << bit
        if not words[at] & mask:
            words[at] |= mask
            self.count += 1
            self._low = min(self._low, at)
            self._high = max(self._high, at)

    def discard(self, index: int) -> None:
        """Take *index* out, if it is in."""
        at, bit = divmod(index, _WORD_BITS)
        if at < len(self._words) and self._words[at] >> bit & 1:
            self._words[at] ^= 1 << bit
            self.count -= 1

    def pop_first(self) -> int:
        """Take out and return the lowest. There must be one."""
        words, at = self._words, self._low
        while not (word := words[at]):
            at += 1
        self._low = at
        lowest = word & -word
        words[at] = word ^ lowest
        self.count -= 1
        return at * _WORD_BITS + lowest.bit_length() - 1

    def pop_some(self, count: int) -> list[int]:
        """Take out and return the *count* lowest, ascending; fewer when there are fewer."""
        words, at = self._words, self._low
        wanted = min(count, self.count)
        found: list[int] = []
        while len(found) < wanted:
            word = words[at]
            if not word:
                at += 1
                continue
            base = at * _WORD_BITS - 1
            while word and len(found) < wanted:
                lowest = word & -word
                word ^= lowest
                found.append(base + lowest.bit_length())
            words[at] = word
        self._low = at
        self.count -= wanted
        return found

    def pop_last(self) -> int:
        """Take out and return the highest. There must be one."""
        words, at = self._words, self._high
        while not words[at]:
            at -= 1
        self._high = at
        bit = words[at].bit_length() - 1
        words[at] ^= 1 << bit
        self.count -= 1
        return at * _WORD_BITS + bit
