"""
The digest of an upload, in the form that buckets use as the etag of an object.

S3 and most servers of its protocol return the MD5 of the bytes that they received. For a multipart upload it is the MD5
of the digests of all parts, followed by their number. An equal etag proves that every byte arrived, without reading the
object back. A different one proves nothing: with some encryption settings, and on Azure, an etag is no digest.
"""

from __future__ import annotations

import hashlib

from quiver.primitives.disk.file_system import Buffer

__all__ = ["UploadDigest"]


class UploadDigest:
    """
    Computes the etag of an upload from its bytes.

    Args:
        part_bytes: the size of the parts of a multipart upload; None for an upload in one request.
    """

    def __init__(self, part_bytes: int | None = None) -> None:
        self._part_bytes = part_bytes
        self._parts: list[bytes] = []
        self._part = _md5()
        self._left = part_bytes

    def add(self, data: Buffer) -> None:
        """Add the next bytes."""
        rest = memoryview(data).cast("B")
        while self._left is not None and len(rest) >= self._left:
            self._part.update(rest[: self._left])
            self._parts.append(self._part.digest())
            rest = rest[self._left :]
            self._part, self._left = _md5(), self._part_bytes
        self._part.update(rest)
        if self._left is not None:
            self._left -= len(rest)

    def etag(self) -> str:
        """Return the etag of all bytes that were added, with its quotation marks."""
        if self._part_bytes is None:
            return f'"{self._part.hexdigest()}"'
        is_begun = self._left != self._part_bytes
        parts = [*self._parts, self._part.digest()] if is_begun else self._parts
        return f'"{_md5(b"".join(parts)).hexdigest()}-{len(parts)}"'


def _md5(data: bytes = b"") -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
