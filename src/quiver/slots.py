"""
Slots: the adapters that define their meaning, and the address of a bundle.

A bundle has at most 64 slots, numbered 0 to 63. Each integration defines the meaning of its numbers: an `Adapter` has
the slot table, and every WAL file contains a digest of that table, so that a log is never read with another one.

Without Arrow: settings name slots, and the supervisor of a pipeline, which validates them, does not load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from blake3 import blake3

from quiver.errors import InvalidBundleError

__all__ = [
    "OTAP",
    "OTAP_CONFIG_HASH",
    "OTLP_SLOTS",
    "QWP_SLOT",
    "QWP_TABLE_KEY",
    "SLOT_MAX",
    "Adapter",
    "BundleRef",
]

SLOT_MAX = 63
"""The slot bitmap of a WAL entry has 64 bits."""

OTAP_CONFIG_HASH = b"QUIVER_SEGCFG\0\0\0"
"""The constant that the released Rust engine writes instead of a digest; the `otap` profile writes it, too."""


class BundleRef(NamedTuple):
    """The address of a sealed bundle: segment number, and index within the segment."""

    segment: int
    index: int  # type: ignore[assignment] # hides a method of tuple that is not used here

    def __str__(self) -> str:
        return f"{self.segment}:{self.index}"


@dataclass(frozen=True)
class Adapter:
    """
    An integration's slot table. Slot names work wherever slot ids do.

    Attributes:
        name: who the table belongs to; part of the digest.
        slots: slot id (0 to 63) → slot name.
        signals: slot id → the signal that the slot's data belongs to; slots that any signal may use are left out.
        item_slots: those in which each row is one item of its signal: a log record, a span, a data point.
    """

    name: str
    slots: Mapping[int, str]
    signals: Mapping[int, str] = field(default_factory=dict)
    item_slots: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for slot in self.slots:
            if not 0 <= slot <= SLOT_MAX:
                raise InvalidBundleError(f"adapter {self.name!r}: slot {slot} is not in 0..{SLOT_MAX}")
        if len(set(self.slots.values())) != len(self.slots):
            raise InvalidBundleError(f"adapter {self.name!r}: two slots have the same name")
        object.__setattr__(self, "slots", MappingProxyType(dict(sorted(self.slots.items()))))
        object.__setattr__(self, "signals", MappingProxyType(dict(self.signals)))

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        """Slot name → slot id."""
        return MappingProxyType({name: slot for slot, name in self.slots.items()})

    @cached_property
    def config_hash(self) -> bytes:
        """
        The 16 bytes in a WAL header: a truncated BLAKE3 digest of the slot table.

        Covers the adapter's name, each slot id with its name in ascending order, the slot order within an entry
        and the entry checksum, but no tunable setting.
        """
        table = "".join(f"{slot}={name}\n" for slot, name in self.slots.items())
        contract = f"quiver adapter v1\n{self.name}\n{table}order=ascending\nchecksum=crc32\n"
        return blake3(contract.encode()).digest(length=16)

    def signals_of(self, slots: Iterable[int]) -> tuple[str, ...]:
        """Return the signals that *slots* belong to, in alphabetical order."""
        return tuple(sorted({self.signals[slot] for slot in slots if slot in self.signals}))

    def item_count(self, row_counts: Mapping[int, int]) -> int | None:
        """
        Return the number of items, given the row count of each slot.

        None if rows do not determine it: a signal without an item slot, as in complete OTLP requests.
        """
        items = [slot for slot in row_counts if slot in self.item_slots]
        opaque = any(row_counts.get(slot) for slot in OTLP_SLOTS.values())
        if not items or opaque or self.signals_of(items) != self.signals_of(row_counts):
            return None
        return sum(row_counts[slot] for slot in items)

    def slot(self, key: int | str) -> int:
        """
        Return the slot id for an id or a name.

        Raises:
            InvalidBundleError: the slot does not exist.
        """
        if isinstance(key, str):
            slot = self.by_name.get(key)
            if slot is None:
                known = ", ".join(self.by_name)
                raise InvalidBundleError(f"adapter {self.name!r} has no slot named {key!r}; it has {known}")
            return slot
        if not 0 <= key <= SLOT_MAX:
            raise InvalidBundleError(f"slot {key} is not in 0..{SLOT_MAX}")
        return key


OTLP_SLOTS = MappingProxyType({"logs": 60, "traces": 61, "metrics": 62})
"""Signal → the slot that holds whole OTLP export requests of it, one row a request."""

QWP_SLOT = 50
"""The slot of all tables that came over QWP."""
QWP_TABLE_KEY = b"qwp.table"
"""Schema metadata: the name of such a table."""

OTAP = Adapter(
    "otap",
    {
        1: "resource_attrs", 2: "scope_attrs",
        10: "univariate_metrics", 11: "number_data_points", 12: "summary_data_points",
        13: "histogram_data_points", 14: "exp_histogram_data_points", 15: "number_dp_attrs",
        16: "summary_dp_attrs", 17: "histogram_dp_attrs", 18: "exp_histogram_dp_attrs",
        19: "number_dp_exemplars", 20: "histogram_dp_exemplars", 21: "exp_histogram_dp_exemplars",
        22: "number_dp_exemplar_attrs", 23: "histogram_dp_exemplar_attrs",
        24: "exp_histogram_dp_exemplar_attrs", 25: "multivariate_metrics", 26: "metric_attrs",
        30: "logs", 31: "log_attrs",
        40: "spans", 41: "span_attrs", 42: "span_events", 43: "span_links",
        44: "span_event_attrs", 45: "span_link_attrs",
        60: "otlp_logs", 61: "otlp_traces", 62: "otlp_metrics",
    },
    signals={
        **dict.fromkeys((30, 31, 60), "logs"),
        **dict.fromkeys((40, 41, 42, 43, 44, 45, 61), "traces"),
        **dict.fromkeys((*range(10, 27), 62), "metrics"),
    },
    item_slots=frozenset({30, 40, 11, 12, 13, 14}),
)  # fmt: skip
"""The default adapter: OTAP payload types by their protocol numbers, and whole OTLP requests."""
