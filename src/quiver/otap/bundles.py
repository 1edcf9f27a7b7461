"""
OTLP export requests ↔ bundles of OTAP tables: what the store keeps of either.

A bundle holds the tables under their payload types, ids plain and marked as such, or the whole request in one slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from quiver.bundle import OTLP_SLOTS, Bundle
from quiver.errors import BundleInvalid
from quiver.otap.otlp_from_tables import request_of_tables
from quiver.otap.payload_schema import SIGNALS
from quiver.otap.tables_from_otlp import tables_of_request
from quiver.otap.view_schema import view_name
from quiver.primitives.scan import Damage

__all__ = ["from_otlp", "to_otlp"]


def from_otlp(data: bytes | memoryview, signal: str, *, ingested_at_ns: int | None = None) -> tuple[Bundle, ...]:
    """
    Return an OTLP export request in protobuf as bundles of tables: one, several when there are more records than
    16-bit ids, none when there are no records.

    Resources and scopes without records, and references to entities, have no place in tables; where they must be
    kept, keep the request itself.

    Raises:
        BundleInvalid: the bytes are no such request, an id has a length that tables have no room for, or its rows
            would take too much.
        WrongUse: no such signal.
    """
    converted = tables_of_request(data, signal)
    if isinstance(converted, Damage):
        raise BundleInvalid(converted.reason)
    return tuple(Bundle(tables, ingested_at_ns=ingested_at_ns) for tables in converted.tables)


def to_otlp(bundle: Bundle, signal: str) -> bytes:
    """
    Return a bundle's tables as an OTLP export request in protobuf.

    Ids may be plain or as they travel. A bundle that holds the request itself gives it back as it came; of several,
    all of them, one behind the other, which is what protobuf calls merged.

    Raises:
        BundleInvalid: the slots hold no tables of this signal, or tables that say nothing sound.
        WrongUse: no such signal.
    """
    name = "traces" if view_name(signal) == "spans" else signal
    whole = OTLP_SLOTS[name]
    if whole in bundle:
        return b"".join(bundle[whole].column(0).to_pylist())
    batches: Mapping[int, pa.RecordBatch] = bundle.batches
    if SIGNALS[name].root not in batches:
        raise BundleInvalid(f"the bundle has no {name}: slots {', '.join(map(str, bundle.slots))}")
    restored = request_of_tables(batches, name)
    if isinstance(restored, Damage):
        raise BundleInvalid(restored.reason)
    return restored.data
