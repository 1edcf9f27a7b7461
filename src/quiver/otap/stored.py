"""The data of one signal in a bundle: export requests as they were received, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from quiver.bundle import OTLP_SLOTS
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.otap.views.schemas import VIEW_SLOTS, view_name
from quiver.primitives.scan import Damage

__all__ = ["StoredTables", "slots_of_view", "split_stored", "stored_requests"]

_ROWS_MIN = 64
"""Fewer rows than this are cheaper to decode as a request together with others than as separate tables."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTables:
    """
    The tables of one signal in a bundle.

    Attributes:
        tables: payload type → its rows, with plain or transport-encoded ids.
        signal: logs, traces or metrics.
    """

    tables: Mapping[int, pa.RecordBatch]
    signal: str

    def try_request(self) -> bytes | Damage:
        """Convert the tables to an export request, or return why they are invalid."""
        restored = request_of_tables(self.tables, self.signal)
        return restored if isinstance(restored, Damage) else restored.data


def _signal(view: str) -> str:
    return "traces" if view == "spans" else view


def _is_root(batch: pa.RecordBatch | None) -> bool:
    return batch is not None and "resource" in batch.schema.names


def slots_of_view(view: str) -> tuple[int, ...]:
    """
    Return the slots that may have the view's data: that of requests, and those of tables.

    Raises:
        UsageError: no such view.
    """
    signal = _signal(view_name(view))
    return (OTLP_SLOTS[signal], *sorted(SIGNALS[signal].payloads))


def stored_requests(batches: Mapping[int, pa.RecordBatch], view: str) -> Iterator[bytes | StoredTables | Damage]:
    """
    Yield the data of one signal in a bundle's slots, as `decode_groups` accepts it.

    These are requests, tables if they have many rows, or the reason why either is invalid. Slots of other signals are
    skipped. Tables are recognized by the resource that the root table has for each row, as OTAP requires; other batches
    in the slot of a root table are skipped.

    Raises:
        UsageError: no such view.
    """
    name = view_name(view)
    whole = batches.get(VIEW_SLOTS[name])
    if whole is not None and "data" not in whole.schema.names:
        yield Damage(0, f"slot {VIEW_SLOTS[name]} has no column data")
    elif whole is not None:
        for data in whole.column("data"):
            yield data.as_py()
    signal = _signal(name)
    root, payloads = SIGNALS[signal].root, SIGNALS[signal].payloads
    if _is_root(batches.get(root)):
        tables = StoredTables({payload: batches[payload] for payload in payloads if payload in batches}, signal)
        yield tables if batches[root].num_rows >= _ROWS_MIN and name != "metrics" else tables.try_request()


def split_stored(
    batches: Mapping[int, pa.RecordBatch],
) -> tuple[dict[str, list[bytes | StoredTables | Damage]], dict[int, pa.RecordBatch]]:
    """Return the slots of each view, and the slots that no view shows."""
    shown: dict[str, list[bytes | StoredTables | Damage]] = {}
    rest = dict(batches)
    for view, raw in VIEW_SLOTS.items():
        tables = SIGNALS[_signal(view)]
        slots = (raw, *tables.payloads) if _is_root(batches.get(tables.root)) else (raw,)
        found = list(stored_requests({slot: batches[slot] for slot in slots if slot in batches}, view))
        if found:
            shown[view] = found
        for slot in slots:
            rest.pop(slot, None)
    return shown, rest
