"""Descriptions of files. A file is read only up to the maximum size of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quiver.primitives.disk.file_system import File
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.findings import Description, Problem, too_large_reason

__all__ = ["describe_file"]

_ENDS_BYTES = 4096
_SMALL_BYTES_MAX = 1 << 20
_LIST_BYTES_MAX = 1 << 30
_LOG_BYTES_MAX = 4 << 30

_LISTS = frozenset({
    "progress", "drop ledger", "retry set", "cold list", "snapshot list", "sink commit", "aof sink commit",
    "aof index", "aof manifest",
})  # fmt: skip
_LOGS = frozenset({
    "wal", "segment", "audit trail", "kept copy", "aof segment", "aof warm", "qwp segment", "qwp dead letters",
})  # fmt: skip


class _Describe(Protocol):
    def __call__(self, name: str, data: memoryview, *, rows_max: int) -> Description: ...


def describe_file(
    path: str, kind_of: Callable[[str, memoryview], str], describe: _Describe, *, rows_max: int
) -> Description:
    """
    Describe the file at *path*, without reading it if its kind is unknown or it is too large for its kind.

    Args:
        path: the path of the file.
        kind_of: returns the kind of a file from its name and the bytes at its start and end.
        describe: describes a file from its name and contents.
        rows_max: the maximum number of rows of each table.

    Raises:
        OSError: it cannot be read.
    """
    file = REAL_FILES.open_read(path)
    try:
        size = file.size()
        kind = kind_of(path, memoryview(_ends(file, size)))
        size_max = _size_max(kind)
        if kind == "unknown" or size > size_max:
            found = Description(path, kind, size)
            too_large = too_large_reason(size_max)
            found.problems.append(Problem(0, "a file of another program" if kind == "unknown" else too_large))
            return found
        data = file.pread(size_max, 0)
    finally:
        file.close()
    return describe(path, memoryview(data), rows_max=rows_max)


def _size_max(kind: str) -> int:
    if kind in _LOGS:
        return _LOG_BYTES_MAX
    return _LIST_BYTES_MAX if kind in _LISTS else _SMALL_BYTES_MAX


def _ends(file: File, size: int) -> bytes:
    if size <= 2 * _ENDS_BYTES:
        return file.pread(2 * _ENDS_BYTES, 0)
    return file.pread(_ENDS_BYTES, 0) + file.pread(_ENDS_BYTES, size - _ENDS_BYTES)
