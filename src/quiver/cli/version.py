"""`quiver --version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from quiver.primitives.kernel import describe_kernel

__all__ = ["options"]


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        installed = version_of("arrow-quiver")
    except PackageNotFoundError:
        installed = "from a directory, not installed"
    typer.echo(f"quiver {installed} (Python {platform.python_version()}, {describe_kernel()})")
    raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Accept the options before a command."""
