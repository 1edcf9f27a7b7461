"""
Conversions between OTLP export requests, OTAP tables and flat views: pure functions over bytes and Arrow.

======================  ==================================================================================
module                  purpose
======================  ==================================================================================
`stream/`               OTAP streams: decoding and encoding of their Arrow IPC messages (pure)
`tables/`               OTAP tables: conversion from and to OTLP requests (pure)
`views/`                flat views: one row per log record, span or data point (pure)
`stored.py`             `stored_requests`: the requests and tables of one signal in a bundle's slots
`request.py`            validation of a request, and an estimate of the size of its rows
`request_nesting.py`    a walk over nested messages: the number, times and sizes of a request's items
`request_times.py`      the range of event times in requests, without decoding the rest
`request_shapes.py`     the nesting of requests, by signal
`wire_schema.py`        protobuf descriptors reduced to the fields that a view shows
`any_values.py`         encoded attributes and values → keys and values by type
`nested_values.py`      arrays and maps inside values → another notation
`nested_cbor.py`        arrays and maps inside values → CBOR
`arrays.py`             building blocks for columns from decoded Arrow arrays
`bundles.py`            `from_otlp`, `iter_bundles`, `to_otlp`: requests ↔ bundles of OTAP tables
`record_split.py`       splitting of a request into smaller ones, between records
`conversion_errors.py`  the exception for failed conversions inside this package
======================  ==================================================================================
"""

from typing import TYPE_CHECKING

from quiver.lazy_names import lazy_names

if TYPE_CHECKING:
    from quiver.otap.bundles import from_otlp, iter_bundles, to_otlp
    from quiver.otap.request import ROWS_BYTES_MAX
    from quiver.otap.stored import slots_of_view
    from quiver.otap.stream.arrow_message import BatchStatus, StatusCode, decode_status, encode_status
    from quiver.otap.stream.decoder import ArrowBatch, StreamDecoder, StreamLimits
    from quiver.otap.stream.encoder import EncodedBatch, StreamEncoder
    from quiver.otap.views.schemas import TYPED_VALUE, VIEW_SLOTS, VIEWS, view_schema
    from quiver.otap.views.view import DecodedRequests, decode_groups, decode_requests, view
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "quiver.otap.stream.arrow_message": "BatchStatus StatusCode decode_status encode_status",
            "quiver.otap.bundles": "from_otlp iter_bundles to_otlp",
            "quiver.otap.request": "ROWS_BYTES_MAX",
            "quiver.otap.stored": "slots_of_view",
            "quiver.otap.stream.decoder": "ArrowBatch StreamDecoder StreamLimits",
            "quiver.otap.stream.encoder": "EncodedBatch StreamEncoder",
            "quiver.otap.views.schemas": "TYPED_VALUE VIEW_SLOTS VIEWS view_schema",
            "quiver.otap.views.view": "DecodedRequests decode_groups decode_requests view",
        },
        extra="otlp",
    )

__all__ = [
    "ROWS_BYTES_MAX",
    "TYPED_VALUE",
    "VIEWS",
    "VIEW_SLOTS",
    "ArrowBatch",
    "BatchStatus",
    "DecodedRequests",
    "EncodedBatch",
    "StatusCode",
    "StreamDecoder",
    "StreamEncoder",
    "StreamLimits",
    "decode_groups",
    "decode_requests",
    "decode_status",
    "encode_status",
    "from_otlp",
    "iter_bundles",
    "slots_of_view",
    "to_otlp",
    "view",
    "view_schema",
]
