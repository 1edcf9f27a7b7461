"""
Checksums by their exact names; no caller may just use "crc".

============== ======================================== ==========================
name           polynomial                               check of ``b"123456789"``
============== ======================================== ==========================
`crc32`        IEEE 802.3, reflected (zlib, Ethernet)   ``cbf43926``
`crc32c`       Castagnoli, reflected                    ``e3069283``
`crc64_nvme`   CRC-64/NVME, reflected                   ``ae8b14860a799888``
`fold64to32`   high half xor low half of a 64-bit value ``a4f28c0e`` of the above
============== ======================================== ==========================

The compiled kernel has CRC-32C. The package `awscrt` has CRC-32C and CRC-64/NVME; it takes 12 MB, so it is in the extra
`aof`. Without them, Python computes the same values, at some MB per second.

All take any contiguous buffer and continue from *value*, so ``crc32(b, crc32(a)) == crc32(a + b)``.
"""

from __future__ import annotations

import functools
import importlib
import struct
import zlib
from collections.abc import Callable
from typing import Any

from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.kernel import KERNEL

__all__ = ["crc32", "crc32_combine", "crc32c", "crc64_nvme", "crc64_nvme_function", "fold64to32"]

_CRC32_POLYNOMIAL_REFLECTED = 0xEDB88320
_CRC32C_POLYNOMIAL_REFLECTED = 0x82F63B78
_CRC64_POLYNOMIAL_REFLECTED = 0x9A6C9329AC4BC9B5
_CRC64_MASK = 2**64 - 1
_CRC32C_IN_PYTHON_BYTES_MAX = 64 * 1024
"""So many bytes take 8 ms in Python. Loading the library takes 40 ms: too much for the progress of few subscribers."""


def _gf2_times(matrix: tuple[int, ...], vector: int) -> int:
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product


@functools.cache
def _shift_by_bytes(power: int) -> tuple[int, ...]:
    """Return the 32x32 matrix over GF(2) that appends ``2 ** power`` zero bytes to a CRC-32."""
    if power:
        half = _shift_by_bytes(power - 1)
        return tuple(_gf2_times(half, column) for column in half)
    matrix = (_CRC32_POLYNOMIAL_REFLECTED, *(1 << bit for bit in range(31)))  # one zero bit
    for _ in range(3):  # squared three times: eight zero bits
        matrix = tuple(_gf2_times(matrix, column) for column in matrix)
    return matrix


def _crc32_combine_in_python(a: int, b: int, len_b: int) -> int:
    power = 0
    while len_b:
        if len_b & 1:
            a = _gf2_times(_shift_by_bytes(power), a)
        len_b >>= 1
        power += 1
    return a ^ b


def _crc32_functions() -> tuple[Callable[..., int], Callable[[int, int, int], int]]:
    # ISA-L is about 13 times as fast as zlib; it has no wheel for every machine, and zlib gives the same values.
    try:
        isal_zlib: Any = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib.crc32, _crc32_combine_in_python
    return isal_zlib.crc32, isal_zlib.crc32_combine


crc32, crc32_combine = _crc32_functions()
"""
``crc32(data, value=0)`` is the CRC-32 (IEEE) of *data*, continued from *value*.

``crc32_combine(a, b, len_b)`` is the CRC-32 of two buffers joined, from their own CRCs *a* and *b*.
"""


_loaded: list[Any] = []


@functools.cache
def _aws() -> Any:
    """Return the module of `awscrt`, or None if it is not installed."""
    # At first use, not at import: loading takes 40 ms, and opening a store with few subscribers never needs it.
    try:
        _loaded.append(importlib.import_module("awscrt.checksums"))
    except ImportError:
        return None
    return _loaded[0]


@functools.cache
def _crc32c_table() -> tuple[int, ...]:
    values = list(range(256))
    for _ in range(8):
        values = [value >> 1 ^ _CRC32C_POLYNOMIAL_REFLECTED * (value & 1) for value in values]
    return tuple(values)


def _crc32c_in_python(data: Buffer, value: int) -> int:
    table = _crc32c_table()
    value ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


_in_python_bytes = [0]
"""The bytes whose CRC-32C was computed in Python so far."""


def _crc32c_without_kernel(data: Buffer, value: int = 0) -> int:
    if not _loaded:
        _in_python_bytes[0] += memoryview(data).nbytes
        if _in_python_bytes[0] <= _CRC32C_IN_PYTHON_BYTES_MAX or _aws() is None:
            return _crc32c_in_python(data, value)
    return _aws().crc32c(data, value)


crc32c: Callable[..., int] = _crc32c_without_kernel if KERNEL is None else KERNEL.crc32c
"""``crc32c(data, value=0)`` is the CRC-32C (Castagnoli) of *data*, continued from *value*."""


@functools.cache
def _crc64_tables() -> tuple[tuple[int, ...], ...]:
    """Return eight tables: the n-th has the CRC-64 of each byte with n zero bytes after it."""
    values = list(range(256))
    for _ in range(8):
        values = [value >> 1 ^ _CRC64_POLYNOMIAL_REFLECTED * (value & 1) for value in values]
    tables = [tuple(values)]
    for _ in range(7):
        tables.append(tuple(tables[0][value & 0xFF] ^ value >> 8 for value in tables[-1]))
    return tuple(tables)


def _crc64_in_python(data: Buffer, value: int = 0) -> int:
    a, b, c, d, e, f, g, h = reversed(_crc64_tables())
    view = memoryview(data).cast("B")
    whole = len(view) & ~7
    value ^= _CRC64_MASK
    for (word,) in struct.iter_unpack("<Q", view[:whole]):
        value ^= word
        value = (
            a[value & 0xFF]
            ^ b[value >> 8 & 0xFF]
            ^ c[value >> 16 & 0xFF]
            ^ d[value >> 24 & 0xFF]
            ^ e[value >> 32 & 0xFF]
            ^ f[value >> 40 & 0xFF]
            ^ g[value >> 48 & 0xFF]
            ^ h[value >> 56]
        )
    for byte in view[whole:]:
        value = h[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ _CRC64_MASK


def crc64_nvme(data: Buffer, value: int = 0) -> int:
    """Return the CRC-64/NVME of *data*, continued from *value*."""
    return crc64_nvme_function()(data, value)


@functools.cache
def crc64_nvme_function() -> Callable[..., int]:
    """Return `crc64_nvme` without its wrapper, for loops in which the wrapper takes most of the time."""
    aws = _aws()
    return _crc64_in_python if aws is None else aws.crc64nvme


def fold64to32(checksum: int) -> int:
    """Return the high 32 bits of *checksum* xor its low 32 bits."""
    return (checksum >> 32) ^ (checksum & 0xFFFFFFFF)
