"""Tables on terminals of different widths."""

from __future__ import annotations

import re
import sys

import pytest

from quiver.cli.console.output import print_table

ROWS = [
    {"subscriber": "parquet", "lag_bundles": 1200, "owner": None, "problem": None},
    {"subscriber": "a-subscriber-of-a-long-name", "lag_bundles": None, "owner": None, "problem": "x" * 50},
]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def at_width(columns: int, rows=ROWS, **kwargs) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table("subscribers", rows, **kwargs)
        text = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
        assert all(len(line.rstrip()) <= columns for line in text.splitlines())
        return text

    return at_width


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_a_wide_terminal_has_a_table_with_all_columns(printed):
    assert words(printed(140))[1] == ["subscriber", "lag", "bundles", "owner", "problem"]


def test_a_narrower_terminal_leaves_out_columns_without_a_value(printed):
    assert words(printed(76))[1] == ["subscriber", "lag", "bundles", "problem"]


def test_a_terminal_that_is_too_narrow_has_each_row_as_a_list(printed):
    assert words(printed(50))[:7] == [
        ["subscribers"],
        ["subscriber", "parquet"],
        ["lag", "bundles", "1,200"],
        ["problem", "-"],
        ["subscriber", "a-subscriber-of-a-long-name"],
        ["lag", "bundles", "-"],
        ["problem", "x" * 32],
    ]


def test_a_list_of_names_and_values_stays_a_table(printed):
    text = printed(30, [{"field": "a" * 24, "value": "b" * 60}])
    assert words(text)[1] == ["field", "value"]


def test_in_a_pipe_nothing_is_left_out(capsys):
    print_table("subscribers", ROWS)
    assert "owner" in capsys.readouterr().out
