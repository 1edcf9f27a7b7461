"""The entry point `quiver`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from quiver.pipeline.processes.extras import missing_extra

if TYPE_CHECKING:
    import typer

__all__ = ["build_app", "main"]


def main() -> None:
    """Run the command line and exit."""
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"quiver: {missing_extra(error)}\n")
        raise SystemExit(2) from None
    app()


def build_app() -> typer.Typer:
    """
    Return the application with all sub-commands.

    Raises:
        ModuleNotFoundError: typer is not installed.
    """
    import typer  # noqa: PLC0415 - an extra; `main` says so when it is missing
    from typer.core import TyperGroup  # noqa: PLC0415

    from quiver.cli.console.paths import refuse_empty_paths  # noqa: PLC0415

    class Commands(TyperGroup):
        """Converts the errors of Quiver to one line and an exit code."""

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                sentence, code = missing_extra(error), 2
            except Exception as error:  # the top level of the program
                sentence, code = _explain(error)
            typer.echo(f"quiver: {sentence}", err=True)
            raise typer.Exit(code)

    app = typer.Typer(
        cls=Commands,
        name="quiver",
        help="A durable, Arrow-native buffer for telemetry and streams, with its pipeline on Apache Spark.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    _add_commands(app)
    refuse_empty_paths(app)
    return app


def _add_commands(app: typer.Typer) -> None:
    from quiver.cli import (  # noqa: PLC0415 - keeps `--help` quick
        bench,
        dead_letters,
        demo,
        doctor,
        export,
        inspect,
        migrate,
        repair,
        run,
        snapshot,
        subscribers,
        verify,
        version,
    )
    from quiver.cli.aof import commands as aof  # noqa: PLC0415
    from quiver.cli.fleet import commands as fleet  # noqa: PLC0415
    from quiver.cli.flight import serve  # noqa: PLC0415
    from quiver.cli.lake import commands as lake  # noqa: PLC0415
    from quiver.cli.pipeline import init, plugins, schema  # noqa: PLC0415
    from quiver.cli.qwp import commands as qwp  # noqa: PLC0415
    from quiver.cli.spark import commands as spark  # noqa: PLC0415
    from quiver.cli.stats import commands as stats  # noqa: PLC0415
    from quiver.cli.stats import top  # noqa: PLC0415
    from quiver.cli.status import commands as status  # noqa: PLC0415
    from quiver.cli.tail import commands as tail  # noqa: PLC0415
    from quiver.cli.topic import commands as topic  # noqa: PLC0415

    app.callback()(version.options)
    app.command("init", short_help="Write a commented pipeline file.")(init.init)
    app.command("run", short_help="Run a pipeline until it is stopped.")(run.run)
    app.command("serve", short_help="Serve stores over Arrow Flight.")(serve.serve)
    app.command("demo", short_help="Run a pipeline under load and kill its processes.")(demo.demo)
    app.command("schema", short_help="Print the JSON schema of pipeline files.")(schema.schema)
    app.command("plugins", short_help="List the plugins of pipeline files.")(plugins.plugins)
    app.command("inspect", short_help="Describe a file.")(inspect.inspect)
    app.command("verify", short_help="Read a complete store and list damage.")(verify.verify)
    app.command("repair", short_help="Repair a store; report what is lost.")(repair.repair)
    app.command("snapshot", short_help="Copy a store, also while its writer runs.")(snapshot.snapshot)
    app.command("restore", short_help="Restore a store from a snapshot.")(snapshot.restore)
    app.command("migrate", short_help="Change the format profile or the slot table.")(migrate.migrate)
    app.command("stats", short_help="Show segments, bytes and lag of a store.")(stats.stats)
    app.command("top", short_help="Watch a running pipeline.")(top.top)
    app.command("status", short_help="Serve the status page of a pipeline or a log.")(status.status)
    app.command("tail", short_help="Print rows as they are ingested.")(tail.tail)
    app.command("subscribers", short_help="List, drop or rewind subscribers.")(subscribers.subscribers)
    app.add_typer(dead_letters.build_dead_letters_app(), name="dead-letters")
    app.command("export", short_help="Write a slot or a view to a file.")(export.export)
    app.command("doctor", short_help="Measure a disk and report its guarantees.")(doctor.doctor)
    app.command("bench", short_help="Measure ingest against a bare log.")(bench.bench)
    app.add_typer(topic.build_topic_app(), name="topic")
    app.add_typer(aof.build_aof_app(), name="aof")
    app.add_typer(qwp.build_qwp_app(), name="qwp")
    app.add_typer(fleet.build_fleet_app(), name="fleet")
    app.add_typer(lake.build_lake_app(), name="lake")
    app.add_typer(spark.build_spark_app(), name="spark")
    app.add_typer(qwp.build_former_app(), name="sf", hidden=True)


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code of an error of Quiver or the disk; raise any other error again."""
    from quiver.errors import QuiverError, UsageError  # noqa: PLC0415 - keeps `--help` quick

    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, QuiverError):
        return str(error), 1
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", 2
    if isinstance(error, OSError):
        from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason  # noqa: PLC0415

        if isinstance(error, NO_FILE_ERRORS) and error.filename is not None:
            return f"{error.filename}: {no_file_reason(error)}", 2
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}", 1
    raise error


if __name__ == "__main__":
    main()
