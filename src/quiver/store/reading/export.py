"""
Batches → one file of another format: Parquet, Arrow, or JSON Lines. Written completely or not at all, in bounded
memory.

Dictionaries are decoded: one file has one schema, and a column may be dictionary-encoded in one bundle but not in the
next. Values without a JSON type are written as text: times as ISO 8601, decimals as digits, bytes as base64, NaN and
infinities by name. A map becomes a list of ``{"key": …, "value": …}``, since its keys need not be unique.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from quiver.bundle import batch_bytes
from quiver.errors import UsageError
from quiver.otap.views.parquet_options import parquet_options
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX
from quiver.primitives.disk.file_system import File, FileSystem

__all__ = ["ExportFormat", "ExportedFile", "export", "format_of", "plain_schema"]

ExportFormat = Literal["parquet", "arrow", "jsonl"]

_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 16 * 1024 * 1024
"""The size of a row group or record batch in the output: small bundles are combined."""

_JSON_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """The file that was written, with `rows` rows and `size_bytes` bytes."""

    path: str
    rows: int
    size_bytes: int


def format_of(path: str) -> ExportFormat:
    """
    Return the format for the suffix of *path*.

    Raises:
        UsageError: the suffix is not known.
    """
    suffix = posixpath.splitext(path)[1].removeprefix(".").lower()
    found: ExportFormat | None = next((known for known in get_args(ExportFormat) if known == suffix), None)
    if found is None:
        raise UsageError(f"{path}: the suffix selects the format: .parquet, .arrow or .jsonl")
    return found


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return *schema* without metadata and without dictionaries at any depth; every field is nullable."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(child.name, _plain(child.type)) for child in kind])
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def export(
    fs: FileSystem,
    path: str,
    kind: ExportFormat,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    file_mode: int | None = None,
) -> ExportedFile:
    """
    Write *batches*, all of *schema*, to the file *path*, replacing an existing one. Durable on return.

    Readers see no file, the old one, or the complete new one; after a crash there may also be a temporary file next to
    it. The file gets the permission bits *file_mode*; by default 0640, restricted by the umask.

    Raises:
        UsageError: the format does not support a type.
        OSError: the disk reported an error; *path* is unchanged.
    """
    temporary = path + TEMPORARY_SUFFIX
    file = fs.create_or_truncate(temporary, mode=0o640 if file_mode is None else file_mode)
    written = False
    try:
        if file_mode is not None:
            file.set_mode(file_mode)
        sink = _Sink(file)
        rows = _WRITERS[kind](sink, schema, _grouped(schema, batches))
        file.sync()
        written = True
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UsageError(f"{kind} does not support this data: {error}") from error
    finally:
        file.close()
        if not written:  # an unfinished file may be what fills the disk
            with contextlib.suppress(OSError):
                fs.remove(temporary)
    fs.rename(temporary, path)
    fs.sync_dir(posixpath.dirname(path) or ".")
    return ExportedFile(path, rows, sink.offset)


class _Sink:
    """A file of the port with the interface that Arrow's writers need: they only append."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.offset = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.pwrite(view, self.offset)
        self.offset += len(view)
        return len(view)

    def tell(self) -> int:
        return self.offset

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _grouped(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    collected: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        collected.append(batch)
        rows += batch.num_rows
        size += batch_bytes(batch)
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(collected, schema)
            collected, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(collected, schema)


def _write_parquet(sink: _Sink, schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    import pyarrow.parquet as pq  # noqa: PLC0415 - for this format only

    rows = 0
    file = pa.PythonFile(sink, mode="w")
    with pq.ParquetWriter(file, schema, compression="zstd", **parquet_options(schema)) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
    return rows


def _write_arrow(sink: _Sink, schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    rows = 0
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
        for table in tables:
            writer.write_table(table.combine_chunks())
            rows += table.num_rows
    return rows


def _write_jsonl(sink: _Sink, schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    spoken = pa.schema([pa.field(field.name, _json_type(field.type)) for field in schema])
    rows = 0
    for table in tables:
        for start in range(0, table.num_rows, _JSON_ROWS):
            some = table.slice(start, _JSON_ROWS).cast(spoken)
            sink.write("".join(f"{_json_line(row)}\n" for row in some.to_pylist()).encode())
        rows += table.num_rows
    return rows


_WRITERS = {"parquet": _write_parquet, "arrow": _write_arrow, "jsonl": _write_jsonl}


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that values of *kind* are cast to before they become JSON."""
    types = pa.types
    if types.is_dictionary(kind):
        return _json_type(kind.value_type)
    if types.is_map(kind):
        key, item = _json_type(kind.key_type), _json_type(kind.item_type)
        return pa.list_(pa.struct([pa.field("key", key), pa.field("value", item)]))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_json_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(child.name, _json_type(child.type)) for child in kind])
    if types.is_duration(kind):
        return pa.int64()
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pa.string()
    return pa.string() if types.is_decimal(kind) else kind


def _json_line(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_json_word, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(row), default=_json_word, allow_nan=False, ensure_ascii=False)


def _json_word(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
