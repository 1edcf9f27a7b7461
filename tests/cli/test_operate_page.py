"""The commands in docs/howto/operate.md exist, and the page has every command that it should."""

import re
from pathlib import Path

import pytest
import typer

from quiver.cli.main import build_app

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "operate.md").read_text(encoding="utf-8")
TYPED = sorted(set(re.findall(r"^\$ quiver (.+?)(?:\s+#.*)?$", PAGE, re.MULTILINE)))
APP = typer.main.get_command(build_app())
HAVE_PAGES_OF_THEIR_OWN = {
    "run", "init", "schema", "plugins", "demo", "dead-letters", "topic", "aof", "qwp", "sf", "lake", "serve", "spark",
    "fleet", "status",
}  # fmt: skip


def options_of(name):
    return {option for parameter in APP.commands[name].params for option in parameter.opts}


@pytest.mark.parametrize("line", TYPED)
def test_documented_commands_exist(line):
    """The sub-command, and each of its options."""
    name, *rest = line.split()
    assert {word for word in rest if word.startswith("--")} <= options_of(name)


def test_every_command_is_documented():
    """Except those with their own pages; inline text names only existing commands."""
    reported = set(re.findall(r"\bquiver ([a-z]+)\b", PAGE)) | set(
        re.findall(r"^\$ quiver ([a-z]+)", PAGE, re.MULTILINE)
    )
    assert reported - HAVE_PAGES_OF_THEIR_OWN == set(APP.commands) - HAVE_PAGES_OF_THEIR_OWN
    every = set().union(*(options_of(name) for name in APP.commands))
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= every


def test_documented_kinds_of_findings_match_the_code():
    """The table of `verify` has each of them."""
    from typing import get_args

    from quiver.primitives.findings import Kind

    table = PAGE.partition("| kind | means |")[2].partition("##")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE) == list(get_args(Kind))
