"""
OTLP export requests, OTAP tables and flat views, each from the other: pure functions over bytes and Arrow.

======================  ==========================================================================
file                    purpose
======================  ==========================================================================
`views.py`              `view`, `decode_requests`, `decode_groups`: requests → rows
`view_schemas.py`       the columns of the views `logs`, `spans`, `metrics`
`columnar_tables.py`    tables → columns without a request between
`stored.py`             `stored_requests`: what slots hold of a signal, whole or as tables
`request.py`            is it a request, and how large do its rows get?
`request_shapes.py`     how requests nest
`wire_schema.py`        message descriptions cut down to what a view shows
`columnar.py`           requests → columns without an object per record; `columnar_records.py`, `columnar_metrics.py`
`any_values.py`         attributes and values as they stand on the wire → keys and arms
`nested_values.py`      arrays and maps inside them → another notation: `nested_json.py`, `nested_cbor.py`
`arrays.py`             building blocks of all these; `typed_arrays.py`
`columns.py`            the same from protobuf objects, for what is odd; `logs.py`, `spans.py`, `metrics.py`
`bundles.py`            `from_otlp`, `iter_bundles`, `to_otlp`: requests ↔ bundles of OTAP tables
`payload_schema.py`     the tables of OTAP, their columns and how they hang together
`columnar_payloads.py`  requests → tables with plain ids, without an object per record
`tables_from_otlp.py`   the same, and from protobuf objects what is odd; `otlp_from_tables.py` the way back
`table_digest.py`       `digest_of_tables`: were these tables sent before?
`payload_arrays.py`     one table ↔ lists: defaults left out, dictionaries
`cbor.py`               nested values in tables; `cbor_columns.py`: are many of them sound?
`stream_decoder.py`     `StreamDecoder`: messages of an OTAP stream → tables; `stream_encoder.py` the sender
`stream_dictionaries.py`  its dictionaries: validated once, kept as far as they are used
`sound_tables.py`       `check_tables`: will a request and rows come out of these tables?
`transport_ids.py`      ids as they travel → plain; `transport_order.py` the way back, sorted
`arrow_message.py`      the protobuf messages of a stream; `ipc_pieces.py`: the lengths inside them
`record_split.py`       a request divided between records into smaller ones
`refused.py`            how conversion gives up inside this package
======================  ==========================================================================
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
