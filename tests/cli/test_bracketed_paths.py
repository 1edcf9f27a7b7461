"""Brackets in a path are printed as they are, not parsed as markup."""

import pytest

from quiver.cli.console.output import print_table


@pytest.mark.parametrize("path", ["my [bold] buffer", "q[/bold]/buffer", "[red]", "a["])
@pytest.mark.parametrize("rows", [[], [{"file": "a row as wide as the longest title"}]])
def test_a_title_with_brackets_is_printed_unchanged(path, rows, capsys):
    """With rows and without."""
    print_table(f"files of {path}", rows)

    assert f"files of {path}" in capsys.readouterr().out


def test_a_cell_with_brackets_is_printed_unchanged(capsys):
    """Including a closing tag without an opening one."""
    print_table("files", [{"file": "q[/bold]/x", "others": ["[red]", "[/red]"]}])

    out = capsys.readouterr().out
    assert "q[/bold]/x" in out
    assert "[red], [/red]" in out
