"""`quiver serve [DIR]… [--topics DIR]`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quiver.observe import Observer
    from quiver.receivers.flight.served_topics import ServedTopics
    from quiver.receivers.flight.serving import Served
    from quiver.receivers.flight.sources import ServedStore, WritableStore
    from quiver.receivers.security import SecuritySettings

__all__ = ["serve"]

_NAMED = re.compile(r"([A-Za-z0-9_.-]{1,64})=(.+)", re.DOTALL)


def serve(
    directories: Annotated[
        list[str] | None, typer.Argument(metavar="DIR", help="Directories of stores, or NAME=DIR.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="DIR", help="A directory of topics, or NAME=DIR.")
    ] = None,
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
    Serve stores and topics over Arrow Flight until it is stopped.

    Clients in any language read slots, views and messages as Arrow, store batches and messages, and subscribe.
    """
    import signal  # noqa: PLC0415 - keeps `--help` quick
    import threading  # noqa: PLC0415

    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.receivers.flight.receiver import FlightReceiver  # noqa: PLC0415
    from quiver.receivers.flight.settings import FlightSettings  # noqa: PLC0415

    security = _security(tls_cert, tls_key, client_ca, token_file, user_file, insecure=insecure)
    _check_address(listen, security)
    settings = FlightSettings(listening_addr=listen, ack=ack, security=security)  # type: ignore[arg-type] # checked
    if not directories and not topics:
        raise UsageError("name a directory of a store, or with --topics one of topics")
    if assignments and not directories:
        raise UsageError("--set has no effect on topics: leave it out")
    if read_only and (assignments or ack != "synced"):
        raise UsageError("--set and --ack have no effect with --read-only: leave them out")
    mapping = dict(map(_assignment, assignments or ()))
    stop = threading.Event()
    observer = InMemoryObserver()
    with ExitStack() as opened:
        stores: list[Served] = [
            _served(name, opened, mapping, observer, read_only=read_only) for name in directories or ()
        ]
        stores += [_served_topics(name, opened, observer, read_only=read_only) for name in topics or ()]
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


def _check_address(address: str, security: SecuritySettings) -> None:
    """Refuse a public address without protection, with the names of the options instead of those of the settings."""
    from quiver.receivers.security import is_loopback  # noqa: PLC0415 - keeps `--help` quick
    from quiver.receivers.settings import split_address  # noqa: PLC0415

    try:
        host, _ = split_address(address)
    except SettingsError as error:
        raise UsageError(str(error).replace("listening_addr", "--listen", 1)) from None
    if is_loopback(host) or security.insecure or not security.missing():
        return
    lacks = ["--tls-cert and --tls-key"] if security.tls is None else []
    if security.auth is None:
        lacks.append("--token-file, --user-file or --client-ca")
    raise UsageError(
        f"--listen: others can reach {host}, so it needs {', and '.join(lacks)}; listen on 127.0.0.1, or add "
        "--insecure on a trusted network"
    )


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write KEY=VALUE, for example retention.size_cap=4GiB")
    return key, value


def _served(
    argument: str, opened: ExitStack, settings: Mapping[str, Any], observer: Observer, *, read_only: bool
) -> ServedStore:
    """Open one store, or its cores; *opened* closes it."""
    import quiver  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.receivers.flight.sources import served_store  # noqa: PLC0415
    from quiver.store.cores.instances import find_cores  # noqa: PLC0415
    from quiver.store.format.names import SEGMENTS_DIR  # noqa: PLC0415

    name, directory = _name_and_directory(argument)
    if read_only:
        return served_store(directory, name=name)
    cores: list[int] = []
    if directory.is_dir():
        cores = find_cores(REAL_FILES, str(directory))
        if not cores and not (directory / SEGMENTS_DIR).is_dir() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not the directory of a store; for topics, use --topics {directory}")
    chosen = quiver.Settings.from_mapping(dict(settings))
    store: WritableStore
    if cores:
        store = opened.enter_context(quiver.open(directory, chosen, cores=max(cores) + 1, observer=observer))
    else:
        store = opened.enter_context(quiver.open(directory, chosen, observer=observer))
    return served_store(directory, store, name=name)


def _served_topics(argument: str, opened: ExitStack, observer: Observer, *, read_only: bool) -> ServedTopics:
    """Open the topics of a directory; *opened* closes them."""
    from quiver.receivers.flight.served_topics import served_topics  # noqa: PLC0415
    from quiver.store.format.names import SEGMENTS_DIR  # noqa: PLC0415
    from quiver.topics.store import TopicStore  # noqa: PLC0415

    name, directory = _name_and_directory(argument)
    if (directory / SEGMENTS_DIR).is_dir():
        raise UsageError(f"{directory} is the directory of a store; leave out --topics")
    store = None if read_only else opened.enter_context(TopicStore.open(directory, observer=observer))
    return served_topics(directory, store, name=name)


def _name_and_directory(argument: str) -> tuple[str, Path]:
    named = _NAMED.fullmatch(argument)
    directory = Path(named[2] if named else argument)
    return (named[1] if named else directory.resolve().name), directory
