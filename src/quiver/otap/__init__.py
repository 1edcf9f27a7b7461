"""
OTLP export requests, OTAP tables and flat views, each from the other: pure functions over bytes and Arrow.

======================  =======================================================================================
module                  purpose
======================  =======================================================================================
`stream/`               OTAP streams: Arrow IPC messages of a connection, decoded and encoded. Pure
`tables/`               OTAP tables: made from OTLP requests, and turned back into them. Pure
`views/`                Flat views: one row for each log record, span or data point. Pure
`stored.py`             `stored_requests`: what slots hold of a signal, whole or as tables
`request.py`            is it a request, and how large do its rows get?
`request_shapes.py`     how requests nest
`wire_schema.py`        message descriptions cut down to what a view shows
`any_values.py`         attributes and values as they stand on the wire → keys and arms
`nested_values.py`      arrays and maps inside them → another notation: `nested_json.py`, `nested_cbor.py`
`arrays.py`             building blocks of all these; `typed_arrays.py`
`bundles.py`            `from_otlp`, `iter_bundles`, `to_otlp`: requests ↔ bundles of OTAP tables
`record_split.py`       a request divided between records into smaller ones
`conversion_errors.py`  how conversion gives up inside this package
`nested_cbor.py`        Arrays and maps inside AnyValues → CBOR, as `cbor.encode_value` writes it for one value
======================  =======================================================================================
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
