"""AnyValues and lists of attributes → typed values and maps of a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.otap.any_values import AnyValues, key_values, optional_values
from quiver.otap.arrays import FallbackNeededError, counts_of, require_distinct
from quiver.otap.views.nested_json import json_values
from quiver.otap.views.schemas import TYPED_VALUE

__all__ = ["LevelMaps", "maps", "repeated_maps", "typed_values"]

_TOGETHER_MAX = 4096
_TYPED_FIELDS = list(TYPED_VALUE)
_TYPED_NAMES = [field.name for field in TYPED_VALUE]


def typed_values(values: Any) -> pa.Array:
    """
    Return decoded or serialized values as structs with one field per kind; all fields are null for an unset value.

    Raises:
        FallbackNeededError: a value has an unusual encoding, or a nested one is invalid.
    """
    found = optional_values(values) if isinstance(values, pa.Array) else values
    as_json = json_values(found) if isinstance(found, AnyValues) else found.field("json_value")
    arms = [as_json if name == "json_value" else found.field(name) for name in _TYPED_NAMES]
    return pa.StructArray.from_arrays(arms, fields=_TYPED_FIELDS)


def maps(lists: pa.Array) -> pa.Array:
    """
    Return lists of key and value as maps.

    Raises:
        FallbackNeededError: a map has a duplicate key, or a value needs the fallback.
    """
    entries: Any = lists.values
    keys, values = (
        key_values(entries) if isinstance(entries, pa.Array) else (entries.field("key"), entries.field("value"))
    )
    require_distinct(keys, counts_of(lists))
    return pa.MapArray.from_arrays(lists.offsets, keys, typed_values(values))


class LevelMaps:
    """
    The attributes of several levels (records, scopes, resources) as maps.

    Few attributes are decoded together when the first map is requested: a step costs about the same for ten values as
    for a thousand.
    """

    def __init__(self, lists: Mapping[str, pa.Array]) -> None:
        self._lists = lists
        self._made: dict[str, pa.Array] | None = None
        if sum(len(level.values) for level in lists.values()) > _TOGETHER_MAX:
            self._made = {}

    def maps(self, name: str) -> pa.Array:
        """
        Return the maps of one level.

        Raises:
            FallbackNeededError: a map of this level has a duplicate key, or a value needs the fallback.
        """
        if self._made is None:
            try:
                self._made = self._together()
            except FallbackNeededError:  # perhaps of another level, which no column needs
                self._made = {}
        made = self._made.get(name)
        return maps(self._lists[name]) if made is None else made

    def _together(self) -> dict[str, pa.Array]:
        keys, values = key_values(pa.concat_arrays([level.values for level in self._lists.values()]))
        require_distinct(keys, np.concatenate([counts_of(level) for level in self._lists.values()]))
        items = typed_values(values)
        made = {}
        start = 0
        for name, level in self._lists.items():
            size = len(level.values)
            made[name] = pa.MapArray.from_arrays(level.offsets, keys.slice(start, size), items.slice(start, size))
            start += size
        return made


def repeated_maps(maps_of_few: pa.MapArray, which: np.ndarray) -> pa.Array:
    """Return the maps at the indexes *which*, like `take`, but without the cost of arms that no value has."""
    if not len(maps_of_few.keys):
        offsets = pa.py_buffer(np.zeros(len(which) + 1, np.int32))
        return pa.Array.from_buffers(maps_of_few.type, len(which), [None, offsets], children=[maps_of_few.values])
    counts = counts_of(maps_of_few)
    of_row = counts.take(which)
    offsets = np.zeros(len(which) + 1, np.int32)
    np.cumsum(of_row, out=offsets[1:])
    first = np.asarray(maps_of_few.offsets)[:-1].take(which)
    picked = pa.array(np.repeat(first - offsets[:-1], of_row) + np.arange(offsets[-1], dtype=np.int32))
    values: Any = maps_of_few.items
    arms = [_taken(values.field(at), picked) for at in range(len(TYPED_VALUE))]
    items = pa.StructArray.from_arrays(arms, fields=_TYPED_FIELDS)
    return pa.MapArray.from_arrays(pa.array(offsets), maps_of_few.keys.take(picked), items)


def _taken(values: pa.Array, picked: pa.Array) -> pa.Array:
    return pa.nulls(len(picked), values.type) if values.null_count == len(values) else values.take(picked)
