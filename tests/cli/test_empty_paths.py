"""An empty path on the command line, as an unset shell variable produces it, never means the working directory."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from quiver.cli.main import build_app

COMMANDS = [
    ["topic", "produce", "", "default/x", "x"],
    ["topic", "list", ""],
    ["aof", "tail", ""],
    ["qwp", "list", ""],
    ["repair", ""],
    ["doctor", ""],
    ["bench", ""],
    ["demo", ""],
    ["run", ""],
    ["top", ".", "--run-dir", ""],
    ["snapshot", ".", ""],
    ["export", ".", "--slot", "logs", "--to", ""],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_empty_path_is_refused(tmp_path, monkeypatch, call, arguments):
    """Before any file is created."""
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert "an empty path names nothing; write . for the current directory\n" in result.stderr
    assert list(tmp_path.iterdir()) == []


def paths_of(app, before=()):
    """
    Yield every path that a command accepts: the words of the command with the parameter, and the metadata for
    typer.
    """
    for group in app.registered_groups:
        yield from paths_of(group.typer_instance, (*before, group.name))
    for command in app.registered_commands:
        for parameter, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, *said = get_args(hint) or (hint,)
            if Path in (kind, *get_args(kind)):
                yield (*before, command.name, parameter), said


def test_every_command_checks_its_paths():
    """Every parameter of type `Path` has the parser that refuses an empty path."""
    found = dict(paths_of(build_app()))
    assert len(found) > 30
    assert [
        words for words, reported in found.items() if not any(getattr(one, "parser", None) for one in reported)
    ] == []
