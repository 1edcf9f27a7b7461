"""
The bundle: slot id → RecordBatch, and the adapter that defines the meaning of the slots.

A bundle has at most 64 slots, numbered 0 to 63. Each integration defines the meaning of its numbers: an `Adapter` has
the slot table, and every WAL file contains a digest of that table, so that a log is never read with another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa
from blake3 import blake3

from quiver.errors import InvalidBundleError
from quiver.html_tables import rows_html, section_html
from quiver.primitives.kernel import KERNEL

__all__ = [
    "OTAP",
    "OTLP_FINGERPRINT",
    "OTLP_SCHEMA",
    "OTLP_SLOTS",
    "QWP_SLOT",
    "QWP_TABLE_KEY",
    "SLOT_MAX",
    "Adapter",
    "Bundle",
    "BundleRef",
    "batch_bytes",
    "complete_batch",
    "has_unions",
    "lacks_offsets",
    "schema_fingerprint",
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

OTLP_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
OTLP_FINGERPRINT = blake3(b"otlp_binary_v1").digest()

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


def _describe(field: pa.Field) -> str:
    kind = field.type
    children = ""
    if pa.types.is_dictionary(kind):
        inner = pa.field("values", kind.value_type)
        children = f"dictionary[{kind.index_type},{kind.ordered},{_describe(inner)}]"
    elif kind.num_fields and hasattr(kind, "field"):
        parts = ",".join(_describe(kind.field(i)) for i in range(kind.num_fields))
        children = f"{kind.id}[{parts}]{kind}"
    else:
        children = str(kind)
    metadata = sorted((field.metadata or {}).items())
    return f"{field.name!r}:{children}:{'null' if field.nullable else 'value'}:{metadata!r}"


def schema_fingerprint(schema: pa.Schema) -> bytes:
    """
    Return a 32-byte BLAKE3 digest of everything that distinguishes two schemas.

    Names, order, types with units and zones, nullability and metadata count, at every depth, so two batches
    with the same fingerprint can always share a stream. The value depends only on the schema, not on its writer.
    """
    if schema.equals(OTLP_SCHEMA, check_metadata=True):
        return OTLP_FINGERPRINT
    metadata = sorted((schema.metadata or {}).items())
    text = "\n".join(_describe(field) for field in schema) + f"\n{metadata!r}"
    return blake3(text.encode()).digest()


def has_unions(schema: pa.Schema) -> bool:
    """Return whether a column of *schema* is, or contains, a union."""
    return any(_contains_union(field.type) for field in schema)


def _contains_union(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _contains_union(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _contains_union(kind.storage_type)
    return pa.types.is_union(kind) or any(_contains_union(kind.field(at).type) for at in range(kind.num_fields))


def lacks_offsets(batch: pa.RecordBatch) -> bool:
    """
    Return whether an empty array in *batch* has no offsets, as the elements of a list that is empty in every row.

    Arrow allows that and considers the batch valid. Arrow in Java writes such batches before version 19.
    """
    return any(
        _lacks_offsets(batch.column(at))
        for at, kind in enumerate(batch.schema.types)
        if not batch.num_rows or kind.num_fields or isinstance(kind, (pa.DictionaryType, pa.BaseExtensionType))
    )


_LISTS = (pa.ListArray, pa.LargeListArray)  # a map is a list, too
_WITH_OFFSETS = (*_LISTS, pa.StringArray, pa.BinaryArray, pa.LargeStringArray, pa.LargeBinaryArray)


def _lacks_offsets(array: pa.Array) -> bool:
    if not len(array) and isinstance(array, _WITH_OFFSETS) and not array.buffers()[1]:
        return True
    if isinstance(array, pa.StructArray):
        return any(_lacks_offsets(array.field(at)) for at in range(array.type.num_fields))
    if isinstance(array, (*_LISTS, pa.FixedSizeListArray)):
        return _lacks_offsets(array.values)
    if isinstance(array, pa.DictionaryArray):
        return _lacks_offsets(array.dictionary)
    return isinstance(array, pa.ExtensionArray) and _lacks_offsets(array.storage)


def complete_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return *batch* if no array in it `lacks_offsets`, otherwise a copy that has them."""
    return batch.take(pa.array(range(batch.num_rows), pa.int64())) if lacks_offsets(batch) else batch


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of *batch*: of its visible rows; of its complete buffers if it has unions or `lacks_offsets`."""
    # `nbytes` reads the offsets of empty arrays and takes the process down if there are none. Of a union without rows,
    # Arrow itself leaves out the buffers when it reads one.
    is_safe = not has_unions(batch.schema) and not lacks_offsets(batch)
    size: int = batch.nbytes if is_safe else batch.get_total_buffer_size()
    return size


class _FieldsInPython:
    """The fields of a bundle. The reference for `BundleFields` of the kernel, which has no garbage collection."""

    __slots__ = ("_known", "_nbytes", "_only", "_only_slot", "adapter", "ingested_at_ns", "named")

    _known: dict[int, pa.RecordBatch] | None
    """All slots, ascending; None while only `_only_slot` and `_only` are known."""
    _only_slot: int | None
    """Of a bundle that was read and has a single slot: the slot."""
    _only: pa.RecordBatch | None
    """Of a bundle that was read and has a single slot: its batch."""
    _nbytes: int
    """-1: not counted yet."""
    adapter: Adapter
    ingested_at_ns: int | None
    named: bool
    """True when a slot was given by name: such a bundle belongs to a store with the same adapter."""

    @classmethod
    def each_of_read(
        cls, slot: int, batches: Iterable[pa.RecordBatch], times_ns: Iterable[int | None], adapter: Adapter, /
    ) -> Iterator[Self]:
        """
        Iterate over bundles that were read from a store, one for each of *batches* and *times_ns*, with it in *slot*.

        A time is requested after its batch. The assignments are written out because a call for each bundle costs more.
        """
        new = cls.__new__
        for batch, ingested_at_ns in zip(batches, times_ns, strict=False):
            bundle = new(cls)
            bundle._known = None  # noqa: SLF001 - its own class
            bundle._only_slot = slot  # noqa: SLF001 - its own class
            bundle._only = batch  # noqa: SLF001 - its own class
            bundle._nbytes = -1  # noqa: SLF001 - its own class
            bundle.adapter = adapter
            bundle.ingested_at_ns = ingested_at_ns
            bundle.named = False
            yield bundle


if TYPE_CHECKING or KERNEL is None:
    _BundleFields = _FieldsInPython
else:
    _BundleFields = KERNEL.BundleFields
    _BundleFields.__slots__ = _FieldsInPython.__slots__  # for `copy.copy`


class Bundle(_BundleFields):
    """
    An immutable set of slots, each with one RecordBatch.

    Args:
        slots: slot id or slot name → RecordBatch. Names are those of *adapter*.
        ingested_at_ns: nanoseconds since the epoch; None lets the store stamp it on ingest.
        adapter: the slot table that names are looked up in.

    Raises:
        InvalidBundleError: a slot is unknown, given twice, or does not hold a RecordBatch.
    """

    __slots__ = ()

    def __init__(
        self,
        slots: Mapping[int | str, pa.RecordBatch] | Mapping[int, pa.RecordBatch] | Mapping[str, pa.RecordBatch],
        *,
        ingested_at_ns: int | None = None,
        adapter: Adapter = OTAP,
    ) -> None:
        resolved: dict[int, pa.RecordBatch] = {}
        named = False
        known = adapter.slot
        for key, batch in slots.items():
            slot = known(key)
            named = named or slot is not key
            if slot in resolved:
                raise InvalidBundleError(f"slot {slot} is given twice")
            if not isinstance(batch, pa.RecordBatch):
                raise InvalidBundleError(f"slot {slot} holds a {type(batch).__name__}, not a pyarrow.RecordBatch")
            resolved[slot] = batch
        if len(resolved) > 1:
            resolved = dict(sorted(resolved.items()))
        self._known = resolved
        self._only_slot = self._only = None
        self._nbytes = -1
        self.adapter = adapter
        self.ingested_at_ns = ingested_at_ns
        self.named = named

    @classmethod
    def of_read(cls, slots: dict[int, pa.RecordBatch], ingested_at_ns: int | None, adapter: Adapter) -> Self:
        """Return a bundle that was read from a store. Slot ids must ascend; *slots* is neither checked nor copied."""
        bundle = cls.__new__(cls)
        bundle._known = slots  # noqa: SLF001 - its own class
        bundle._only_slot = bundle._only = None  # noqa: SLF001
        bundle._nbytes = -1  # noqa: SLF001
        bundle.adapter = adapter
        bundle.ingested_at_ns = ingested_at_ns
        bundle.named = False
        return bundle

    @property
    def _slots(self) -> dict[int, pa.RecordBatch]:
        slots = self._known
        if slots is None:
            slots = self._known = {} if self._only_slot is None else {self._only_slot: self._only}
        return slots

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot ids present, ascending."""
        return tuple(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of Arrow data, as `batch_bytes` counts them."""
        if self._nbytes < 0:
            self._nbytes = sum(map(batch_bytes, self._slots.values()))
        return self._nbytes

    @property
    def batches(self) -> Mapping[int, pa.RecordBatch]:
        """Slot id → RecordBatch, ascending, read-only."""
        return MappingProxyType(self._slots)

    def __getitem__(self, key: int | str) -> pa.RecordBatch:
        if key == self._only_slot:
            return self._only
        batch = self._slots.get(key)  # type: ignore[arg-type] # a name is not there, and looked up
        if batch is None:
            slot = self.adapter.slot(key)
            batch = self._slots.get(slot)
            if batch is None:
                there = ", ".join(map(self._describe_slot, self._slots)) or "none"
                raise KeyError(f"this bundle has no slot {self._describe_slot(slot)}; it has {there}")
        return batch

    def _describe_slot(self, slot: int) -> str:
        name = self.adapter.slots.get(slot)
        return str(slot) if name is None else f"{slot} ({name})"

    def __contains__(self, key: int | str) -> bool:
        return self.adapter.slot(key) in self._slots

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bundle):
            return NotImplemented
        return self.slots == other.slots and all(
            batch.equals(other[slot], check_metadata=True) for slot, batch in self._slots.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        rows = [
            {
                "slot": slot,
                "rows": batch.num_rows,
                "size_bytes": batch_bytes(batch),
                "columns": ", ".join(batch.schema.names),
            }
            for slot, batch in self._slots.items()
        ]
        return section_html("Bundle", rows_html(rows))

    def __repr__(self) -> str:
        inside = ", ".join(f"{slot}: {batch.num_rows} rows" for slot, batch in self._slots.items())
        return f"Bundle({{{inside}}})"
