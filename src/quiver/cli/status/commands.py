"""`quiver status DIR`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json
from quiver.cli.status.dead_letters import DeadLetterCommands
from quiver.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from quiver.cli.status.snapshot import StatusSource
    from quiver.pipeline.model import Pipeline
    from quiver.receivers.security import AuthSettings

__all__ = ["status"]

LISTEN = "127.0.0.1:4321"
READY_NAME = "status.json"


def status(
    path: Annotated[
        Path, typer.Argument(help="A directory of a store, a QWP slot, topics or append-only logs; or a pipeline file.")
    ],
    listen: Annotated[
        str | None,
        typer.Option(help=f"Host and port; port 0 selects a free one.  [default: {LISTEN}]", show_default=False),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Bearer tokens, one per line, for replaying and dropping dead letters.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A name of this machine that browsers may use, besides localhost.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on a public address.")] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(help="The metrics port, host:port.  [default: from the state file]", show_default=False),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="The directory with logs and state.  [default: DIR.run]", show_default=False)
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} of the pipeline file.")
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input ends, for a parent process.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Serve the status page of a pipeline, a store, or any other log, until it is stopped.

    Only reads, and is safe while a writer runs. With a pipeline file, a token permits replaying and dropping dead
    letters, and its section `status` has the defaults of the options. --json prints the status once.
    """
    from quiver.cli.status.snapshot import StatusReader  # noqa: PLC0415 - keeps `--help` quick

    pipeline = None
    if path.is_file():
        pipeline, run_dir = _pipeline(path, assignments, run_dir)
    elif assignments:
        raise UsageError(f"--set needs a pipeline file, and {path} is not a file")
    source = _source(path, pipeline, run_dir, endpoint)
    if as_json:
        print_json(StatusReader(source).current())
        return
    section = None if pipeline is None else pipeline.status
    address = listen or (LISTEN if section is None else section.listen)
    _check_address(address, is_allowed=insecure or (section is not None and section.is_exposed))
    auth = _auth(token_file) if token_file is not None else None if section is None else section.credentials
    hosts = (*(host or ()), *(() if section is None else section.hosts))
    dead_letters = DeadLetterCommands(source.directory, None if pipeline is None else path, assignments or ())
    page = _Page(source, auth, hosts, dead_letters)
    _serve(page, address, Path(source.run_dir), stop_with_stdin=stop_with_stdin)


@dataclass(frozen=True, slots=True)
class _Page:
    """The source of the page, and the credentials that may change it."""

    source: StatusSource
    auth: AuthSettings | None
    hosts: tuple[str, ...]
    dead_letters: DeadLetterCommands


def _pipeline(path: Path, assignments: list[str] | None, run_dir: Path | None) -> tuple[Pipeline, Path]:
    from quiver.cli.console.paths import pipeline_given  # noqa: PLC0415 - keeps `--help` quick

    given = pipeline_given(path, assignments, run_dir)
    if given is None:
        raise UsageError(f"{path} is not a file")
    pipeline, found = given
    return pipeline.placed(found), found


def _source(path: Path, pipeline: Pipeline | None, run_dir: Path | None, endpoint: str | None) -> StatusSource:
    from quiver.cli.status.snapshot import StatusSource  # noqa: PLC0415 - keeps `--help` quick
    from quiver.pipeline.companion_stores import sibling_directory  # noqa: PLC0415

    directory = str(path) if pipeline is None else pipeline.persistence.path
    run_dir = run_dir or sibling_directory(directory, "run")
    if not Path(directory).exists() and not run_dir.exists():
        raise UsageError(f"neither {directory} nor {run_dir} exists; give a directory of Quiver, or a pipeline file")
    return StatusSource(directory, str(run_dir), endpoint)


def _check_address(address: str, *, is_allowed: bool) -> None:
    from quiver.receivers.security import is_loopback  # noqa: PLC0415 - keeps `--help` quick
    from quiver.receivers.settings import split_address  # noqa: PLC0415

    try:
        host, _ = split_address(address)
    except SettingsError:
        raise UsageError(f"--listen: {address!r} is not host:port, for example {LISTEN}") from None
    if not is_allowed and not is_loopback(host):
        raise UsageError(
            f"--listen: others can reach {host}, and the page is plain text that anyone can read; listen on 127.0.0.1, "
            "or add --insecure on a trusted network"
        )


def _auth(token_file: Path) -> AuthSettings:
    from quiver.receivers.security import AuthSettings  # noqa: PLC0415 - keeps `--help` quick

    return AuthSettings(token_file=str(token_file))


def _serve(page: _Page, address: str, run_dir: Path, *, stop_with_stdin: bool) -> None:
    import signal  # noqa: PLC0415 - keeps `--help` quick

    from quiver.cli.status.application import StatusApplication  # noqa: PLC0415
    from quiver.cli.status.snapshot import StatusReader  # noqa: PLC0415
    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.pipeline.processes.child import write_ready  # noqa: PLC0415
    from quiver.pipeline.processes.http_port import HttpPort  # noqa: PLC0415
    from quiver.receivers.security import Authenticator  # noqa: PLC0415

    observer = InMemoryObserver()
    authenticator = None if page.auth is None else Authenticator(page.auth, observer)
    reader = StatusReader(page.source, may_change=authenticator is not None)
    application = StatusApplication(
        reader.current, dead_letters=page.dead_letters, authenticator=authenticator, hosts=page.hosts
    )
    stop = threading.Event()
    port = HttpPort(address, application, name="quiver-status", observer=observer)
    port.start()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: stop.set())
        if stop_with_stdin:
            threading.Thread(target=_await_end, args=(stop,), name="quiver-parent", daemon=True).start()
            if run_dir.exists():
                write_ready(run_dir, READY_NAME, {"listening": [f"http://{port.address}/"]})
        may = "the page is read-only" if authenticator is None else "changes need a token"
        typer.echo(f"status of {page.source.directory} at http://{port.address}/ ({may}); Ctrl-C stops")
        stop.wait()
    finally:
        port.stop()


def _await_end(stop: threading.Event) -> None:
    """Set *stop* when standard input ends: then the parent process has died."""
    import os  # noqa: PLC0415 - keeps `--help` quick

    while os.read(0, 1):
        pass
    stop.set()
