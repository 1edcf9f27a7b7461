"""
Record batches as messages of Flight: the metadata and the body of each Arrow IPC message, with its dictionaries.

Incoming messages are checked before Arrow reads them: Arrow trusts the lengths in them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.bundle import batch_bytes, complete_batch
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.stream.ipc_messages import DICTIONARY, RECORD_BATCH, SCHEMA, parse_messages
from quiver.primitives.packing import padding
from quiver.primitives.scan import Damage
from quiver.receivers.flight.messages import Descriptor, FlightData, encode_flight_data

__all__ = ["BatchDecoder", "BatchEncoder", "BatchLimits", "Parts", "decode_ipc_stream", "slices_of"]

Parts = list[bytes | memoryview]
"""A message in parts, to be sent one after the other."""

_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
_PREFIX = struct.Struct("<II")
_CONTINUATION = 0xFFFFFFFF
_ALIGNMENT = 8
_END = _PREFIX.pack(_CONTINUATION, 0)
_MARK = _CONTINUATION.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """
    The limits of one stream of a client.

    Attributes:
        inflated_bytes_max: the decompressed size of a message.
        dictionaries_bytes_max: the size of all dictionaries of a stream.
    """

    inflated_bytes_max: int
    dictionaries_bytes_max: int


class _Feed:
    """A file with the messages that were put into it and not read."""

    closed = False

    def __init__(self) -> None:
        self._data = memoryview(b"")
        self._at = 0

    def put(self, data: bytes) -> None:
        self._data, self._at = memoryview(bytes(self._data[self._at :]) + data), 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else min(self._at + size, len(self._data))
        taken = bytes(self._data[self._at : end])
        self._at = end
        return taken

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class BatchDecoder:
    """
    Decodes the messages of one stream, each once and in order. Not thread-safe.

    Args:
        limits: the limits of the stream.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._feed = _Feed()
        self._reader: Any = None
        self._dictionaries: dict[int, int] = {}

    def take(self, message: FlightData) -> pa.RecordBatch | Damage | None:
        """
        Return the batch in *message*, fully validated; None for a schema or a dictionary.

        After `Damage`, nothing more can be decoded.
        """
        header = bytes(message.header)
        gap = padding(len(header), _ALIGNMENT)
        prefix = _PREFIX.pack(_CONTINUATION, len(header) + gap)
        data = b"".join((prefix, header, bytes(gap), message.body, bytes(padding(len(message.body), _ALIGNMENT))))
        try:
            return self._take(data)
        except ConversionError as refusal:
            return Damage(0, str(refusal))
        except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, StopIteration) as error:
            return Damage(0, f"Arrow refuses it: {str(error)[:300] or type(error).__name__}")

    def _take(self, data: bytes) -> pa.RecordBatch | None:
        found = parse_messages(data)
        if len(found) != 1:
            raise ConversionError(f"{len(found)} IPC messages in one message of Flight")
        one = found[0]
        if (one.kind == SCHEMA) != (self._reader is None):
            raise ConversionError("a stream is one schema, then dictionaries and batches")
        if one.bytes_inflated > self._limits.inflated_bytes_max:
            raise ConversionError(
                f"a message of {one.bytes_inflated} bytes decompressed; "
                f"the limit is {self._limits.inflated_bytes_max}: send smaller batches"
            )
        if one.kind == DICTIONARY:
            before = self._dictionaries.get(one.dictionary, 0) if one.is_delta else 0
            self._dictionaries[one.dictionary] = before + one.bytes_inflated
            if sum(self._dictionaries.values()) > self._limits.dictionaries_bytes_max:
                raise ConversionError(
                    f"the dictionaries of the stream have more than {self._limits.dictionaries_bytes_max} bytes: "
                    f"open another stream"
                )
        self._feed.put(data)
        if one.kind == SCHEMA:
            self._reader = pa.ipc.open_stream(self._feed, options=_READ_OPTIONS)
        if one.kind != RECORD_BATCH:
            return None
        return _validated(self._reader.read_next_batch())


def decode_ipc_stream(data: bytes, limits: BatchLimits) -> pa.RecordBatch | Damage:
    """Return the only batch of a complete Arrow IPC stream, fully validated."""
    try:
        found = parse_messages(data.removesuffix(_END))
        kinds = [one.kind for one in found]
        if kinds != [SCHEMA, *(DICTIONARY,) * (len(kinds) - 2), RECORD_BATCH]:
            return Damage(0, "not an Arrow IPC stream with one batch")
        inflated = sum(one.bytes_inflated for one in found)
        if inflated > limits.inflated_bytes_max:
            return Damage(0, f"{inflated} bytes decompressed; {limits.inflated_bytes_max} are allowed")
        return _validated(pa.ipc.open_stream(pa.py_buffer(data), options=_READ_OPTIONS).read_next_batch())
    except ConversionError as refusal:
        return Damage(0, str(refusal))
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, StopIteration) as error:
        return Damage(0, f"Arrow refuses it: {str(error)[:300] or type(error).__name__}")


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* with all offsets, after every value in it was checked."""
    batch.validate(full=True)
    return complete_batch(batch)


class _Sink:
    """A file that keeps what is written to it, without copying the buffers of a batch."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, data: Any) -> int:
        self.parts.append(data)
        return len(data)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return 0

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class BatchEncoder:
    """
    Encodes batches of one schema, in order, with dictionaries whenever they change. Not thread-safe.

    The parts of a message are views of the buffers of the batch.

    Args:
        schema: the schema of all batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._has_written = False

    def schema(self, descriptor: Descriptor | None = None) -> Parts:
        """Return the message with the schema, which is the first one of a stream."""
        header = memoryview(self._schema.serialize())[_PREFIX.size :]
        return encode_flight_data(header, (), descriptor=descriptor)

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> list[Parts]:
        """Return the messages with new dictionaries, and with *batch*, to which *metadata* is added."""
        self._writer.write_batch(batch)
        found = list(_split(self._sink.parts))
        self._sink.parts = []
        if not self._has_written:
            self._has_written = True
            found = found[1:]  # the schema, which Arrow writes together with the first batch
        last = len(found) - 1
        return [
            encode_flight_data(header, body, metadata if at == last else b"") for at, (header, body) in enumerate(found)
        ]


def _split(written: list[Any]) -> Iterator[tuple[bytes, list[bytes | memoryview]]]:
    """
    Yield metadata and body of each IPC message in what Arrow has *written*: a mark, the size of the metadata, the
    metadata, and the buffers of the body as objects of Arrow, with zeros between them.
    """
    at = 0
    while at < len(written):
        head = b"".join(written[at : at + 2])
        size = _PREFIX.unpack(head)[1]
        at += 2
        header = b""
        while len(header) < size:
            header += written[at]
            at += 1
        body: list[bytes | memoryview] = []
        while at < len(written) and not _is_mark(written[at]):
            body.append(memoryview(written[at]))
            at += 1
        yield header, body


def _is_mark(written: Any) -> bool:
    return isinstance(written, bytes) and written == _MARK  # a buffer of the body may have the same bytes


def slices_of(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield *batch* in slices of about *bytes_max* bytes, with at least one row each."""
    pieces = max(1, -(-batch_bytes(batch) // bytes_max))
    rows = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
