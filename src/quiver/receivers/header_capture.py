"""Request headers stored as resource attributes: they appear in views, tables and exports without a separate place."""

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
"""The semantic conventions' prefix for a request header, followed by its lower-case name."""


def add_headers(
    data: bytes, signal: str, headers: Iterable[tuple[str, str | bytes]], *, names: Collection[str]
) -> bytes | Damage:
    """
    Return the request with the *headers* in *names* added to each of its resources.

    They replace attributes with the same names, because a client must not forge them. A repeated header becomes a list.
    The rest of the request is unchanged, including unknown fields.

    Raises:
        UsageError: the signal is unknown.
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
