"""The bundle: slot id → RecordBatch. The meaning of the slots is defined in `slots.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from blake3 import blake3

from quiver.errors import InvalidBundleError
from quiver.html_tables import rows_html, section_html
from quiver.primitives.kernel import KERNEL
from quiver.slots import OTAP, OTAP_CONFIG_HASH, OTLP_SLOTS, QWP_SLOT, QWP_TABLE_KEY, SLOT_MAX, Adapter, BundleRef

__all__ = [
    "OTAP",
    "OTAP_CONFIG_HASH",
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

OTLP_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
OTLP_FINGERPRINT = blake3(b"otlp_binary_v1").digest()


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
