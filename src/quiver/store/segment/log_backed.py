"""
Messages that stay in the log until their segment is written.

A copy of a large message costs a good part of its write, and memory until the segment is sealed. The log has the
same bytes, most likely still in the page cache, so a large message is read back when its segment is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from quiver.store.segment.pieced import PiecedMessage

__all__ = ["LogBackedMessage", "Reread", "any_elsewhere", "loaded", "prefix_of"]


class Reread(Protocol):
    """Reads log entries again."""

    def entry(self, position: int, nbytes: int) -> memoryview:
        """Return the entry at stream *position*, which has *nbytes*, its checksum verified."""
        ...


@dataclass(slots=True, eq=False)
class LogBackedMessage:
    """
    The place of a message in the log.

    Attributes:
        log: reads its entry.
        position: stream position of the entry.
        entry_bytes: length of the entry.
        start: where in the entry the message starts.
        nbytes: length of the message.
        prefix: its first 8 bytes: the marker, and the length of the metadata.
    """

    log: Reread
    position: int
    entry_bytes: int
    start: int
    nbytes: int
    prefix: bytes

    def __len__(self) -> int:
        return self.nbytes

    def load(self) -> memoryview:
        """
        Return the message.

        Raises:
            OSError: the log cannot be read, or is not what was written.
        """
        return self.log.entry(self.position, self.entry_bytes)[self.start : self.start + self.nbytes]


_ELSEWHERE = frozenset({LogBackedMessage, PiecedMessage})


def any_elsewhere(messages: Iterable[Any]) -> bool:
    """Return whether one of *messages* is not in memory as one piece of bytes."""
    return not _ELSEWHERE.isdisjoint(map(type, messages))


def loaded(message: Any) -> Any:
    """Return the bytes of *message*, wherever they are."""
    return message.load() if type(message) is LogBackedMessage else message


def prefix_of(message: Any) -> Any:
    """Return at least the first 8 bytes of *message*, without reading the log."""
    return message.prefix if type(message) in _ELSEWHERE else message
