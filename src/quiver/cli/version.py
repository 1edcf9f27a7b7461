"""`quiver --version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated

import typer

__all__ = ["options"]


def _tell(wanted: bool) -> None:
    if not wanted:
        return
    try:
        installed = version_of("arrow-quiver")
    except PackageNotFoundError:
        installed = "from a directory, not installed"
    typer.echo(f"quiver {installed} (Python {platform.python_version()})")
    raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is, and stop.", callback=_tell, is_eager=True)
    ] = False,
) -> None:
    """Take what stands before a command."""
