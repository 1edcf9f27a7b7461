"""
Headers of a request, kept as attributes of its resources: so they are in the views, in tables and in whatever is
exported, without a place of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from quiver.otap.request import parse_request
from quiver.otap.request_shapes import SHAPES
from quiver.otap.views.schemas import view_name
from quiver.primitives.scan import Damage

__all__ = ["ATTRIBUTE_PREFIX", "add_headers"]

ATTRIBUTE_PREFIX = "http.request.header."
"""The semantic conventions' name for a request header, which is completed by its name in lower case."""


def add_headers(
    data: bytes, signal: str, headers: Iterable[tuple[str, str | bytes]], *, names: Collection[str]
) -> bytes | Damage:
    """
    Return the request with those of *headers* that *names* asks for on each of its resources.

    They stand in place of attributes that call themselves so: whoever wrote those was not asked. A header that came
    more than once is a list. Everything else of the request stays, unknown fields too.

    Raises:
        UsageError: no such signal.
    """
    read = parse_request(data, signal)
    if isinstance(read, Damage):
        return read
    message: Any = read.message
    values: dict[str, list[str]] = {f"{ATTRIBUTE_PREFIX}{name.lower()}": [] for name in names}
    for name, value in headers:
        texts = values.get(f"{ATTRIBUTE_PREFIX}{name.lower()}")
        if texts is not None:
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            texts.append(raw.decode("utf-8", "replace"))
    for resource_items in getattr(message, SHAPES[view_name(signal)].resources):
        attributes = resource_items.resource.attributes
        for index in reversed(range(len(attributes))):
            if attributes[index].key in values:
                del attributes[index]
        for key, texts in values.items():
            if len(texts) == 1:
                attributes.add(key=key).value.string_value = texts[0]
            elif texts:
                attributes.add(key=key).value.array_value.values.extend(AnyValue(string_value=text) for text in texts)
    written: bytes = message.SerializeToString(deterministic=True)
    return written
