"""
OTLP export requests ↔ bundles of OTAP tables.

A bundle has either the tables, in the slots of their payload types with plain ids, or the request in one slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from quiver.bundle import OTLP_SLOTS, Bundle
from quiver.errors import InvalidBundleError
from quiver.otap.conversion_errors import or_raise
from quiver.otap.tables.from_otlp import tables_of_request
from quiver.otap.tables.payload_schema import ROOT_ROWS_MAX, SIGNALS
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.otap.views.schemas import view_name

__all__ = ["from_otlp", "iter_bundles", "to_otlp"]


def from_otlp(data: bytes | memoryview, signal: str, *, ingested_at_ns: int | None = None) -> Bundle:
    """
    Convert an OTLP export request in protobuf to one bundle of tables with plain ids.

    Ids of log records, spans and metrics have 16 bits, so a bundle has at most 65,535 of them. `iter_bundles` has no
    such limit. A request without records becomes a bundle without slots.

    Tables cannot represent resources and scopes without records, nor entity references. To keep these, store the
    request itself.

    Raises:
        InvalidBundleError: the bytes are not such a request, a trace or span id has the wrong length, the rows would
            take too much memory, or the request needs more than one bundle.
        UsageError: no such signal.
    """
    bundles = list(iter_bundles(data, signal, ingested_at_ns=ingested_at_ns))
    if len(bundles) > 1:
        raise InvalidBundleError(
            f"a bundle has at most {ROOT_ROWS_MAX:,} records; this request needs {len(bundles)} bundles: "
            "use otap.iter_bundles"
        )
    return bundles[0] if bundles else Bundle({}, ingested_at_ns=ingested_at_ns)


def iter_bundles(data: bytes | memoryview, signal: str, *, ingested_at_ns: int | None = None) -> Iterator[Bundle]:
    """
    Convert an OTLP export request in protobuf to an iterator of bundles of tables, in the order of its records.

    Every bundle but the last has 65,535 records. A request without records yields no bundle.

    Raises:
        InvalidBundleError: as for `from_otlp`, but for any number of records. Raised by this call, not by the iterator.
        UsageError: no such signal.
    """
    converted = or_raise(tables_of_request(data, signal))
    return (Bundle(tables, ingested_at_ns=ingested_at_ns) for tables in converted.tables)


def to_otlp(bundle: Bundle, signal: str) -> bytes:
    """
    Convert a bundle's tables to an OTLP export request in protobuf.

    Ids may be plain or transport-encoded. If the bundle has the request itself, that is returned unchanged; several
    requests are concatenated, which merges them.

    Raises:
        InvalidBundleError: the slots have no tables of this signal, or invalid ones.
        UsageError: no such signal.
    """
    name = "traces" if view_name(signal) == "spans" else signal
    whole = OTLP_SLOTS[name]
    if whole in bundle:
        return b"".join(bundle[whole].column(0).to_pylist())
    batches: Mapping[int, pa.RecordBatch] = bundle.batches
    if not batches:
        return b""  # `from_otlp` returns such a bundle for a request without records
    if SIGNALS[name].root not in batches:
        raise InvalidBundleError(f"the bundle has no {name}: slots {', '.join(map(str, bundle.slots))}")
    return or_raise(request_of_tables(batches, name)).data
