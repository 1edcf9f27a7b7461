"""
Many OTLP requests → the columns of a view, without an object per record.

The decoder returns nested Arrow, one row per request. Its innermost lists are the rows of the view. The levels around
them (scope, resource, metric) are repeated by index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.otap.arrays import FallbackNeededError, counts_of, repeated, repeated_numbers, repeated_texts
from quiver.otap.request_shapes import SHAPES
from quiver.otap.views.columnar_metrics import metric_arrays
from quiver.otap.views.columnar_records import log_arrays, span_arrays
from quiver.otap.views.typed_arrays import LevelMaps, repeated_maps
from quiver.otap.wire_schema import decode_compiled, narrow_handler

__all__ = ["ColumnarRequests", "decode_columnar"]


@dataclass(frozen=True, slots=True)
class ColumnarRequests:
    """
    The rows of some requests.

    Attributes:
        per_request: the number of rows of each request.
        makers: column name → function that builds the column; it may raise `FallbackNeededError`.
    """

    per_request: list[int]
    makers: dict[str, Callable[[], pa.Array]]


def decode_columnar(requests: Sequence[bytes], view: str) -> ColumnarRequests:
    """
    Decode requests that passed the shell parse.

    Raises:
        FallbackNeededError: they need the decoder by way of objects, as does a column whose maker raises it.
    """
    try:
        # Either the decoder is missing or it refuses the bytes: one invalid request fails the entire list.
        batch = decode_compiled(narrow_handler(view).list_to_record_batch, list(requests))
    except (ImportError, ValueError) as error:
        raise FallbackNeededError from error
    shape = SHAPES[view]
    resource_lists = batch.column(shape.resources)
    resources: Any = resource_lists.values
    scope_lists = resources.field(shape.scopes)
    scopes: Any = scope_lists.values
    item_lists = scopes.field(shape.items)
    items: Any = item_lists.values
    resource_of_scope = repeated(counts_of(scope_lists))
    scope_of_item = repeated(counts_of(item_lists))
    request_of_scope = repeated(counts_of(resource_lists))[resource_of_scope]
    scope, resource = scopes.field("scope"), resources.field("resource")
    levels = {"scope": scope.field("attributes"), "resource": resource.field("attributes")}
    if view != "metrics":
        levels["record"] = items.field("attributes")
    attributes = LevelMaps(levels)
    if view == "metrics":
        points = metric_arrays(items)
        makers, scope_of = points.makers, scope_of_item[points.metric_of]
    else:
        makers = log_arrays(items) if view == "logs" else span_arrays(items)
        makers["attributes"] = lambda: attributes.maps("record")
        scope_of = scope_of_item
    makers |= _origins(scopes, resources, attributes, scope_of, resource_of_scope[scope_of])
    per_request = np.bincount(request_of_scope[scope_of], minlength=len(requests))
    return ColumnarRequests(per_request.tolist(), makers)


def _origins(
    scopes: Any, resources: Any, attributes: LevelMaps, scope_of: np.ndarray, resource_of: np.ndarray
) -> dict[str, Callable[[], pa.Array]]:
    scope = scopes.field("scope")
    resource = resources.field("resource")
    dropped = "dropped_attributes_count"
    return {
        "scope_name": lambda: repeated_texts(scope.field("name"), scope_of),
        "scope_version": lambda: repeated_texts(scope.field("version"), scope_of),
        "scope_attributes": lambda: repeated_maps(attributes.maps("scope"), scope_of),
        "scope_dropped_attributes_count": lambda: repeated_numbers(scope.field(dropped), scope_of),
        "scope_schema_url": lambda: repeated_texts(scopes.field("schema_url"), scope_of),
        "resource_attributes": lambda: repeated_maps(attributes.maps("resource"), resource_of),
        "resource_dropped_attributes_count": lambda: repeated_numbers(resource.field(dropped), resource_of),
        "resource_schema_url": lambda: repeated_texts(resources.field("schema_url"), resource_of),
    }
