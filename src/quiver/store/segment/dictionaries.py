"""
Dictionary batches → messages that share one dictionary, exactly.

An Arrow IPC file has one dictionary per column for all its batches, but every batch came with its own. So the
dictionaries are unified under the original key type, and the keys inside the serialized batch messages
are rewritten to the unified positions. Rows keep their values to the last bit, nulls stay nulls, and
types never change. If a unified dictionary would overflow its key type, or a type cannot be unified, the next
batches form another run, and each run becomes a separate stream.

::

    batch 0: {a, b} 0 1      one run:  dictionary {a, b, c}   batch 0: 0 1     (untouched: its map is the identity)
    batch 1: {c, a} 0 1                                       batch 1: 2 0     (keys rewritten in the message)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.store.segment.compression import split_messages
from quiver.store.segment.schemas import Leaf, dictionary_leaves, has_dictionaries, physical_schema

__all__ = ["DictionaryRun", "encode_runs"]

_GROUP_VALUES = 4096
"""About this many values are unified in one step; fewer for short keys, more once the dictionary is larger."""


@dataclass(frozen=True, slots=True)
class DictionaryRun:
    """
    Consecutive batches that share their dictionaries: the messages of one Arrow IPC file.

    Attributes:
        dictionaries: one message per dictionary of the schema, in Arrow's order.
        batches: one message per batch.
    """

    dictionaries: Sequence[Any]
    batches: Sequence[Any]


def encode_runs(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> list[DictionaryRun]:
    """Return *batches*, in order, as runs. Every row keeps its value and every column its type."""
    leaves = dictionary_leaves(schema)
    if not any(has_dictionaries(pa.schema([("values", leaf.value_type)])) for leaf in leaves):
        try:
            return _unified_runs(schema, leaves, batches)
        except (pa.ArrowException, _NotInMessageError):
            # For example keys that point nowhere, below a null parent: unchanged, with their own dictionary.
            pass
    return [_own_run(batch) for batch in batches]


class _NotInMessageError(Exception):
    """Arrow copied the keys out of the message, so they cannot be rewritten in place."""


def _own_run(batch: pa.RecordBatch) -> DictionaryRun:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    dictionaries, others = split_messages(sink.getvalue())
    return DictionaryRun(dictionaries, others)


def _unified_runs(schema: pa.Schema, leaves: Sequence[Leaf], batches: Sequence[pa.RecordBatch]) -> list[DictionaryRun]:
    dictionaries = [_dictionaries(leaves, batch) for batch in batches]
    physical = physical_schema(schema)
    runs: list[DictionaryRun] = []
    start = 0
    while start < len(batches):
        unifiers = [_Unifier(leaf) for leaf in leaves]
        count = _grow(unifiers, dictionaries, start)
        messages = [
            _rewritten(batches[at], physical, leaves, [unifier.moves(at - start) for unifier in unifiers])
            for at in range(start, start + count)
        ]
        runs.append(DictionaryRun(_dictionary_messages([unifier.values for unifier in unifiers]), messages))
        start += count
    return runs


def _dictionaries(leaves: Sequence[Leaf], batch: pa.RecordBatch) -> list[pa.Array]:
    found = []
    for leaf in leaves:
        array = batch.column(leaf.column)
        for step in leaf.steps:
            array = step(array)
        found.append(array.dictionary)
    return found


def _rewritten(
    batch: pa.RecordBatch, physical: pa.Schema, leaves: Sequence[Leaf], positions: Sequence[pa.Array | None]
) -> Any:
    """Return the batch's message with the keys of each leaf moved to their new positions (None: unchanged)."""
    message = batch.serialize()
    if not any(moves is not None for moves in positions):
        return message
    twin = pa.ipc.read_record_batch(message, physical)
    patched = bytearray(message)
    for leaf, moves in zip(leaves, positions, strict=True):
        if moves is None:
            continue
        keys = twin.column(leaf.column)
        for step in leaf.physical_steps:
            keys = step(keys)
        if keys.null_count == len(keys):
            continue
        width = leaf.index_type.bit_width // 8
        start = keys.buffers()[1].address - message.address + keys.offset * width
        end = start + len(keys) * width
        if start < 0 or end > message.size:
            raise _NotInMessageError
        # A null key may be any number; take ignores it, and the validity bits in the message stay.
        moved = pc.take(moves, keys)
        first = moved.offset * width
        patched[start:end] = memoryview(moved.buffers()[1])[first : first + end - start]
    return patched


def _dictionary_messages(values: Sequence[pa.Array]) -> list[Any]:
    # Arrow numbers the dictionaries of a schema in the order of its leaves, so a flat schema with the same
    # dictionaries gives messages with the same numbers.
    none = pa.array([], pa.int32())
    columns = [pa.DictionaryArray.from_arrays(none, array) for array in values]
    flat = pa.record_batch(columns, names=[str(number) for number in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, flat.schema) as writer:
        writer.write_batch(flat)
    return split_messages(sink.getvalue())[0]


def _grow(unifiers: Sequence[_Unifier], dictionaries: Sequence[Sequence[pa.Array]], start: int) -> int:
    """Unify the dictionaries of as many batches from *start* on as fit, and return their number: at least one."""
    count = 0
    # A group is about as large as the run that it is added to, so the total costs little more than one pass. It is
    # small if the keys are small, so little work is wasted when a run ends.
    least = min(_GROUP_VALUES, *(4 * unifier.capacity for unifier in unifiers))
    while start + count < len(dictionaries):
        room = max(least, sum(unifier.size for unifier in unifiers))
        group = 0
        while start + count + group < len(dictionaries) and (room > 0 or not group):
            for unifier, dictionary in zip(unifiers, dictionaries[start + count + group], strict=True):
                room -= unifier.offer(dictionary)
            group += 1
        fit = min(unifier.unify() for unifier in unifiers)
        if fit == 0 and count == 0:
            for unifier in unifiers:
                unifier.keep_first()
            return 1
        for unifier in unifiers:
            unifier.accept(fit)
        count += fit
        if fit < group:
            break
    return count


class _Unifier:
    """
    The unified dictionary of one leaf in one run, and the new places of each batch's own values.

    Batches are offered in groups: `offer` some, `unify` returns how many of them fit, `accept` takes that many.
    """

    __slots__ = (
        "_group", "_joined", "_kept", "_moves", "_new", "_places", "_run",
        "capacity", "leaf", "token", "values",
    )  # fmt: skip

    def __init__(self, leaf: Leaf) -> None:
        bits = leaf.index_type.bit_width
        self.leaf = leaf
        self.capacity = 1 << (bits if pa.types.is_unsigned_integer(leaf.index_type) else bits - 1)
        self.token = None if leaf.ordered else _token_type(leaf.value_type)
        self.values: pa.Array | None = None
        # The run: a key per batch, and per key the new places of that dictionary's values. A key may consist of
        # addresses, so the run keeps its dictionaries alive: otherwise another one might get the same address.
        self._run: list[Any] = []
        self._moves: dict[Any, pa.Array | None] = {}
        self._kept: list[pa.Array] = []
        # The group: a key per batch, the dictionaries that are new to the run, and the result of `unify`.
        self._group: list[Any] = []
        self._new: dict[Any, pa.Array] = {}
        self._joined: pa.Array = None
        self._places: pa.Array = None

    @property
    def size(self) -> int:
        """Number of unified values so far."""
        return 0 if self.values is None else len(self.values)

    def offer(self, dictionary: pa.Array) -> int:
        """Add the next batch's dictionary to the group; return how many values it adds."""
        key = self._key(dictionary)
        self._group.append(key)
        if key in self._moves or key in self._new:
            return 0
        self._new[key] = dictionary
        return len(dictionary)

    def unify(self) -> int:
        """Return how many batches of the group fit the key type together with the run so far."""
        arrays = [] if self.values is None else [self.values]
        arrays.extend(self._as_token(dictionary) for dictionary in self._new.values())
        joined = pa.concat_arrays(arrays)
        if self.token is None:
            self._joined, self._places = joined, _count_up(len(joined))
        else:
            encoded = pc.dictionary_encode(joined, null_encoding="encode")
            self._joined, self._places = encoded.dictionary, encoded.indices
        if self.leaf.ordered and len(self._moves) + len(self._new) > 1:
            # The order of the values is significant, and two dictionaries have two orders.
            return self._group_until(lambda known, _needed: known <= 1)
        if len(self._joined) <= self.capacity:
            return len(self._group)
        return self._group_until(lambda _known, needed: needed <= self.capacity)

    def _group_until(self, fits: Callable[[int, int], bool]) -> int:
        """
        Return how many batches of the group come before the first one whose dictionary does not fit.

        *fits* receives the number of dictionaries and the number of unified values that they need.
        """
        offset = needed = self.size
        known = len(self._moves)
        seen: set[Any] = set()
        for count, key in enumerate(self._group):
            if key in self._new and key not in seen:
                seen.add(key)
                length = len(self._new[key])
                # Values are numbered by first appearance, so the values of the first dictionaries are a prefix.
                needed = max(needed, _highest(self._places.slice(offset, length)) + 1)
                offset += length
                known += 1
            if not fits(known, needed):
                return count
        return len(self._group)

    def accept(self, count: int) -> None:
        """Move the first *count* batches of the group into the run."""
        accepted = self._group[:count]
        self._run.extend(accepted)
        # Values that do not fit are truncated to wrong numbers here, but those are not accepted.
        places = pc.cast(self._places, self.leaf.index_type, safe=False)
        offset = self.size
        used = set(accepted)
        ramp = pc.cast(_count_up(max(map(len, self._new.values()), default=0)), self.leaf.index_type, safe=False)
        for key, dictionary in self._new.items():
            # The accepted ones come first, because the group's batches are taken in order.
            if key not in used:
                break
            own = places.slice(offset, len(dictionary))
            offset += len(dictionary)
            self._moves[key] = None if own.equals(ramp.slice(0, len(own))) else own
            self._kept.append(dictionary)
        if accepted:
            self.values = self._joined.slice(0, max(self.size, _highest(self._places.slice(0, offset)) + 1))
        self._group = []
        self._new = {}

    def keep_first(self) -> None:
        """
        Form a run of the first batch alone, with its dictionary unchanged.

        For a dictionary that has more values than its keys can reach, even alone.
        """
        key = self._group[0]
        self.values = self._new[key]
        self._run = [key]
        self._moves = {key: None}

    def moves(self, at: int) -> pa.Array | None:
        """Return the new places of the values of the run's batch *at*, in the key type; None if they did not move."""
        return self._moves[self._run[at]]

    def _key(self, dictionary: pa.Array) -> Any:
        if self.token is None:
            return pa.record_batch([dictionary], names=["values"]).serialize().to_pybytes()
        addresses = (0 if buffer is None else buffer.address for buffer in dictionary.buffers())
        return (dictionary.offset, len(dictionary), *addresses)

    def _as_token(self, dictionary: pa.Array) -> pa.Array:
        return dictionary if self.token in {None, dictionary.type} else dictionary.view(self.token)


def _count_up(count: int) -> pa.Array:
    one = pa.scalar(1, pa.int32())
    return pc.cumulative_sum(pa.repeat(one, count), start=pa.scalar(-1, pa.int32()))


def _highest(places: pa.Array) -> int:
    return pc.max(places).as_py() if len(places) else -1


def _token_type(kind: pa.DataType) -> pa.DataType | None:
    """
    Return the type under which values of *kind* are equal exactly if their bits are; None if there is none.

    It has the same buffers as *kind*. Floats are compared by their bits, so that -0.0 stays -0.0 and a NaN keeps its
    payload.
    """
    types = pa.types
    if (
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return kind
    if types.is_floating(kind) or types.is_decimal(kind) or types.is_temporal(kind) or types.is_interval(kind):
        bits = kind.bit_width
        return {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}.get(bits) or pa.binary(bits // 8)
    return None
