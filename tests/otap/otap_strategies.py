"""Hypothesis strategies: export requests of any shape that the protobuf schema allows and OTAP can represent."""

from functools import cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st
from otap_oracle import REQUESTS

LEFT_OUT = {"key_strindex", "string_value_strindex", "entity_refs"}
WIDTHS = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
TEXTS = st.sampled_from(["", "a", "b", "service.name", "ünï\0", "\U0001f41f" * 3, "x" * 300]) | st.text(max_size=4)
DOUBLES = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e300]) | st.floats()
RANGES = {
    Field.TYPE_INT32: (-(2**31), 2**31 - 1), Field.TYPE_SINT32: (-(2**31), 2**31 - 1),
    Field.TYPE_ENUM: (-(2**31), 2**31 - 1), Field.TYPE_UINT32: (0, 2**32 - 1), Field.TYPE_FIXED32: (0, 2**32 - 1),
    Field.TYPE_INT64: (-(2**63), 2**63 - 1), Field.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    Field.TYPE_FIXED64: (0, 2**64 - 1), Field.TYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip


def requests(view: str) -> st.SearchStrategy[Any]:
    return _messages(REQUESTS[view].DESCRIPTOR)


@cache
def _messages(descriptor: Any) -> st.SearchStrategy[Any]:
    made = message_factory.GetMessageClass(descriptor)
    fields = {field.name: _field(field) for field in descriptor.fields if field.name not in LEFT_OUT}
    if descriptor.name == "AnyValue":
        arms = [strategy.map(lambda value, name=name: made(**{name: value})) for name, strategy in fields.items()]
        return st.one_of(st.just(made()), *arms)
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: made(**values))


def _field(field: Any) -> st.SearchStrategy[Any]:
    one = _scalar(field) if field.message_type is None else st.deferred(lambda: _messages(field.message_type))
    return st.lists(one, max_size=2) if field.is_repeated else one


def _scalar(field: Any) -> st.SearchStrategy[Any]:
    if field.name in WIDTHS:
        width = WIDTHS[field.name]
        return st.sampled_from([b"", bytes(width), b"\1" * width, bytes(range(width))])
    if field.type == Field.TYPE_STRING:
        return TEXTS
    if field.type == Field.TYPE_BYTES:
        return st.binary(max_size=6)
    if field.type == Field.TYPE_BOOL:
        return st.booleans()
    if field.type == Field.TYPE_DOUBLE:
        return DOUBLES
    low, high = RANGES[field.type]
    return st.sampled_from([max(low, -1), 0, 1, 2, low, high])
