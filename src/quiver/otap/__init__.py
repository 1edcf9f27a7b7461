"""
OTLP export requests as flat tables: pure functions over bytes and Arrow.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`views.py`              `view`, `decode_requests`, `decode_groups`: requests → rows
`view_schema.py`        the columns of the views `logs`, `spans`, `metrics`
`request.py`            is it a request, and how large do its rows get?
`request_shapes.py`     how requests nest
`wire_schema.py`        message descriptions cut down to what a view shows
`columnar.py`           requests → columns without an object per record; `columnar_records.py`, `columnar_metrics.py`
`arrays.py`             its building blocks; `typed_arrays.py`, `nested_json.py`
`columns.py`            the same from protobuf objects, for what is odd; `logs.py`, `spans.py`, `metrics.py`
======================  ==========================================================================
"""

from quiver.otap.request import ROWS_BYTES_MAX, Request, parse_request
from quiver.otap.view_schema import TYPED_VALUE, VIEW_SLOTS, VIEWS, view_schema
from quiver.otap.views import DecodedRequests, decode_groups, decode_requests, view

__all__ = [
    "ROWS_BYTES_MAX",
    "TYPED_VALUE",
    "VIEWS",
    "VIEW_SLOTS",
    "DecodedRequests",
    "Request",
    "decode_groups",
    "decode_requests",
    "parse_request",
    "view",
    "view_schema",
]
