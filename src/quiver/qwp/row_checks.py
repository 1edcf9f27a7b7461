"""
Functions that check and buffer one row, made for the names and types of a row.

Most rows have the names and types of the previous one. For these, every step whose outcome is known (which names, how
many values, which of them are text) is resolved once. In the kernel a check is one call; its twin is straight code
without loops, generated from numbers and fixed words only: names and types are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from quiver.primitives.kernel import KERNEL

__all__ = ["RowCheck", "row_check", "row_check_in_python"]

RowCheck = Callable[[Any, Any, Any, int, list[tuple[Any, ...]]], int]
"""
``check(symbols, columns, at, bytes_max, rows)``: append the values to *rows* and return the approximate size of the
row, or return 0 and append nothing if the row has other names or types, or a value that needs a closer look.
"""

_VALUES_MAX = 64
_FITS = "-0x8000000000000000 <= v{0} <= 0x7FFFFFFFFFFFFFFF"


def row_check(
    symbols: Sequence[str],
    columns: Sequence[str],
    types: Sequence[type],
    *,
    whole_numbers: tuple[int, ...],
    texts: tuple[int, ...],
    fixed_bytes: int,
) -> RowCheck | None:
    """
    Return the check for rows with these names and types, or None if they have too many values.

    Values at the positions *whole_numbers* must fit into 64 bits, and those at *texts* must be valid UTF-8. Symbols
    come first, then columns, then the timestamp.
    """
    if len(types) > _VALUES_MAX:
        return None
    make = row_check_in_python if KERNEL is None else KERNEL.row_check
    numbers, words = (sum(1 << at for at in places) for places in (whole_numbers, texts))
    check: RowCheck = make(len(symbols), (*symbols, *columns), tuple(types), numbers, words, fixed_bytes)
    return check


def row_check_in_python(
    symbols: int,
    names: tuple[str, ...],
    types: tuple[type, ...],
    whole_numbers: int,
    texts: int,
    fixed_bytes: int,
    /,
) -> RowCheck:
    """Return the check. The first *symbols* of *names* are symbols; bit n of the two numbers is position n."""
    made: RowCheck = _factory(symbols, len(names) - symbols, whole_numbers, texts)(names, types, fixed_bytes)
    return made


@lru_cache(maxsize=128)
def _factory(symbols: int, columns: int, whole_numbers: int, texts: int) -> Any:
    """Return ``make(names, types, fixed_bytes)``, which returns the check."""
    last = symbols + columns
    names, types = (
        ", ".join(f"{letter}{at}" for at in range(count)) for letter, count in (("k", last), ("t", last + 1))
    )
    found = [f"v{at} = {'symbols' if at < symbols else 'columns'}[k{at}]" for at in range(last)]
    other = [f"type(v{at}) is not t{at}" for at in range(last + 1)]
    valid = [_FITS.format(at) for at in range(last + 1) if whole_numbers >> at & 1]
    words = [f"v{at}" for at in range(last + 1) if texts >> at & 1]
    size = " + ".join(["fixed_bytes", *(f"len({one} if {one}.isascii() else {one}.encode())" for one in words)])
    values = ", ".join(f"v{at}" for at in range(last + 1))
    source = f"""
def make(names, types, fixed_bytes):
    {names}, = names
    {types}, = types
    def check(symbols, columns, v{last}, bytes_max, rows):
        if type(symbols) is not dict or type(columns) is not dict: return 0
        if len(symbols) != {symbols} or len(columns) != {columns}: return 0
        try:
            {"; ".join(found)}
        except KeyError:
            return 0
        if {" or ".join(other)}: return 0
        if not ({" and ".join(valid) or "True"}): return 0
        try:
            size = {size}
        except UnicodeEncodeError:
            return 0
        if size > bytes_max: return 0
        rows.append(({values},))
        return size
    return check
"""
    scope: Mapping[str, Any] = {}
    exec(source, scope)  # type: ignore[arg-type]  # noqa: S102 - the source has no input but counts and positions
    return scope["make"]
