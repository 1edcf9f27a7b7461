"""
The table of the kernel's functions and their twins.

A new function of the kernel needs one line in `TWINS`. `test_twins.py` then compares it with its twin for all inputs of
`twin_inputs.py`, which are plain bytes.
"""

import functools
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from quiver.aof.format import record
from quiver.aof.format.record import RecordScan
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.bundle import _FieldsInPython
from quiver.otap.any_values import (
    KINDS,
    key_values_in_kernel,
    key_values_in_python,
    values_in_kernel,
    values_in_python,
)
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.request_nesting import NESTINGS, nested_items_in_python
from quiver.primitives import checksum
from quiver.qwp.row_checks import row_check_in_python
from quiver.qwp.tables import objects_in_kernel, objects_in_python
from quiver.store.encode import copy_message_in_python
from quiver.store.entries import ENTRY_OVERHEAD, write_entry_in_python
from quiver.store.segment.accumulator import EncodedSlot, StreamSchema
from quiver.store.segment.ipc_file import END_OF_STREAM

EMPTY = pa.schema([])


@dataclass(frozen=True)
class Twin:
    """
    A function of the kernel and its twin.

    Attributes:
        python: the twin, which is the reference.
        call: calls one of the two with arguments made from any bytes, and returns all that it did, as a value.
        compiled: what `call` needs instead of the kernel's function, for a twin with another signature.
    """

    python: Callable[..., Any]
    call: Callable[[Callable[..., Any], bytes], object] = lambda function, data: function(data)
    compiled: Callable[..., Any] | None = None


def continued(function, data: bytes) -> object:
    """Checksums of the bytes, at an odd address, and continued from another."""
    view = memoryview(data)
    return function(data), function(view[1:], 1), function(view[: len(data) // 2], 0xFFFF_FFFF)


def scanned(step, data: bytes) -> object:
    """Scans from the start of the bytes, and from where the records of a segment start."""
    found = [RecordScan(start, start) for start in (0, HEADER_BYTES)]
    for scan in found:
        while step(scan, memoryview(data), len(data)):
            pass
    return found


@functools.cache
def scratch_file() -> int:
    """The descriptor of an empty file without a name."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def written(pwritev, data: bytes) -> object:
    """The bytes in three parts, in a file."""
    fd = scratch_file()
    os.ftruncate(fd, 0)
    first, second = len(data) // 3, len(data) // 2
    count = pwritev(fd, (data[:first], bytearray(data[first:second]), memoryview(data)[second:]), 7)
    return count, os.pread(fd, len(data) + 8, 0)


def laid_out(write_entry, data: bytes) -> object:
    """An entry with two slots, one of them with dictionaries, whose bytes are the data."""
    seed = zlib.crc32(data)
    third = len(data) // 3
    fingerprint, message = seed.to_bytes(4, "big") * 8, pa.py_buffer(data[:third])
    schemas = [
        StreamSchema(schema=EMPTY, fingerprint=fingerprint, schema_message=message, has_dictionaries=has_dictionaries)
        for has_dictionaries in (False, True)
    ]
    slots = [
        EncodedSlot(seed % 30, schemas[0], seed, data[third : 2 * third], seed >> 3),
        EncodedSlot(63, schemas[1], 1, data[2 * third :], len(data)),
    ]
    sizes = [slot.stream_schema.head.size + len(slot.message) for slot in slots]
    entry = memoryview(bytearray(ENTRY_OVERHEAD + sum(sizes) + len(END_OF_STREAM)))
    write_entry(entry, seed << 31, seed << 32 | seed, 1 << 63 | 1 << seed % 30, slots)
    return bytes(entry), [bytes(slot.message) for slot in slots]


def serialized(data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Values with the bytes as their content, and pairs of a key and such a value."""
    values = [
        AnyValue(string_value=data.decode("latin-1")),
        AnyValue(bytes_value=data),
        AnyValue(int_value=int.from_bytes(data[:8], "big", signed=True)),
        AnyValue(double_value=struct.unpack("d", data[-8:].ljust(8, b"?"))[0]),
        AnyValue(bool_value=bool(len(data) & 1)),
        AnyValue(),
    ]
    values[-1].array_value.values.extend(values[:2])
    pairs = [KeyValue(key=str(number), value=value) for number, value in enumerate(values)]
    return [value.SerializeToString() for value in values], [pair.SerializeToString() for pair in pairs]


def columns(read) -> object:
    """Return the columns of a decoder of values, or that it needs the fallback."""
    try:
        found = read()
    except FallbackNeededError:
        return "fallback"
    keys, values = found if isinstance(found, tuple) else (None, found)
    return keys, values.kinds.tolist(), [column(values, arm) for arm in KINDS]


def column(values, arm: str) -> object:
    try:
        array = values.field(arm)
    except FallbackNeededError:
        return "fallback"
    return array.view(pa.int64()) if array.type == pa.float64() else array


def split(key_values, data: bytes) -> object:
    """Pairs of which the bytes are the content, a pair, or the value of one."""
    _, pairs = serialized(data)
    as_value = b"\x0a\x01k\x12" + varint(len(data)) + data
    cases = pairs, [pairs[0], data, pairs[1]], [as_value, *pairs]
    return [columns(lambda case=case: key_values(pa.array(case))) for case in cases]


def gathered(values_of, data: bytes) -> object:
    """Values of which the bytes are the content or all of one."""
    values, _ = serialized(data)
    cases = values, [values[0], data, values[1]]
    return [columns(lambda case=case: values_of(pa.array(case), slice(None, -1), slice(1, None))) for case in cases]


def converted(objects, data: bytes) -> object:
    """Texts that consist of the bytes, with missing ones, and with other objects and surrogates."""
    texts = [part.decode("latin-1") for part in data.split(b"e")]
    mixed = [data.decode("utf-8", "surrogateescape"), *texts, None, float("nan")]
    cases = texts, [*texts, None, "é", float("nan"), ""], mixed, [*texts, len(data)], [None] * len(texts)
    return [array_of(objects, case) for case in cases]


def array_of(objects, values: list[object]) -> object:
    try:
        array = objects(np.array([*values, None], object)[:-1])
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        return type(error), str(error)
    array.validate(full=True)
    return array.type, array.to_pylist()


def walked(nested_items, data: bytes) -> object:
    """Requests that are the bytes, and whose records, behind each other, are the bytes or parts of them."""
    third = len(data) // 3
    record = b"\x09" + data[:8].ljust(8, b"\0") + b"\x12" + varint(len(data)) + data
    found = []
    for nesting in NESTINGS.values():
        whole = record
        for level in reversed(nesting.levels):
            whole = bytes([level[0] << 3 | 2]) + varint(len(whole)) + whole
        for messages in ((data,), (whole, whole[:-third] + data), (data[:third], data[third:], b"")):
            ends = np.cumsum([0, *map(len, messages)]).astype(np.int32)
            for fields in (bytes(nesting.times), b""):
                found.append(nested_items(b"".join(messages), ends.tobytes(), nesting.packed, fields))
    return found


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


def copied(copy_message, data: bytes) -> object:
    """A region in the middle of a memory, and the message there."""
    memory = bytearray(len(data) + 20)
    message = copy_message(memoryview(memory)[7 : 7 + len(data)], data)
    return bytes(memory), bytes(message), len(message)


def bundled(fields, data: bytes) -> object:
    """Bundles whose batches and times are the first bytes, until the times end."""
    bundles = fields.each_of_read(len(data), data[:100], data[1:100], None)
    return [[getattr(bundle, name) for name in _FieldsInPython.__slots__] for bundle in bundles]


def checked(row_check, data: bytes) -> object:
    """Rows with the bytes as texts and numbers, some with other names, types or numpy's types, for two limits."""
    number = int.from_bytes(data[:9], "big", signed=True)
    symbols = {"s": data.decode("utf-8", "surrogateescape")}
    columns = {"i": number, "t": data.decode("latin-1"), "f": 0.5, "n": np.int64(number >> 9)}
    names, types = ("s", *columns), (str, int, str, float, np.int64, int)
    check = row_check(1, names, types, 0b110010, 0b000101, 1 + len(data) % 256)
    cases: list[Any] = [(symbols, columns, number >> 8), (symbols, dict(reversed(columns.items())), 5)]
    cases += [(symbols, columns, None), ({}, columns, 5), (symbols, columns | {"f": number}, 5), (None, columns, 5)]
    cases += [(symbols, dict(zip("tifs", columns.values(), strict=True)), 5), ({b"s": "x"}, columns, 5)]
    rows: list[tuple[Any, ...]] = []
    return [check(*case, limit, rows) for case in cases for limit in (1 << 20, len(data))], rows


TWINS = {
    "BundleFields": Twin(_FieldsInPython, bundled),
    "copy_message": Twin(copy_message_in_python, copied),
    "crc32": Twin(zlib.crc32, continued),
    "crc32c": Twin(checksum._crc32c_without_kernel, continued),
    "crc64_nvme": Twin(checksum.crc64_nvme, continued),
    "gather_bytes": Twin(values_in_python, gathered, values_in_kernel),
    "gather_numbers": Twin(values_in_python, gathered, values_in_kernel),
    "nested_items": Twin(nested_items_in_python, walked),
    "pack_texts": Twin(objects_in_python, converted, objects_in_kernel),
    "pwritev": Twin(os.pwritev, written),
    "row_check": Twin(row_check_in_python, checked),
    "scan_records": Twin(record._scan_batch_in_python, scanned, record._scan_batch_in_kernel),
    "split_key_values": Twin(key_values_in_python, split, key_values_in_kernel),
    "write_entry": Twin(write_entry_in_python, laid_out),
}
