"""
Whether Arrow IPC can carry a schema, where its dictionaries are, and the layout of a batch without them.

A dictionary column consists of two parts: its values, in a separate message, and its keys, in the batch
message, with exactly the layout of a plain column of the key type. So every schema has a *physical* twin in which each
dictionary type is replaced by its key type; with it, a batch message can be read and its keys can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.bundle import QWP_TABLE_KEY
from quiver.errors import InvalidBundleError

__all__ = ["Leaf", "check_schema", "dictionary_leaves", "has_dictionaries", "is_of_table", "physical_schema"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """
    One dictionary of a schema, at any depth, in the order in which Arrow numbers them.

    Attributes:
        column: index of the top-level column it is in.
        steps: from that column's array down to the dictionary array.
        physical_steps: the same in the physical twin, which has no extension types.
        index_type: type of the keys.
        value_type: type of the values.
        ordered: whether the order of the values is significant.
    """

    column: int
    steps: tuple[Callable[[Any], Any], ...]
    physical_steps: tuple[Callable[[Any], Any], ...]
    index_type: pa.DataType
    value_type: pa.DataType
    ordered: bool


def is_of_table(schema: pa.Schema, table: str) -> bool:
    """Return whether *schema* belongs to rows that came over QWP for *table*, ignoring case."""
    name = (schema.metadata or {}).get(QWP_TABLE_KEY, b"")
    return bool(name.decode("utf-8", "replace").casefold() == table.casefold())


def check_schema(schema: pa.Schema) -> bool:
    """
    Return whether *schema* has a dictionary at any depth, after checking that Arrow IPC can carry it.

    A schema that passes can be sealed. Costs a trial serialization: call it once per schema, not per batch.

    Raises:
        InvalidBundleError: Arrow IPC changes one of its types, or cannot carry it at all.
    """
    for field in schema:
        _check_type(field.name, field.type)
    try:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema))
        carried = pa.ipc.open_stream(sink.getvalue()).read_next_batch().schema
    except (pa.ArrowException, OSError) as error:
        raise InvalidBundleError(f"Arrow IPC cannot carry this schema: {error}") from error
    for before, after in zip(schema, carried, strict=True):
        # An unregistered extension type is read back as its storage type; its name is kept in the file.
        if before.type != after.type and _storage(before.type) != after.type:
            raise InvalidBundleError(f"column {before.name!r}: {before.type} comes out of Arrow IPC as {after.type}")
    return has_dictionaries(schema)


def has_dictionaries(schema: pa.Schema) -> bool:
    """Return whether a column of *schema* is, or contains, a dictionary."""
    return any(_contains_dictionary(field.type) for field in schema)


def dictionary_leaves(schema: pa.Schema) -> list[Leaf]:
    """Return every dictionary of *schema* that is not inside another dictionary's values."""
    return [leaf for column, field in enumerate(schema) for leaf in _leaves(field.type, column, (), ())]


def physical_schema(schema: pa.Schema) -> pa.Schema:
    """Return *schema* with every dictionary type replaced by its key type: same batch layout, no dictionaries."""
    return pa.schema([pa.field(field.name, _physical(field.type), field.nullable) for field in schema])


def _contains_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_contains_dictionary(child) for _, child in _children(kind))


def _children(kind: pa.DataType) -> Iterator[tuple[Callable[[Any], Any], pa.DataType]]:
    """Yield a function from an array of this type to each of its children, and the child's type."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        yield _storage_array, kind.storage_type
    elif types.is_struct(kind) or types.is_union(kind):
        for index in range(kind.num_fields):
            yield _field_getter(index), kind.field(index).type
    elif types.is_map(kind):
        yield _map_keys, kind.key_type
        yield _map_items, kind.item_type
    elif _is_list_like(kind) or types.is_run_end_encoded(kind):
        yield _values, kind.value_type


def _is_list_like(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _field_getter(index: int) -> Callable[[Any], Any]:
    def get(array: Any) -> Any:
        return array.field(index)

    return get


def _values(array: Any) -> Any:
    return array.values


def _map_keys(array: Any) -> Any:
    return array.keys


def _map_items(array: Any) -> Any:
    return array.items


def _storage_array(array: Any) -> Any:
    return array.storage


def _leaves(
    kind: pa.DataType,
    column: int,
    steps: tuple[Callable[[Any], Any], ...],
    physical_steps: tuple[Callable[[Any], Any], ...],
) -> Iterator[Leaf]:
    if pa.types.is_dictionary(kind):
        yield Leaf(column, steps, physical_steps, kind.index_type, kind.value_type, kind.ordered)
        return
    for step, child in _children(kind):
        further = physical_steps if step is _storage_array else (*physical_steps, step)
        yield from _leaves(child, column, (*steps, step), further)


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return *kind* with *change* applied to the types of its children."""
    types = pa.types

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if types.is_struct(kind):
        return pa.struct([changed(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_union(kind):
        fields = [changed(kind.field(i)) for i in range(kind.num_fields)]
        return pa.union(fields, mode=kind.mode, type_codes=kind.type_codes)
    if types.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_run_end_encoded(kind):
        return pa.run_end_encoded(kind.run_end_type, change(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    for is_it, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
        (types.is_list_view, pa.list_view),
        (types.is_large_list_view, pa.large_list_view),
    ):
        if is_it(kind):
            return make(changed(kind.value_field))
    return kind


def _physical(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _physical(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return kind.index_type
    return _rebuilt(kind, _physical)


def _storage(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _storage(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _storage(kind.value_type), ordered=kind.ordered)
    return _rebuilt(kind, _storage)


def _check_type(name: str, kind: pa.DataType) -> None:
    if pa.types.is_dictionary(kind):
        values = kind.value_type
        # Both can be written without an error; the first cannot be read, the second is read back with another nesting.
        if pa.types.is_dictionary(values) or isinstance(values, pa.BaseExtensionType):
            raise InvalidBundleError(f"column {name!r}: Arrow IPC cannot carry {kind}; encode the plain values instead")
        _check_type(name, values)
    for _, child in _children(kind):
        _check_type(name, child)
