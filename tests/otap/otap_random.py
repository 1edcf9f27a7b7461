"""Random export requests: fields set by a seeded generator through protobuf reflection."""

import random

from google.protobuf.descriptor import FieldDescriptor as Field
from otap_oracle import REQUESTS

SKIPPED = {"key_strindex", "string_value_strindex", "entity_refs"}
INT64 = {Field.TYPE_INT64, Field.TYPE_SFIXED64, Field.TYPE_SINT64}
SIGNED = {Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_SFIXED32, Field.TYPE_ENUM}


WIDTHS = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}


def random_request(view: str, seed: int) -> bytes:
    generator = random.Random(seed)
    request = REQUESTS[view]()
    _fill(request, generator, 0)
    return request.SerializeToString()


def carried_request(view: str, seed: int) -> bytes:
    """Return a request with records whose ids have valid lengths."""
    generator = random.Random(seed)
    request = REQUESTS[view]()
    while not request.ByteSize() or not _records(request):
        request.Clear()
        _fill(request, generator, 0)
    _widen(request, generator)
    return request.SerializeToString()


def _records(request) -> int:
    return sum(
        len(getattr(scope, scope.DESCRIPTOR.fields[1].name))
        for resource in getattr(request, request.DESCRIPTOR.fields[0].name)
        for scope in getattr(resource, resource.DESCRIPTOR.fields[1].name)
    )


def _widen(message, generator) -> None:
    for field, value in message.ListFields():
        if field.name in WIDTHS:
            width = WIDTHS[field.name]
            setattr(message, field.name, generator.choice([b"", bytes(width), generator.randbytes(width)]))
        elif field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                _widen(inner, generator)


def _scalar(field, generator):
    if field.type == Field.TYPE_STRING:
        return generator.choice(["", "a", "k1", "k2", "ünï\0", "x" * 40, '"\\\n'])
    if field.type == Field.TYPE_BYTES:
        return generator.randbytes(generator.choice([0, 1, 8, 16]))
    if field.type == Field.TYPE_BOOL:
        return generator.random() < 0.5
    if field.type == Field.TYPE_DOUBLE:
        return generator.choice([0.0, -0.0, 1.5, 1e300, float("inf"), float("-inf"), 1 / 3])
    if field.type in INT64:
        return generator.choice([0, 1, -1, 2**63 - 1, -(2**63)])
    if field.type in SIGNED:
        return generator.choice([0, 1, 2, 9, -5, 2**31 - 1])
    if field.type in {Field.TYPE_UINT32, Field.TYPE_FIXED32}:
        return generator.choice([0, 1, 2**32 - 1])
    return generator.choice([0, 1, 999, 1000, 1_700_000_000_123_456_789, 2**63 - 1, 2**63, 2**64 - 1])


def _fill(message, generator, depth) -> None:
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in SKIPPED]
    for field in fields:
        if generator.random() < 0.25:
            continue
        if field.message_type is None:
            if field.is_repeated:
                getattr(message, field.name).extend(_scalar(field, generator) for _ in range(generator.randrange(4)))
            else:
                setattr(message, field.name, _scalar(field, generator))
        elif field.is_repeated:
            for _ in range(generator.choice([0, 1, 1, 2, 3]) if depth < 9 else 0):
                _fill(getattr(message, field.name).add(), generator, depth + 1)
        elif depth < 12:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), generator, depth + 1)
