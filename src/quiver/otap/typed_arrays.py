"""
AnyValues and lists of attributes as decoded from the wire → typed values and maps of a view.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.arrays import counts_of, require_distinct, require_one_arm
from quiver.otap.nested_json import json_of_nested, nested_parts
from quiver.otap.view_schema import TYPED_VALUE

__all__ = ["maps", "typed_values"]

_PLAIN_ARMS = tuple(field.name for field in TYPED_VALUE if field.name != "json_value")


def typed_values(values: Any) -> pa.Array:
    """
    Return AnyValues as structs with one field per kind; all fields are null when the value is unset.

    Raises:
        Odd: a value was set twice, or a nested one does not parse.
    """
    arms = {name: values.field(name) for name in _PLAIN_ARMS}
    arrays, kvlists = nested_parts(values)
    require_one_arm([*arms.values(), arrays, kvlists])
    arms["json_value"] = pc.coalesce(json_of_nested(arrays, "ArrayValue"), json_of_nested(kvlists, "KeyValueList"))
    return pa.StructArray.from_arrays([arms[field.name] for field in TYPED_VALUE], fields=list(TYPED_VALUE))


def maps(lists: pa.Array) -> pa.Array:
    """
    Return lists of key and value as maps.

    Raises:
        Odd: a map has one key twice, or a value is odd.
    """
    entries: Any = lists.values
    keys = entries.field("key")
    require_distinct(keys, counts_of(lists))
    return pa.MapArray.from_arrays(lists.offsets, keys, typed_values(entries.field("value")))
