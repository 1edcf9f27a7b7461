"""
Reduced OTLP message descriptors for decoders that write Arrow without objects.

Everything is derived from the installed descriptors. There are three reductions of each:

- *narrow*: enumerations as numbers, attributes and AnyValues as bytes. The encoding is the same, and the rest is not
  recursive.
- *shell*: only the nesting of resources, scopes and items, with everything else as bytes. It is cheap to parse, shows
  how many rows a request has, and refuses excessive nesting on its own levels.
- *times*: only the nesting down to log records, spans and data points, and their times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from quiver.otap.request_shapes import SHAPES

__all__ = ["decode_compiled", "narrow_handler", "nested_handler", "shell_class", "times_class"]

_AS_BYTES = frozenset({"KeyValue", "AnyValue"})

# Shell: message → fields that stay messages. Other messages and strings become bytes; scalars are removed.
_SHELL_LEVELS = {
    "ExportLogsServiceRequest": {"resource_logs"},
    "ResourceLogs": {"scope_logs"},
    "ScopeLogs": set(),
    "ExportTraceServiceRequest": {"resource_spans"},
    "ResourceSpans": {"scope_spans"},
    "ScopeSpans": set(),
    "ExportMetricsServiceRequest": {"resource_metrics"},
    "ResourceMetrics": {"scope_metrics"},
    "ScopeMetrics": {"metrics"},
    "Metric": {"gauge", "sum", "histogram", "exponential_histogram", "summary"},
    "Gauge": set(),
    "Sum": set(),
    "Histogram": set(),
    "ExponentialHistogram": set(),
    "Summary": set(),
}

_TIMES = {
    **{name: fields for name, fields in _SHELL_LEVELS.items() if fields},
    "ScopeLogs": {"log_records"},
    "LogRecord": {"time_unix_nano", "observed_time_unix_nano"},
    "ScopeSpans": {"spans"},
    "Span": {"start_time_unix_nano"},
    **{kind: {"data_points"} for kind in ("Gauge", "Sum", "Histogram", "ExponentialHistogram", "Summary")},
    **{f"{kind}DataPoint": {"time_unix_nano"} for kind in ("Number", "Histogram", "ExponentialHistogram", "Summary")},
}
"""Times: message → the fields that it keeps."""


def decode_compiled(decode: Callable[[Any], pa.RecordBatch], messages: Any) -> pa.RecordBatch:
    """
    Return ``decode(messages)``, where *decode* is a method of a handler.

    The decoder panics at some lengths that pass the end of a message. That is an answer about the bytes, as its
    `ValueError` is, but arrives as a `BaseException`, which would end a Spark task or a thread.

    Raises:
        ValueError: the decoder refuses the bytes, or panicked.
    """
    try:
        return decode(messages)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ValueError(f"the decoder panicked: {error}") from error


@cache
def narrow_handler(view: str) -> Any:
    """
    Return the handler that decodes a list of requests of *view* to one Arrow batch, one row per request.

    Raises:
        ImportError: the decoder is not installed.
    """
    descriptor = _derived(view, _narrow)
    return _handler(descriptor.file, descriptor)


@cache
def nested_handler(message: str) -> Any:
    """
    Return the handler that decodes a column of serialized, narrow `ArrayValue` or `KeyValueList` messages.

    Raises:
        ImportError: the decoder is not installed.
    """
    file = next(file for file in _derived("logs", _narrow).file.dependencies[0].dependencies if "common" in file.name)
    return _handler(file, file.message_types_by_name[message])


def _handler(file: Any, descriptor: Any) -> Any:
    """
    Return the handler of *descriptor*, after a try: a version of the decoder with another interface is not used.

    Raises:
        ImportError: the decoder is not installed, or does not decode an empty message as expected.
    """
    import ptars  # noqa: PLC0415 - takes 13 ms, and is only needed for decoding

    try:
        handler = ptars.HandlerPool([file]).get_for_message(descriptor)
        decoded = handler.list_to_record_batch([b""])
        names = [field.name for field in descriptor.fields]
        if decoded.num_rows == 1 and decoded.schema.names == names and callable(handler.array_to_record_batch):
            return handler
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ImportError(f"the installed version of ptars cannot be used: {error}") from error
    raise ImportError("the installed version of ptars cannot be used: it decodes an empty message in another way")


@cache
def shell_class(view: str) -> Any:
    """Return the message class that parses only the nesting of a request of *view*."""
    return message_factory.GetMessageClass(_derived(view, _shell))


@cache
def times_class(view: str) -> Any:
    """Return the message class that parses only the times of a request's records."""
    return message_factory.GetMessageClass(_derived(view, _only_times))


def _derived(view: str, cut: Callable[[DescriptorProto], None]) -> Any:
    original = SHAPES[view].request.DESCRIPTOR
    pool = descriptor_pool.DescriptorPool()
    for file in _files(original.file, {}).values():
        del file.service[:]
        for message in file.message_type:
            cut(message)
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(original.full_name)


def _files(file: Any, found: dict[str, FileDescriptorProto]) -> dict[str, FileDescriptorProto]:
    """Return *file* and its dependencies by name, dependencies first."""
    for dependency in file.dependencies:
        _files(dependency, found)
    if file.name not in found:
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        found[file.name] = copy
    return found


def _narrow(message: DescriptorProto) -> None:
    for nested in message.nested_type:
        _narrow(nested)
    kept = []
    for field in message.field:
        if message.name in _AS_BYTES:
            continue
        if field.type_name.rpartition(".")[2] in _AS_BYTES:
            # Made repeated to detect a value that came in two parts, which must be merged.
            _retype(field, FieldDescriptorProto.TYPE_BYTES)
            field.label = FieldDescriptorProto.LABEL_REPEATED
        elif field.type == FieldDescriptorProto.TYPE_ENUM:
            _retype(field, FieldDescriptorProto.TYPE_INT32)
        kept.append(field)
    _keep(message, kept)
    if message.name in _AS_BYTES:
        del message.oneof_decl[:]


def _shell(message: DescriptorProto) -> None:
    kept = []
    levels = _SHELL_LEVELS.get(message.name)
    for field in message.field if levels is not None else ():
        if field.type in {FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_STRING} and (
            field.name not in (levels or ())
        ):
            _retype(field, FieldDescriptorProto.TYPE_BYTES)
        if field.type in {FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_BYTES}:
            kept.append(field)
    _keep(message, kept)
    if levels is None:
        del message.oneof_decl[:], message.nested_type[:]


def _only_times(message: DescriptorProto) -> None:
    kept = _TIMES.get(message.name, set())
    _keep(message, [field for field in message.field if field.name in kept])
    del message.nested_type[:]
    if message.name != "Metric":
        del message.oneof_decl[:]


def _retype(field: FieldDescriptorProto, kind: FieldDescriptorProto.Type.ValueType) -> None:
    field.type = kind
    field.ClearField("type_name")


def _keep(message: DescriptorProto, fields: list[FieldDescriptorProto]) -> None:
    copies = [FieldDescriptorProto.FromString(field.SerializeToString()) for field in fields]
    del message.field[:]
    message.field.extend(copies)
