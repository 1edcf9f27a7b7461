"""What a store holds of a signal: whole export requests as they came, and tables, each to be seen as a view."""

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
"""Fewer rows than this are cheaper as one more request among others than as a batch of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTables:
    """
    The tables of one signal in a bundle.

    Attributes:
        tables: payload type → its rows, ids plain or as they travel.
        signal: logs, traces or metrics.
    """

    tables: Mapping[int, pa.RecordBatch]
    signal: str

    def try_request(self) -> bytes | Damage:
        """Return them as an export request, or why there is none."""
        restored = request_of_tables(self.tables, self.signal)
        return restored if isinstance(restored, Damage) else restored.data


def _signal(view: str) -> str:
    return "traces" if view == "spans" else view


def _is_root(batch: pa.RecordBatch | None) -> bool:
    return batch is not None and "resource" in batch.schema.names


def slots_of_view(view: str) -> tuple[int, ...]:
    """
    Return every slot that a bundle may keep the view's data in: that of whole requests, and those of its tables.

    Raises:
        UsageError: no such view.
    """
    signal = _signal(view_name(view))
    return (OTLP_SLOTS[signal], *sorted(SIGNALS[signal].payloads))


def stored_requests(batches: Mapping[int, pa.RecordBatch], view: str) -> Iterator[bytes | StoredTables | Damage]:
    """
    Yield what a bundle's slots hold of one signal, as `decode_groups` takes it: requests, tables when there are many
    rows in them, or why its tables are none.

    Slots of other signals are passed over; a bundle without this signal yields nothing. Tables are taken for such when
    the root says a resource for each row, as OTAP asks: whatever else uses the slot of a root stays what it is.

    Raises:
        UsageError: no such view.
    """
    name = view_name(view)
    whole = batches.get(VIEW_SLOTS[name])
    if whole is not None:
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
    """Return by view what it shows of a bundle's slots, and the slots that no view shows."""
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
