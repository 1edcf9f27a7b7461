"""Arrow tables and data frames, split into messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.kernel import KERNEL
from quiver.qwp.rows import check_name
from quiver.qwp.wire.arrow_columns import Dictionaries, columns_of_batch
from quiver.qwp.wire.message import (
    NAME_BYTES_MAX,
    ROWS_MAX,
    Dialect,
    MessageBuffer,
    SymbolIds,
    TableData,
    encode_message,
)

__all__ = ["check_columns", "encode_slices", "objects_in_kernel", "objects_in_python", "record_batches"]

_REFUSED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
_MESSAGE_BYTES = 960 * 1024
"""
The target size of a message: large enough for efficient kernels, small enough to be cheap to resend. Four of them fit
into a segment of the default size.
"""


def record_batches(data: Any) -> list[Any]:
    """
    Return *data* as record batches: an Arrow table or batch, a pandas data frame, or any object with an Arrow stream
    interface.

    Raises:
        UsageError: *data* is none of these.
    """
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return data.to_batches()
    try:
        if hasattr(data, "to_feather"):
            return _of_frame(data).to_batches()
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return pa.table(data).to_batches()
    except _REFUSED as error:
        raise UsageError(f"cannot convert the data frame to an Arrow table: {error}") from error
    raise UsageError(f"expected an Arrow table, a record batch or a data frame, not {type(data).__name__}")


def _of_frame(frame: Any) -> Any:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise UsageError("two columns of the data frame have the same name")
    arrays = []
    for number, name in enumerate(frame.columns):
        series = frame.iloc[:, number]
        kind = series.dtype.kind if isinstance(series.dtype, np.dtype) else ""
        try:
            if kind == "f":
                # A missing float is NaN on the wire as well, so float columns are passed without a scan for nulls.
                arrays.append(pa.array(series.to_numpy()))
            elif kind == "O":
                arrays.append(_objects(series.to_numpy()))
            else:
                arrays.append(pa.array(series, from_pandas=True))
        except _REFUSED as error:
            raise UsageError(f"column {name}: {error}") from error
    return pa.Table.from_arrays(arrays, names=names)


def objects_in_python(values: np.ndarray) -> pa.Array:
    """Return a column of objects, mostly texts, as the Arrow array that fits all of them."""
    return pa.array(values, from_pandas=True)


def objects_in_kernel(values: np.ndarray) -> pa.Array:
    """Return the same array. The compiled kernel converts texts; missing ones are None or NaN."""
    found = KERNEL.pack_texts(values) if values.flags.c_contiguous else None
    if found is None or not any(found[0]):  # other objects, or only missing ones
        return objects_in_python(values)
    return pa.Array.from_buffers(pa.string(), len(values), list(map(pa.py_buffer, found)))


_objects = objects_in_python if KERNEL is None else objects_in_kernel


def check_columns(names: Sequence[str], *, symbols: Collection[str], at: str | None, name_bytes_max: int) -> None:
    """
    Reject columns that a server would reject: invalid *names*, no columns, or repeated names. The designated timestamp
    *at* may have any name, because its name is not sent.

    Raises:
        UsageError: a column is invalid, or *symbols* is not a collection of names.
    """
    if isinstance(symbols, str) or not isinstance(symbols, Collection):
        raise UsageError(f"symbols must be a list of column names, not {symbols!r}")
    unknown = [name for name in (*symbols, *([] if at is None else [at])) if name not in names]
    if unknown:
        raise UsageError(f"no column {', '.join(unknown)}; columns are {', '.join(names)}")
    if at is not None and names.count(at) > 1:
        raise UsageError(f"column {at} is repeated")
    seen: set[str] = set()
    for name in names:
        if name == at:
            continue
        check_name("column", name, name_bytes_max)
        if name.lower() in seen:
            raise UsageError(f"column {name} is repeated: column names are not case-sensitive")
        seen.add(name.lower())


def encode_slices(
    name: str,
    batches: list[Any],
    *,
    symbols: Collection[str],
    at: str | None,
    message_bytes_max: int,
    row_bytes_max: int | None = None,
    dialect: Dialect,
    shared: SymbolIds | None = None,
    into: MessageBuffer | None = None,
    name_bytes_max: int = NAME_BYTES_MAX,
) -> Iterator[tuple[Buffer, int]]:
    """
    Yield messages that together contain all rows of *batches*, in order, with the number of rows in each. A message
    with a single row may have up to *row_bytes_max* bytes if that is larger. With *into*, a message is valid until the
    next one is requested.

    Raises:
        UsageError: the table or a column cannot be sent, or one row is larger than the maximum message.
    """
    check_name("table", name, name_bytes_max)
    for schema in [batch.schema for batch in batches[:1]]:  # all batches belong to one table
        check_columns(schema.names, symbols=symbols, at=at, name_bytes_max=name_bytes_max)
    for batch in batches:
        # The first slice shows how large a row is on the wire.
        rows_max = min(max(1, batch.num_rows), 1024)
        start = 0
        dictionaries: Dictionaries = {}
        while start < batch.num_rows:
            piece = batch.slice(start, rows_max)
            columns = columns_of_batch(piece, symbols=symbols, at=at, dictionaries=dictionaries)
            packed = [TableData(name, piece.num_rows, columns)]
            message = encode_message(packed, dialect=dialect, shared=shared, into=into)
            if len(message) > message_bytes_max and piece.num_rows == 1:
                message = encode_message(packed, dialect=dialect)  # without the symbols of other rows
            limit = max(row_bytes_max or 0, message_bytes_max) if piece.num_rows == 1 else message_bytes_max
            if len(message) > limit:
                if piece.num_rows == 1:
                    raise UsageError(
                        f"table {name}: row {start} has {len(message)} bytes; a segment and the server take "
                        f"at most {limit}"
                    )
                rows_max = max(1, piece.num_rows // 2)
                continue
            yield message, piece.num_rows
            start += piece.num_rows
            row_bytes = max(1, len(message) // piece.num_rows)
            rows_max = max(1, min(ROWS_MAX, min(_MESSAGE_BYTES, message_bytes_max // 2) // row_bytes))
