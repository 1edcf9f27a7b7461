"""
OTLP export requests ↔ bundles of OTAP tables: what the store keeps of either.

A bundle holds the tables under their payload types, ids plain and marked as such, or the whole request in one slot.
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
    Return an OTLP export request in protobuf as one bundle of tables with plain ids.

    The ids of log records, spans and metrics have 16 bits, so a bundle holds at most 65,535 of them. `iter_bundles`
    has no such limit. A request without records gives a bundle without slots.

    Tables cannot hold resources and scopes without records, nor entity references. Store the request itself where
    these matter.

    Raises:
        InvalidBundleError: the bytes are not such a request, a trace or span id has the wrong length, the rows would
        take
            too much memory, or the request needs more than one bundle.
        UsageError: no such signal.
    """
    bundles = list(iter_bundles(data, signal, ingested_at_ns=ingested_at_ns))
    if len(bundles) > 1:
        raise InvalidBundleError(
            f"a bundle holds at most {ROOT_ROWS_MAX:,} records; this request needs {len(bundles)} bundles: "
            "use otap.iter_bundles"
        )
    return bundles[0] if bundles else Bundle({}, ingested_at_ns=ingested_at_ns)


def iter_bundles(data: bytes | memoryview, signal: str, *, ingested_at_ns: int | None = None) -> Iterator[Bundle]:
    """
    Return an iterator over an OTLP export request in protobuf as bundles of tables, in the order of its records.

    Every bundle but the last has 65,535 records. A request without records gives no bundle.

    Raises:
        InvalidBundleError: as `from_otlp`, except that the request may have any number of records. Raised by this call,
            not by the iterator.
        UsageError: no such signal.
    """
    converted = or_raise(tables_of_request(data, signal))
    return (Bundle(tables, ingested_at_ns=ingested_at_ns) for tables in converted.tables)


def to_otlp(bundle: Bundle, signal: str) -> bytes:
    """
    Return a bundle's tables as an OTLP export request in protobuf.

    Ids may be plain or as they travel. A bundle that holds the request itself gives it back as it came; of several,
    all of them, one behind the other, which is what protobuf calls merged.

    Raises:
        InvalidBundleError: the slots hold no tables of this signal, or tables that say nothing sound.
        UsageError: no such signal.
    """
    name = "traces" if view_name(signal) == "spans" else signal
    whole = OTLP_SLOTS[name]
    if whole in bundle:
        return b"".join(bundle[whole].column(0).to_pylist())
    batches: Mapping[int, pa.RecordBatch] = bundle.batches
    if not batches:
        return b""  # what `from_otlp` made of a request without records
    if SIGNALS[name].root not in batches:
        raise InvalidBundleError(f"the bundle has no {name}: slots {', '.join(map(str, bundle.slots))}")
    return or_raise(request_of_tables(batches, name)).data
