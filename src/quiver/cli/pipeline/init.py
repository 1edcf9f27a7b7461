"""`quiver init [KIND]`."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from quiver.errors import UsageError

__all__ = ["Kind", "init", "template"]


class Kind(StrEnum):
    """The pipelines that `quiver init` can write."""

    forward = "forward"
    parquet = "parquet"
    delta = "delta"
    fleet = "fleet"
    edge = "edge"


def init(
    kind: Annotated[Kind, typer.Argument(help="What the pipeline does with the data.")] = Kind.forward,
    to: Annotated[Path, typer.Option("--to", help="The file to write; - for standard output.")] = Path("pipeline.yaml"),
) -> None:
    """
    Write a commented pipeline file, ready to run and to change.

    forward: OTLP in, OTLP out, with a buffer on disk. parquet and delta: files or tables of an analytics lake, on
    Spark. fleet: one of many nodes that upload into a shared bucket. edge: a small device with an unreliable link.

    Never overwrites a file.
    """
    text = template(kind)
    if str(to) == "-":
        typer.echo(text, nl=False)
        return
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{to} exists, and is not overwritten; give another file with --to") from None
    typer.echo(f"{to} is written. Next:")
    typer.echo(f"  quiver run {to} --check    # what it would do, and what is missing on this machine")
    typer.echo(f"  quiver run {to}")


def template(kind: Kind) -> str:
    """Return the text of the pipeline file for *kind*."""
    return files("quiver.cli.pipeline").joinpath(f"templates/{kind.value}.yaml").read_text(encoding="utf-8")
