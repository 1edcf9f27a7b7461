"""`quiver spark package`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.console.output import JsonFlag, human_bytes, print_json

__all__ = ["build_spark_app"]


def build_spark_app() -> typer.Typer:
    """Return the commands below `quiver spark`."""
    app = typer.Typer(help="Prepare a Spark cluster.", no_args_is_help=True)

    @app.callback()
    def _commands() -> None:
        """Keep `package` a command of its own."""

    app.command("package", short_help="Build the archive that executors need.")(package)
    return app


def package(
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive, a .tar.gz file.")] = Path(
        "quiver-python.tar.gz"
    ),
    more: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME", help="Add an installed distribution and what it requires."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Build the archive of Python packages that the executors of a Spark cluster unpack.

    It has Quiver, what it requires, and the installed packages with processors. It has no Python: each machine of the
    cluster needs the same minor version.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.spark.python_packages import write_python_archive  # noqa: PLC0415

    with ProgressDisplay("packing") as progress:
        description = write_python_archive(output, more=more or (), on_progress=progress)
    size = output.stat().st_size
    if as_json:
        print_json(
            {
                "path": str(output),
                "size_bytes": size,
                "python": description.python,
                "platform": description.platform,
                "distributions": dict(description.distributions),
            }
        )
        return
    count = len(description.distributions)
    typer.echo(
        f"{output}: {count} packages, {human_bytes(size)}, for Python {description.python}, {description.platform}"
    )
    typer.echo(f'in the pipeline file: spark: {{master: "…", python_archive: "{output}"}}')
