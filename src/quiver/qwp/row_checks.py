"""
Functions that check and buffer one row, generated for the names and types of a row.

Most rows have the names and types of the previous one. For these, every step whose outcome is known (which names, how
many values, which of them are text) is resolved once; what remains is straight code without loops. Only numbers and
fixed words become part of the source: names and types are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["RowCheck", "row_check"]

RowCheck = Callable[[Any, Any, Any, int, Callable[[tuple[Any, ...]], object]], int]
"""
``check(symbols, columns, at, bytes_max, add)``: pass the values to *add* and return the approximate size of the row,
or return 0 without a call of *add* if the row has other names or types, or a value that needs a closer look.
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

    Values at the positions *whole_numbers* must fit into 64 bits, and those at *texts* must be ASCII. Symbols come
    first, then columns, then the timestamp.
    """
    if len(types) > _VALUES_MAX:
        return None
    made: RowCheck = _factory(len(symbols), len(columns), whole_numbers, texts)(
        (*symbols, *columns), types, fixed_bytes
    )
    return made


@lru_cache(maxsize=128)
def _factory(symbols: int, columns: int, whole_numbers: tuple[int, ...], texts: tuple[int, ...]) -> Any:
    """Return ``make(names, types, fixed_bytes)``, which returns the check."""
    last = symbols + columns
    names, types = (
        ", ".join(f"{letter}{at}" for at in range(count)) for letter, count in (("k", last), ("t", last + 1))
    )
    found = [f"v{at} = {'symbols' if at < symbols else 'columns'}[k{at}]" for at in range(last)]
    other = [f"type(v{at}) is not t{at}" for at in range(last + 1)]
    valid = [_FITS.format(at) for at in whole_numbers] + [f"v{at}.isascii()" for at in texts]
    size = " + ".join(["fixed_bytes", *(f"len(v{at})" for at in texts)])
    values = ", ".join(f"v{at}" for at in range(last + 1))
    source = f"""
def make(names, types, fixed_bytes):
    {names}, = names
    {types}, = types
    def check(symbols, columns, v{last}, bytes_max, add):
        if len(symbols) != {symbols} or len(columns) != {columns}: return 0
        if type(symbols) is not dict or type(columns) is not dict: return 0
        try:
            {"; ".join(found)}
        except KeyError:
            return 0
        if {" or ".join(other)}: return 0
        if not ({" and ".join(valid) or "True"}): return 0
        size = {size}
        if size > bytes_max: return 0
        add(({values},))
        return size
    return check
"""
    scope: Mapping[str, Any] = {}
    exec(source, scope)  # type: ignore[arg-type]  # noqa: S102 - the source has no input but counts and positions
    return scope["make"]
