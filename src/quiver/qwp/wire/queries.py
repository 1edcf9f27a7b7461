"""
The part of the query protocol for a server that answers no queries: identify itself, and refuse each query.

::

    first message       header, then u8 0x18, u8 role, u64 epoch, u32 capabilities, i64 nanoseconds since 1970,
                        u16 length and name of the cluster, u16 length and name of the node
    query failed        header, then u8 0x13, i64 request, u8 status, u16 length, text
    query               header or none, then u8 0x10, i64 request, then its content
    cancel, continue    header or none, then u8 0x14 or 0x15, i64 request, and more

Clients that pool connections for writes and queries open both kinds before they send a row.
"""

from __future__ import annotations

import struct

from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.qwp.wire.message import MESSAGE_HEADER, MESSAGE_MAGIC, MESSAGE_VERSION
from quiver.qwp.wire.responses import ERROR_TEXT_BYTES_MAX

__all__ = ["decode_query", "encode_query_error", "encode_server_info"]

_SERVER_INFO, _QUERY_ERROR, _QUERY, _CANCEL, _CREDIT = 0x18, 0x13, 0x10, 0x14, 0x15
_INFO = struct.Struct("<BBQIq")
_ERROR = struct.Struct("<BqBH")
_REQUEST = struct.Struct("<Bq")
_LENGTH = struct.Struct("<H")
_STANDALONE = 0


def encode_server_info(now_ns: int, node: str) -> bytes:
    """Return the first message to a query client: it describes a single server, called *node*."""
    name = node.encode()
    return _message(
        _INFO.pack(_SERVER_INFO, _STANDALONE, 0, 0, now_ns) + _LENGTH.pack(0) + _LENGTH.pack(len(name)) + name
    )


def encode_query_error(request: int, status: int, text: str) -> bytes:
    """Return the answer that ends the query *request*; a long text is truncated between two characters."""
    data = text.encode()[:ERROR_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return _message(_ERROR.pack(_QUERY_ERROR, request, status, len(data)) + data)


def decode_query(view: memoryview) -> Answer[int | None]:
    """Return the request number of the query *view*, or None if it is not a query."""
    start = MESSAGE_HEADER.size if view[:4] == MESSAGE_MAGIC else 0
    if len(view) - start < _REQUEST.size:
        return NeedMore(_REQUEST.size - (len(view) - start))
    kind, request = _REQUEST.unpack_from(view, start)
    if kind not in {_QUERY, _CANCEL, _CREDIT}:
        return Damage(start, f"unknown kind of message {kind:#04x}")
    return Frame(request if kind == _QUERY else None, len(view))


def _message(payload: bytes) -> bytes:
    return MESSAGE_HEADER.pack(MESSAGE_MAGIC, MESSAGE_VERSION, 0, 0, len(payload)) + payload
