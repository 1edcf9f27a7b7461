"""Rows that a generated check accepts are buffered as the general way buffers them; all others take the general way."""

import random
from collections import OrderedDict, defaultdict
from types import MappingProxyType

import numpy as np
import pytest

from quiver.errors import UsageError
from quiver.qwp import rows as rows_module
from quiver.qwp.row_checks import row_check
from quiver.qwp.rows import RowTable
from quiver.qwp.values import TimestampNanos
from quiver.qwp.wire.message import encode_message

LIMIT = 1 << 20
SYMBOLS = {"s": "left"}
COLUMNS = {"i": 1, "text": "abc", "f": 2.5, "b": True}


def buffered(row_list):
    """Return the answers for each row, and the message with those that were accepted."""
    table = RowTable("t")
    answers = []
    for symbols, columns, at, bytes_max in row_list:
        try:
            answers.append(table.append(symbols, columns, at, bytes_max=bytes_max))
        except UsageError as error:
            answers.append(str(error))
    return answers, bytes(encode_message([table.pack()])) if table.rows else b"", table.rows


def some_rows(dice):
    names = ["a", "b", "c", "D"]
    values = [
        lambda: dice.choice([0, 1, -(2**63), 2**63 - 1, 2**63, -(2**63) - 1]),
        lambda: dice.choice(["", "x", "é", "日本", "\ud800", "y" * 200]),
        lambda: dice.choice([0.5, float("nan"), -0.0]),
        lambda: dice.choice([True, None]),
    ]
    made = []
    for _ in range(40):
        kinds = dict(zip(names, values, strict=True))
        picked = dice.sample(names, 4) if dice.random() < 0.3 else names[: dice.choice([4, 4, 4, 3])]
        columns = {name: kinds[name]() if dice.random() < 0.97 else None for name in picked}
        symbols = {"s": dice.choice(["left", "right", "ü"])} if dice.random() < 0.9 else {}
        at = dice.choice([1, 2, 2**62, 2**64, 5]) if dice.random() < 0.95 else dice.choice([None, TimestampNanos(3)])
        made.append((symbols, columns, at, dice.choice([LIMIT, LIMIT, LIMIT, 150])))
    return made


def test_rows_are_buffered_and_refused_as_without_checks(monkeypatch):
    dice = random.Random(11)
    cases = [some_rows(dice) for _ in range(150)]
    with_checks = [buffered(case) for case in cases]
    monkeypatch.setattr(rows_module, "row_check", lambda *_, **__: None)
    without = [buffered(case) for case in cases]
    assert with_checks == without
    answers = [answer for found, _, _ in without for answer in found]
    assert sum(isinstance(answer, str) for answer in answers) > 300, "few rows were refused"
    assert sum(isinstance(answer, int) for answer in answers) > 1000, "few rows were accepted"


def checked(symbols=SYMBOLS, columns=COLUMNS, at=5, bytes_max=LIMIT):
    """Return what the check for rows like the standard one returns, and what it buffered."""
    table = RowTable("t")
    table.append(SYMBOLS, COLUMNS, 5, bytes_max=LIMIT)
    added: list[tuple] = []
    return table.check(symbols, columns, at, bytes_max, added), added


def test_a_row_like_the_previous_one_is_added_with_its_size():
    size, added = checked()
    assert added == [("left", 1, "abc", 2.5, True, 5)]
    assert size == RowTable("t").append(SYMBOLS, COLUMNS, 5, bytes_max=LIMIT)


def test_the_order_of_names_does_not_matter():
    size, added = checked(columns=dict(reversed(COLUMNS.items())))
    assert size
    assert added == [("left", 1, "abc", 2.5, True, 5)]


@pytest.mark.parametrize(
    "change",
    [
        {"columns": COLUMNS | {"i": 2**63}},
        {"columns": COLUMNS | {"i": np.int64(1)}},
        {"columns": COLUMNS | {"i": True}},
        {"columns": COLUMNS | {"i": None}},
        {"columns": COLUMNS | {"text": "\ud800"}},
        {"columns": COLUMNS | {"f": 2}},
        {"columns": COLUMNS | {"more": 1}},
        {"columns": {"i": 1, "text": "abc", "f": 2.5, "B": True}},
        {"columns": {"i": 1}},
        {"columns": OrderedDict(COLUMNS)},
        {"columns": MappingProxyType(COLUMNS)},
        {"symbols": {}},
        {"symbols": {"s": None}},
        {"symbols": {"s": "\ud800"}},
        {"at": None},
        {"at": 2**63},
        {"at": TimestampNanos(5)},
        {"bytes_max": 20},
    ],
)
def test_any_other_row_is_left_to_the_general_way(change):
    assert checked(**change) == (0, [])


def test_a_lookup_of_a_missing_name_does_not_change_the_mapping():
    columns = defaultdict(int, {"i": 1, "text": "abc", "f": 2.5, "other": True})
    assert checked(columns=columns) == (0, [])
    assert len(columns) == 4


def test_rows_with_very_many_values_have_no_check():
    names = [f"c{number}" for number in range(64)]
    assert row_check([], names[:-1], [int] * 64, whole_numbers=(0,), texts=(), fixed_bytes=1) is not None
    assert row_check([], names, [int] * 65, whole_numbers=(0,), texts=(), fixed_bytes=1) is None


def test_names_are_not_part_of_the_generated_source():
    name = "'); raise SystemExit #"
    check = row_check([], [name], [int, int], whole_numbers=(0, 1), texts=(), fixed_bytes=7)
    added: list[tuple] = []
    assert check is not None
    assert check({}, {name: 3}, 4, LIMIT, added) == 7
    assert added == [(3, 4)]
