"""
Comparison of two OTLP requests, ignoring what the conversion may change.

`ordered=False` also ignores the order of records, children and attributes, which transport encodings sort.
"""

import struct
from typing import Any

ORDERLESS = {
    "resource_logs", "resource_spans", "resource_metrics", "scope_logs", "scope_spans", "scope_metrics",
    "log_records", "spans", "metrics", "attributes", "filtered_attributes", "metadata", "events", "links",
    "data_points", "exemplars",
}  # fmt: skip
GROUPS = {"resource_logs", "resource_spans", "resource_metrics", "scope_logs", "scope_spans", "scope_metrics"}
ITEMS = {"log_records", "spans", "metrics"}
BUCKETS = {"positive", "negative"}
IDS = {"trace_id", "span_id", "parent_span_id"}
EMPTY_IS_UNSET = {"resource", "scope", "status", "value", "body"}
NOT_CARRIED = {"entity_refs", "key_strindex", "string_value_strindex"}


def said(message: Any, *, ordered: bool = True, losses: frozenset[str] = frozenset()) -> Any:
    """Return a message's content as nested tuples that are equal if the messages are equivalent."""
    found = []
    for field, value in message.ListFields():
        if field.name in NOT_CARRIED or (field.name == "metadata" and "metadata" in losses):
            continue
        if field.is_repeated:
            made = _repeated(field, value, ordered, losses)
            if made or not field.message_type:
                found.append((field.name, made))
            continue
        if field.message_type is not None:
            inner = said(value, ordered=ordered, losses=losses)
            if not inner and field.name in EMPTY_IS_UNSET | (BUCKETS if "empty_buckets" in losses else set()):
                continue
            found.append((field.name, inner))
        elif (field.name in IDS and not any(value)) or (f"zero_{field.name}" in losses and value == 0):
            continue
        else:
            found.append((field.name, _bits(value)))
    return tuple(sorted(found, key=lambda pair: pair[0]))


def _bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


def _repeated(field: Any, values: Any, ordered: bool, losses: frozenset[str]) -> Any:
    if field.message_type is None:
        return tuple(map(_bits, values))
    made = [_pruned(said(value, ordered=ordered, losses=losses), losses) for value in values]
    if field.name in GROUPS:
        made = [group for group in made if any(name in GROUPS | ITEMS for name, _ in group)]
    if field.name in {"attributes", "filtered_attributes", "metadata"} and "empty_attributes" in losses:
        made = [pair for pair in made if {"key", "value"} <= {name for name, _ in pair}]
    of_map = "map_order" in losses and field.containing_type.name == "KeyValueList"
    if not ordered and (field.name in ORDERLESS or of_map):
        made.sort(key=repr)
    return tuple(made)


def _pruned(inner: Any, losses: frozenset[str]) -> Any:
    """Treat empty bytes inside arrays and maps as null, as one producer does."""
    if "cbor_empty_bytes" not in losses:
        return inner
    if inner == (("bytes_value", b""),):
        return ()
    if inner[:1] and inner[-1] == ("value", (("bytes_value", b""),)):
        return inner[:-1]
    return inner


def merged(message: Any, losses: frozenset[str]) -> Any:
    """Return the content without nesting: every record with its resource and scope, sorted."""
    rows = []
    for _, resources in said(message, ordered=False, losses=losses):
        for resource in resources:
            around = tuple(pair for pair in resource if pair[0] not in GROUPS)
            for name, scopes in resource:
                for scope in scopes if name in GROUPS else ():
                    inside = tuple(pair for pair in scope if not isinstance(pair[1], tuple) or pair[0] == "scope")
                    for field, items in scope:
                        if field in ITEMS:
                            rows += [(around, inside, item) for item in items]
    return sorted(rows, key=repr)
