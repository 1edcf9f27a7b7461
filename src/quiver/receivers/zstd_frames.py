"""
Bounded decompression of Zstandard data (RFC 8878) from clients.

Arrow's codec decompresses the data. The limits that it lacks are checked in the frame headers first: the window, which
is memory that a frame of twenty bytes can request, and the total size of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from quiver.primitives.scan import Damage

__all__ = ["WINDOW_BYTES_MAX", "ZSTD_MAGIC", "FramesBound", "bound_frames", "inflate_zstd"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""The window that RFC 8878 requires of every decoder, and to which RFC 9659 limits HTTP senders."""

_PIECES_MAX = 100_000
"""The maximum number of blocks and frames in a request: empty ones take time to process and contain nothing."""

_SKIPPABLE = 0x184D2A50
_EARLY = "truncated zstd data"
_MANY = f"more than {_PIECES_MAX} frames and blocks"
_BLOCK_BYTES_MAX = 128 * 1024
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class FramesBound:
    """
    Upper bounds for decompressing a sequence of frames.

    Attributes:
        size_max: the maximum size of the result.
        window_max: the maximum additional memory of the decoder.
    """

    size_max: int
    window_max: int


def bound_frames(data: bytes) -> FramesBound | Damage:
    """
    Scan the frames of *data* without decompressing them. Return the upper bounds, or the damage.

    A frame that needs a window above `WINDOW_BYTES_MAX` or a dictionary counts as damage: neither was agreed on.
    """
    walk = _Walk(data)
    while walk.at < len(data):
        wrong = walk.frame()
        if wrong is not None:
            return Damage(min(walk.at, len(data)), wrong)
    if walk.at > len(data):
        return Damage(len(data), _EARLY)
    return FramesBound(walk.size, walk.window)


class _Walk:
    """A scan of frames; each step returns None, or the damage at `at`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.size = 0
        self.window = 0
        self._pieces = 0

    def frame(self) -> str | None:
        data, at = self.data, self.at
        self._pieces += 1
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE and at + 8 <= len(data):
            self.at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            return _MANY if self._pieces > _PIECES_MAX else None
        if data[at : at + 4] != ZSTD_MAGIC:
            return "not zstd"
        self.at += 4
        if self.at >= len(data):
            return _EARLY
        descriptor = data[self.at]
        return self._header(descriptor) or self._blocks(checksum_bytes=4 if descriptor & 0x04 else 0)

    def _header(self, descriptor: int) -> str | None:
        single = bool(descriptor & 0x20)
        dictionary_bytes = _DICTIONARY_BYTES[descriptor & 3]
        size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(single)
        end = self.at + 1 + int(not single) + dictionary_bytes + size_bytes
        if end > len(self.data):
            return _EARLY
        if descriptor & 0x08:
            return "a reserved bit is set in a zstd frame"
        if any(self.data[end - size_bytes - dictionary_bytes : end - size_bytes]):
            return "a zstd frame needs a dictionary"
        if single:  # the window is as large as the content
            window = int.from_bytes(self.data[end - size_bytes : end], "little") + (256 if size_bytes == 2 else 0)
        else:
            exponent, mantissa = divmod(self.data[self.at + 1], 8)
            window = (1 << 10 + exponent) // 8 * (8 + mantissa)
            if window > WINDOW_BYTES_MAX:
                return f"a zstd frame needs a window of {window} bytes; the maximum is {WINDOW_BYTES_MAX}"
        self.window = max(self.window, window)
        self.at = end
        return None

    def _blocks(self, *, checksum_bytes: int) -> str | None:
        last = False
        while not last:
            if self.at + 3 > len(self.data):
                return _EARLY
            self._pieces += 1
            if self._pieces > _PIECES_MAX:
                return _MANY
            header = int.from_bytes(self.data[self.at : self.at + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            if kind == 3 or size > _BLOCK_BYTES_MAX:
                return "a zstd block has an unknown type or an invalid size"
            self.at += 3 + (1 if kind == 1 else size)
            self.size += _BLOCK_BYTES_MAX if kind == 2 else size
        self.at += checksum_bytes
        return None


def inflate_zstd(data: bytes, *, size_max: int) -> bytes | Damage | None:
    """
    Return the zstd frames of *data*, decompressed; None if they exceed *size_max* bytes.

    At most *size_max* + 1 bytes and a window are held in memory, regardless of the declared size.
    """
    bound = bound_frames(data)
    if isinstance(bound, Damage):
        return bound
    if bound.window_max > max(size_max, WINDOW_BYTES_MAX):
        return None  # the declared size is larger
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            # One byte more than possible, because the checksum is only verified at the end. Not `read`: if that
            # fails, pyarrow never frees the memory that it allocated.
            inflated: bytes = stream.read_buffer(min(bound.size_max, size_max) + 1).to_pybytes()
    except (OSError, pa.ArrowException) as error:
        return Damage(0, f"not zstd: {error}")
    return inflated if len(inflated) <= size_max else None
