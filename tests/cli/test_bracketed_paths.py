"""Brackets in a path are a path, not markup."""

import pytest

from quiver.cli.console.output import print_table


@pytest.mark.parametrize("path", ["my [bold] buffer", "q[/bold]/buffer", "[red]", "a["])
@pytest.mark.parametrize("rows", [[], [{"file": "a row as wide as the longest title"}]])
def test_a_title_is_shown_as_it_is(path, rows, capsys):
    """With rows or without."""
    print_table(f"files of {path}", rows)

    assert f"files of {path}" in capsys.readouterr().out


def test_a_cell_is_shown_as_it_is(capsys):
    """Also what would close a tag that nobody opened."""
    print_table("files", [{"file": "q[/bold]/x", "others": ["[red]", "[/red]"]}])

    out = capsys.readouterr().out
    assert "q[/bold]/x" in out
    assert "[red], [/red]" in out
