"""`quiver serve DIR…`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quiver.observe import Observer
    from quiver.receivers.flight.sources import ServedStore
    from quiver.receivers.security import SecuritySettings

__all__ = ["serve"]

_NAMED = re.compile(r"([A-Za-z0-9_.-]{1,64})=(.+)", re.DOTALL)


def serve(
    directories: Annotated[list[str], typer.Argument(metavar="DIR…", help="Directories of stores, or NAME=DIR.")],
    listen: Annotated[str, typer.Option(help="Host and port; port 0 selects a free one.")] = "127.0.0.1:8815",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only read, also stores that another process has open.")
    ] = False,
    ack: Annotated[
        str, typer.Option(help="Confirm batches when they are on disk (synced), or only in the log (logged).")
    ] = "synced",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the stores, such as retention.size_cap=4GiB."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate, with intermediate ones, as PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, not encrypted.")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Authorities for client certificates, then required.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Bearer tokens, one per line.")] = None,
    user_file: Annotated[Path | None, typer.Option(help="Users, one name:password per line.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on a public address without TLS or authentication.")
    ] = False,
) -> None:
    """
    Serve stores over Arrow Flight until it is stopped.

    Clients in any language read slots and views as Arrow, ingest batches, and subscribe.
    """
    import signal  # noqa: PLC0415 - keeps `--help` quick
    import threading  # noqa: PLC0415

    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.receivers.flight.receiver import FlightReceiver  # noqa: PLC0415
    from quiver.receivers.flight.settings import FlightSettings  # noqa: PLC0415

    security = _security(tls_cert, tls_key, client_ca, token_file, user_file, insecure=insecure)
    settings = FlightSettings(listening_addr=listen, ack=ack, security=security)  # type: ignore[arg-type] # checked
    if read_only and (assignments or ack != "synced"):
        raise UsageError("--set and --ack have no effect with --read-only: leave them out")
    mapping = dict(map(_assignment, assignments or ()))
    stop = threading.Event()
    observer = InMemoryObserver()
    with ExitStack() as opened:
        stores = [_served(name, opened, mapping, observer, read_only=read_only) for name in directories]
        with FlightReceiver(stores, settings, observer=observer) as receiver:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda _number, _frame: stop.set())
            names = ", ".join(store.name for store in stores)
            scheme = "grpc" if security.tls is None else "grpc+tls"
            typer.echo(f"serving {names} at {scheme}://{listen.rpartition(':')[0]}:{receiver.port}; Ctrl-C stops")
            stop.wait()


def _security(
    cert: Path | None, key: Path | None, client_ca: Path | None, tokens: Path | None, users: Path | None, *,
    insecure: bool,
) -> SecuritySettings:  # fmt: skip
    from quiver.receivers.security import AuthSettings, SecuritySettings, TlsSettings  # noqa: PLC0415

    if (cert is None) != (key is None):
        raise UsageError("give both --tls-cert and --tls-key")
    if cert is None and client_ca is not None:
        raise UsageError("--client-ca needs --tls-cert and --tls-key")
    tls = None
    if cert is not None:
        tls = TlsSettings(str(cert), str(key), None if client_ca is None else str(client_ca))
    auth = None
    if tokens is not None or users is not None:
        auth = AuthSettings(
            token_file=None if tokens is None else str(tokens), user_file=None if users is None else str(users)
        )
    return SecuritySettings(tls, auth, insecure)


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write KEY=VALUE, for example retention.size_cap=4GiB")
    return key, value


def _served(
    argument: str, opened: ExitStack, settings: Mapping[str, Any], observer: Observer, *, read_only: bool
) -> ServedStore:
    """Open one store; *opened* closes it."""
    import quiver  # noqa: PLC0415
    from quiver.receivers.flight.sources import served_store  # noqa: PLC0415
    from quiver.store.format.names import SEGMENTS_DIR  # noqa: PLC0415

    named = _NAMED.fullmatch(argument)
    directory = Path(named[2] if named else argument)
    name = named[1] if named else directory.resolve().name
    store = None
    if not read_only:
        if directory.is_dir() and not (directory / SEGMENTS_DIR).is_dir() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not the directory of one store; with several cores, use --read-only")
        store = opened.enter_context(
            quiver.open(directory, quiver.Settings.from_mapping(dict(settings)), observer=observer)
        )
    return served_store(directory, store, name=name)
