"""`quiver --version`."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from quiver.build_info import installed_version
from quiver.primitives.kernel import describe_kernel

__all__ = ["options"]


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    installed = installed_version() or "from a directory, not installed"
    typer.echo(f"quiver {installed} (Python {platform.python_version()}, {describe_kernel()})")
    raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Accept the options before a command."""
