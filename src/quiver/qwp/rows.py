"""
Rows of Python values, buffered until a flush and then packed column by column.

A row is validated when it is added, by the types of its values: each combination of names and types is examined once
(`_Plan`) and then recognized. The buffer holds the tuples of values. At a flush, `zip` turns them into columns, and
`struct`, numpy and Arrow encode each column in one call.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import itertools
import struct
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.errors import UsageError
from quiver.qwp.row_checks import RowCheck, row_check
from quiver.qwp.values import Char, DateMillis, Geohash, Long256, TimestampMicros, TimestampNanos
from quiver.qwp.wire.column_types import DECIMAL_BYTES, ColumnType
from quiver.qwp.wire.columns import (
    ColumnData,
    array_column,
    boolean_column,
    bytes_column,
    decimal_column,
    fixed_column,
    geohash_column,
    symbol_column,
)
from quiver.qwp.wire.message import COLUMNS_MAX, TableData

__all__ = ["At", "RowTable"]

At = int | datetime.datetime | TimestampNanos | TimestampMicros | None
"""The timestamp of a row: nanoseconds since the epoch, a datetime, or None for the server's clock."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_NO_ZONE = "at: the datetime has no time zone; add one, or pass nanoseconds since the epoch"
_EXACT = Context(prec=200)
_DIGITS_MAX = 76
_FORBIDDEN = frozenset("\r\n?,'\"\\/:)(+*%~\ufeff\0")

_TYPES: dict[type, ColumnType] = {
    bool: ColumnType.BOOLEAN, int: ColumnType.LONG, float: ColumnType.DOUBLE, str: ColumnType.VARCHAR,
    bytes: ColumnType.BINARY, bytearray: ColumnType.BINARY, memoryview: ColumnType.BINARY,
    Decimal: ColumnType.DECIMAL256, datetime.datetime: ColumnType.TIMESTAMP, datetime.date: ColumnType.DATE,
    uuid.UUID: ColumnType.UUID, ipaddress.IPv4Address: ColumnType.IPV4, TimestampNanos: ColumnType.TIMESTAMP_NANOS,
    TimestampMicros: ColumnType.TIMESTAMP, DateMillis: ColumnType.DATE, Long256: ColumnType.LONG256,
    Char: ColumnType.CHAR, Geohash: ColumnType.GEOHASH, np.bool_: ColumnType.BOOLEAN, np.float64: ColumnType.DOUBLE,
    np.float32: ColumnType.DOUBLE, np.int64: ColumnType.LONG, np.int32: ColumnType.LONG, np.int16: ColumnType.LONG,
    np.int8: ColumnType.LONG, np.uint8: ColumnType.LONG, np.uint16: ColumnType.LONG, np.uint32: ColumnType.LONG,
    np.str_: ColumnType.VARCHAR,
}  # fmt: skip
_VARIABLE = frozenset({ColumnType.BINARY, ColumnType.DOUBLE_ARRAY, ColumnType.LONG_ARRAY})


@dataclass(slots=True)
class _Slot:
    """One column of the current table."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class _Plan:
    """The analysis of one combination of names and types. Lists are compared with those of a row, in its order."""

    symbols: list[str]
    named: list[str]
    types: list[type]
    columns: tuple[str, ...]  # the column of each value of a row, its designated timestamp last
    nulls: frozenset[str]  # columns with a missing value
    whole_numbers: tuple[int, ...]  # positions of values that must fit into 64 bits
    texts: tuple[int, ...]  # positions of values that must be valid UTF-8
    variable: tuple[int, ...]  # positions of other values of variable size
    kinds: tuple[ColumnType | None, ...]
    needs_zone: bool
    fixed_bytes: int
    check: RowCheck  # for most rows like this one


@dataclass(slots=True)
class _Run:
    """Consecutive rows with the same columns; `nulls` are the columns in which values may be missing."""

    columns: tuple[str, ...]
    nulls: frozenset[str] = frozenset()
    rows: list[tuple[Any, ...]] = field(default_factory=list)


class RowTable:
    """
    The rows of one table since the last flush.

    Args:
        name: the name of the table.
        name_bytes_max: the maximum length of names.

    Attributes:
        check, last: a caller may add a row like the previous one with `check` to the list `last`; see `RowCheck`.
            Both change with `append`.
    """

    def __init__(self, name: str, *, name_bytes_max: int = 127) -> None:
        check_name("table", name, name_bytes_max)
        self.name = name
        self._name_bytes_max = name_bytes_max
        self._slots: dict[str, _Slot] = {}  # lower-case name → column; "" is the designated timestamp
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._plan: _Plan | None = None  # of the previous row; most rows are like the one before
        self._runs: list[_Run] = []
        self.check: RowCheck = _no_check
        self.last: list[tuple[Any, ...]] = []

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(len(run.rows) for run in self._runs)

    def append(self, symbols: Mapping[str, str | None], columns: Mapping[str, Any], at: At, *, bytes_max: int) -> int:
        """
        Add one row. Return its approximate size in bytes.

        Raises:
            UsageError: a name or a value cannot be sent, or the row alone exceeds *bytes_max* bytes. The row is not
                buffered.
        """
        size = self.check(symbols, columns, at, bytes_max, self.last)
        if size:
            return size
        values = (*symbols.values(), *columns.values(), at)
        plan = self._plan
        new: dict[str, _Slot] | None = None
        if plan is None or [*map(type, values)] != plan.types or [*columns] != plan.named or [*symbols] != plan.symbols:
            plan, new = self._plan_for(symbols, columns, at)
        for position in plan.whole_numbers:
            value = values[position]
            if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
                raise UsageError(f"column {plan.columns[position]}: {value} does not fit into 64 bits")
        size = plan.fixed_bytes
        for position in plan.texts:
            value = values[position]
            size += len(value) if value.isascii() else _text_bytes(plan.columns[position], value)
        if plan.variable:
            values, more = _own(plan, values)
            size += more
        if plan.needs_zone and at.tzinfo is None:  # type: ignore[union-attr]
            raise UsageError(_NO_ZONE)
        if size > bytes_max:
            raise UsageError(
                f"table {self.name}: the row has about {size} bytes; a segment and the server take at most {bytes_max}"
            )
        if new is not None:
            self._follow(plan, new)
        self._runs[-1].rows.append(values)
        return size

    def _follow(self, plan: _Plan, new: dict[str, _Slot]) -> None:
        """Use *plan* for the following rows, with the *new* columns that it adds."""
        self._plans[(*plan.symbols, None, *plan.named, *plan.types)] = plan
        self._slots.update(new)
        self._plan = plan
        if not self._runs or self._runs[-1].columns != plan.columns:
            self._runs.append(_Run(plan.columns))
        self._runs[-1].nulls |= plan.nulls
        self.check, self.last = plan.check, self._runs[-1].rows

    def _plan_for(
        self, symbols: Mapping[str, Any], columns: Mapping[str, Any], at: At
    ) -> tuple[_Plan, dict[str, _Slot]]:
        types = [type(value) for value in (*symbols.values(), *columns.values(), at)]
        known = self._plans.get((*symbols, None, *columns, *types))
        if known is not None:
            return known, {}
        if not symbols and not columns:
            raise UsageError(f"table {self.name}: a row needs at least one symbol or column")
        named = [(name, None if value is None else ColumnType.SYMBOL, value) for name, value in symbols.items()]
        for name, value in symbols.items():
            if value is not None and not isinstance(value, str):
                raise UsageError(f"symbol {name}: a symbol must be a str, not {type(value).__name__}")
        named += [(name, None if value is None else _type_of(name, value), value) for name, value in columns.items()]
        seen: set[str] = set()
        new: dict[str, _Slot] = {}
        for name, kind, _ in named:
            check_name("column", name, self._name_bytes_max)
            low = name.lower()
            if low in seen:
                raise UsageError(f"column {name} is repeated in one row: column names are not case-sensitive")
            seen.add(low)
            self._take_slot(new, low, name, kind)
        named.append(("", None if at is None else _type_of_at(at), at))
        self._take_slot(new, "", "", named[-1][1])
        if len(self._slots) + len(new) > COLUMNS_MAX:
            raise UsageError(f"table {self.name}: a table has at most {COLUMNS_MAX} columns")
        whole_numbers = tuple(
            position
            for position, (_, _, value) in enumerate(named)
            if isinstance(value, int | np.integer) and not isinstance(value, bool)
        )
        texts = tuple(position for position, (_, _, value) in enumerate(named) if isinstance(value, str))
        variable = tuple(position for position, (_, kind, _) in enumerate(named) if kind in _VARIABLE)
        fixed_bytes = sum(
            len(name.encode()) + (12 if kind not in DECIMAL_BYTES else 36) for name, kind, _ in named if kind
        )
        needs_zone = isinstance(at, datetime.datetime)
        check: RowCheck | None = None
        if not variable and not needs_zone:
            check = row_check(
                [*symbols], [*columns], types, whole_numbers=whole_numbers, texts=texts, fixed_bytes=fixed_bytes
            )
        plan = _Plan(
            symbols=list(symbols),
            named=list(columns),
            types=types,
            columns=tuple(name.lower() for name, _, _ in named),
            nulls=frozenset(name.lower() for name, kind, _ in named if kind is None),
            whole_numbers=whole_numbers,
            texts=texts,
            variable=variable,
            kinds=tuple(kind for _, kind, _ in named),
            needs_zone=needs_zone,
            fixed_bytes=fixed_bytes,
            check=check or _no_check,
        )
        return plan, new

    def _take_slot(self, new: dict[str, _Slot], low: str, name: str, kind: ColumnType | None) -> None:
        slot = self._slots.get(low)
        if slot is None:
            if kind is not None:
                new[low] = _Slot(name, kind)
        elif kind is not None and slot.type is not kind:
            raise UsageError(
                f"table {self.name}, column {name or 'at'}: {kind.name} after {slot.type.name}; flush before the "
                "type changes"
            )

    def split(self) -> tuple[RowTable, RowTable]:
        """Return two tables with half of the rows each, in order. This table does not change."""
        runs: tuple[list[_Run], list[_Run]] = ([], [])
        left = self.rows // 2
        for run in self._runs:
            taken = min(left, len(run.rows))
            for half, rows in zip(runs, (run.rows[:taken], run.rows[taken:]), strict=True):
                if rows:
                    half.append(_Run(run.columns, run.nulls, rows))
            left -= taken
        first, second = (self._with_runs(half) for half in runs)
        return first, second

    def _with_runs(self, runs: list[_Run]) -> RowTable:
        other = RowTable(self.name, name_bytes_max=self._name_bytes_max)
        other._runs = runs
        other._slots = self._slots
        return other

    def pack(self) -> TableData:
        """
        Return the rows as columns, in the order of their first use.

        Raises:
            UsageError: a value cannot be sent together with others of its column (decimals of a larger scale).
        """
        pieces: dict[str, list[Sequence[Any]]] = {low: [] for low in self._slots}
        has_nulls: set[str] = set()
        for run in self._runs:
            given = dict(zip(run.columns, zip(*run.rows, strict=True), strict=True))
            has_nulls |= run.nulls
            for low, parts in pieces.items():
                if low not in given:
                    has_nulls.add(low)
                parts.append(given[low] if low in given else (None,) * len(run.rows))
        columns = []
        for low, slot in self._slots.items():
            parts = pieces[low]
            values = parts[0] if len(parts) == 1 else [value for part in parts for value in part]
            columns.append(_pack(slot.name, slot.type, values, may_miss=low in has_nulls))
        return TableData(self.name, self.rows, columns)


def _no_check(*_: Any) -> int:
    return 0


def check_name(what: str, name: str, bytes_max: int) -> None:
    """
    Reject a table or column name that a server would reject.

    Raises:
        UsageError: the name is empty, too long, or has invalid characters.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"a {what} needs a name")
    size = _text_bytes(what, name)
    if size > bytes_max:
        raise UsageError(f"{what} name {name!r} has {size} bytes; the maximum is {bytes_max}")
    bad = _FORBIDDEN.intersection(name) | {char for char in name if ord(char) < 0x20 or ord(char) == 0x7F}
    if what == "column":
        bad |= {".", "-"}.intersection(name)
    if bad or name.startswith(".") or name.endswith("."):
        raise UsageError(f"{what} name {name!r} has invalid characters: {''.join(sorted(bad)) or '.'!r}")


def _text_bytes(where: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{where}: the text has an unpaired surrogate, which UTF-8 cannot encode") from None


def _own(plan: _Plan, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    """
    Return *values* with copies of those that the caller may change before the flush, and the size of the copies.

    Each array is checked: its Python type does not determine the type of its elements.
    """
    owned = list(values)
    size = 0
    for position in plan.variable:
        value = values[position]
        if plan.kinds[position] is ColumnType.BINARY:
            owned[position] = bytes(value)
            size += len(owned[position])
            continue
        name = plan.columns[position]
        kind = _type_of(name, value)
        if kind is not plan.kinds[position]:
            raise UsageError(f"column {name}: the type of the array changed; flush before the type changes")
        owned[position] = np.array(value)
        size += owned[position].nbytes + 4 * owned[position].ndim
    return tuple(owned), size


def _type_of(name: str, value: Any) -> ColumnType:
    kind = _TYPES.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, np.ndarray | list):
        try:
            dtype = np.asarray(value).dtype
        except ValueError as error:
            raise UsageError(f"column {name}: {error}") from None
        if dtype.kind == "f":
            return ColumnType.DOUBLE_ARRAY
        if dtype.kind in "iu" and dtype != np.uint64:
            return ColumnType.LONG_ARRAY
        raise UsageError(f"column {name}: arrays of {dtype} are not supported; use floats or integers")
    if _is_of_pandas(value):
        if value != value:  # noqa: PLR0124 - NaT
            raise UsageError(f"column {name}: NaT is not a timestamp; use None for a missing value")
        return ColumnType.TIMESTAMP_NANOS
    for base, found in _TYPES.items():
        if isinstance(value, base):
            return found
    raise UsageError(f"column {name}: QWP has no type for {type(value).__name__}")


def _is_of_pandas(value: Any) -> bool:
    # A pandas Timestamp, which also has nanoseconds. Without a zone it is UTC, as in a column of a data frame.
    return isinstance(value, datetime.datetime) and hasattr(value, "nanosecond")


def _type_of_at(at: Any) -> ColumnType:
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise UsageError(_NO_ZONE)
        return ColumnType.TIMESTAMP_NANOS if _is_of_pandas(at) else ColumnType.TIMESTAMP
    if isinstance(at, TimestampMicros):
        return ColumnType.TIMESTAMP
    if isinstance(at, TimestampNanos) or (isinstance(at, int | np.integer) and not isinstance(at, bool)):
        return ColumnType.TIMESTAMP_NANOS
    raise UsageError(f"at: expected nanoseconds, a datetime or None, not {type(at).__name__}")


def _micros(value: Any) -> int:
    if isinstance(value, datetime.datetime):
        # Python treats a datetime without a zone as local time.
        aware = value if value.tzinfo is not None else value.astimezone()
        return (aware - _EPOCH) // _MICROSECOND
    return int(value.value)


def _millis(value: Any) -> int:
    if isinstance(value, datetime.date):
        return (value - _EPOCH.date()).days * 86_400_000
    return int(value.value)


def _nanos(value: Any) -> int:
    return int(value) if isinstance(value, int | np.integer) else int(value.value)


_NUMBERS: dict[ColumnType, tuple[str, Callable[[Any], Any] | None]] = {
    ColumnType.LONG: ("q", None),
    ColumnType.DOUBLE: ("d", None),
    ColumnType.TIMESTAMP: ("q", _micros),
    ColumnType.TIMESTAMP_NANOS: ("q", _nanos),
    ColumnType.DATE: ("q", _millis),
    ColumnType.IPV4: ("I", int),
    ColumnType.CHAR: ("H", lambda value: ord(value.value)),
}


def _pack(name: str, kind: ColumnType, values: Sequence[Any], *, may_miss: bool) -> ColumnData:
    nulls: np.ndarray[Any, Any] | None = None
    if may_miss:
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            nulls = np.fromiter((value is None for value in values), bool, count=len(values))
            values = present
    try:
        if kind in _NUMBERS:
            return _pack_numbers(name, kind, values, nulls)
        return _PACKERS[kind](name, kind, values, nulls)
    except UsageError:
        raise
    except (OverflowError, ValueError, struct.error, pa.ArrowInvalid) as error:
        raise UsageError(f"column {name or 'at'}: {error}") from error


def _pack_numbers(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:
    code, convert = _NUMBERS[kind]
    layout = f"<{len(values)}{code}"
    if kind is ColumnType.TIMESTAMP_NANOS:
        # Most values are plain numbers: `at` is one.
        with contextlib.suppress(struct.error):
            return fixed_column(name, kind, np.frombuffer(struct.pack(layout, *values), "<i8"), nulls)
    packed = struct.pack(layout, *(values if convert is None else map(convert, values)))
    return fixed_column(name, kind, np.frombuffer(packed, f"<{code}"), nulls)


def _pack_symbols(name: str, kind: ColumnType, values: Sequence[str], nulls: Any) -> ColumnData:  # noqa: ARG001
    ids: defaultdict[str, int] = defaultdict(itertools.count().__next__)  # numbers each value when it is first seen
    indices = np.fromiter(map(ids.__getitem__, values), np.int64, count=len(values))
    return symbol_column(name, list(ids), indices, nulls)


def _pack_texts(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:
    array = pa.array(values, pa.large_string() if kind is ColumnType.VARCHAR else pa.large_binary())
    _, offsets_data, data = array.buffers()
    offsets = np.frombuffer(offsets_data, np.int64, count=len(values) + 1) if len(values) else np.zeros(1, np.int64)
    return bytes_column(name, kind, offsets, memoryview(data) if data is not None else b"", nulls)


def _pack_booleans(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:  # noqa: ARG001
    return boolean_column(name, np.fromiter(values, bool, count=len(values)), nulls)


def _pack_words(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:
    width = 16 if kind is ColumnType.UUID else 32
    data = b"".join(
        value.bytes[::-1] if kind is ColumnType.UUID else value.value.to_bytes(width, "little") for value in values
    )
    return fixed_column(name, kind, np.frombuffer(data, f"V{width}"), nulls)


def _pack_geohashes(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:  # noqa: ARG001
    precisions = {value.precision for value in values}
    if len(precisions) > 1:
        raise UsageError(
            f"column {name}: one flush has geohashes of {sorted(precisions)} bits; a column has one precision"
        )
    numbers = np.fromiter((value.value for value in values), np.int64, count=len(values))
    return geohash_column(name, precisions.pop(), numbers, nulls)


def _pack_arrays(name: str, kind: ColumnType, values: Sequence[Any], nulls: Any) -> ColumnData:
    return array_column(name, kind, [np.asarray(value) for value in values], nulls)


def _pack_decimals(name: str, kind: ColumnType, values: Sequence[Decimal], nulls: Any) -> ColumnData:
    # A column has one scale: the largest of its values.
    scale = 0
    for value in values:
        if not value.is_finite():
            raise UsageError(f"column {name}: {value} is not a number")
        scale = max(scale, -int(value.as_tuple().exponent))
    if scale > _DIGITS_MAX or any(value and value.adjusted() + scale > _DIGITS_MAX for value in values):
        # Checked before the conversion to an integer: a short exponent can expand to a million zeros.
        raise UsageError(f"column {name}: a decimal needs more than {_DIGITS_MAX} digits at scale {scale}")
    width = DECIMAL_BYTES[kind]
    try:
        data = b"".join(int(value.scaleb(scale, _EXACT)).to_bytes(width, "little", signed=True) for value in values)
    except OverflowError:
        raise UsageError(f"column {name}: a decimal needs more than {_DIGITS_MAX} digits at scale {scale}") from None
    return decimal_column(name, kind, scale, np.frombuffer(data, np.uint8), nulls)


_PACKERS: dict[ColumnType, Callable[[str, ColumnType, Sequence[Any], Any], ColumnData]] = {
    ColumnType.SYMBOL: _pack_symbols,
    ColumnType.VARCHAR: _pack_texts,
    ColumnType.BINARY: _pack_texts,
    ColumnType.BOOLEAN: _pack_booleans,
    ColumnType.UUID: _pack_words,
    ColumnType.LONG256: _pack_words,
    ColumnType.GEOHASH: _pack_geohashes,
    ColumnType.DOUBLE_ARRAY: _pack_arrays,
    ColumnType.LONG_ARRAY: _pack_arrays,
    ColumnType.DECIMAL256: _pack_decimals,
}
