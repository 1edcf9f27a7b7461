"""
`quiver dead-letters list|show|replay|drop DIR`.

The former order, with the directory before the action, works for one more release and prints a deprecation line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.counted import counted
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.bundle import Bundle, BundleRef
    from quiver.delivery.dead_letters import DeadLetter
    from quiver.delivery.policy import Outcome
    from quiver.errors import CorruptionError

__all__ = ["build_dead_letters_app"]

_Found = list[tuple[str, str, "DeadLetter"]]
_Deliver = Callable[[str, "DeadLetter"], "Outcome"]


@dataclass(slots=True)
class _Listing:
    """The dead letters found, the damage, each with its store and exporter, and files quarantined earlier."""

    dead_letters: _Found = field(default_factory=list)
    damage: list[tuple[str, str, CorruptionError]] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


_ACTIONS = ("list", "show", "replay", "drop")
_OPTIONS_WITH_VALUE = {"--pipeline", "--set", "--to"}

Directory = Annotated[Path, typer.Argument(help="A store's directory.")]
AnyExporter = Annotated[str | None, typer.Argument(metavar="EXPORTER", help="Only this exporter's.")]
Exporter = Annotated[str, typer.Argument(metavar="EXPORTER", help="The exporter whose dead letters these are.")]
Bundles = Annotated[
    list[str] | None, typer.Argument(metavar="BUNDLE", help="Which ones, as listed: 12:3. Default: all of them.")
]


class _Actions(TyperGroup):
    """The actions, which accept the former order of arguments for one more release."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        position = _first_positional(args)
        if position is not None and args[position] not in _ACTIONS:
            args = _in_order(args, position)
            typer.echo(
                "deprecated: name the action before the directory; the former order is removed in the next release: "
                f"quiver dead-letters {args[0]} {args[1]} …",
                err=True,
            )
        return super().parse_args(ctx, args)


def _first_positional(args: list[str]) -> int | None:
    """Return the index of the first argument that is neither an option nor the value of one."""
    is_value = False
    for index, arg in enumerate(args):
        if not is_value and not arg.startswith("-"):
            return index
        is_value = arg in _OPTIONS_WITH_VALUE
    return None


def _in_order(args: list[str], directory: int) -> list[str]:
    """Return *args* of the former order, with the directory at index *directory*, in today's order."""
    before, after = args[:directory], args[directory + 1 :]
    position = _first_positional(after)
    action = "list" if position is None else after.pop(position)
    return [action, args[directory], *before, *after]


def build_dead_letters_app() -> typer.Typer:
    """Return the commands below `quiver dead-letters`."""
    app = typer.Typer(
        cls=_Actions, help="List, show, replay or drop dead letters.", no_args_is_help=True, add_completion=False
    )
    app.command("list", short_help="List dead letters with their reasons.")(list_dead_letters)
    app.command("show", short_help="Show the content of dead letters.")(show)
    app.command("replay", short_help="Deliver dead letters again.")(replay)
    app.command("drop", short_help="Delete dead letters.")(drop)
    return app


def list_dead_letters(
    directory: Directory, exporter: AnyExporter = None, bundles: Bundles = None, as_json: JsonFlag = False
) -> None:
    """
    List dead letters with their reasons, those of the companion stores of a pipeline included.

    Safe while a pipeline runs.
    """
    listing = _find(str(directory), exporter, bundles)
    _list(str(directory), listing, as_json=as_json)
    _report_damage(listing, is_reported=as_json)


def show(directory: Directory, exporter: Exporter, bundles: Bundles = None, as_json: JsonFlag = False) -> None:
    """Show the content of dead letters. Safe while a pipeline runs."""
    listing = _find(str(directory), exporter, bundles)
    if not _is_empty(directory, exporter, listing, as_json=as_json):
        _show(listing.dead_letters, as_json=as_json)
    _report_damage(listing)


def replay(
    directory: Directory,
    exporter: Exporter,
    bundles: Bundles = None,
    pipeline: Annotated[
        Path | None, typer.Option("--pipeline", help="Send as the exporter of that name in this pipeline file does.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} of the pipeline file.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Send to this OTLP endpoint instead, over gRPC.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Deliver dead letters again. Safe while a pipeline runs.

    A dead letter is dropped when the destination has confirmed it, and is kept otherwise. It is the bundle as the
    exporter saw it, and no other exporter receives it again.
    """
    listing = _find(str(directory), exporter, bundles)
    if not _is_empty(directory, exporter, listing, as_json=as_json):
        with _delivery_to(exporter, pipeline, assignments or [], endpoint) as deliver:
            _replay(listing.dead_letters, deliver, as_json=as_json)
    _report_damage(listing)


def drop(directory: Directory, exporter: Exporter, bundles: Bundles = None, as_json: JsonFlag = False) -> None:
    """Delete dead letters. Safe while a pipeline runs."""
    listing = _find(str(directory), exporter, bundles)
    if not _is_empty(directory, exporter, listing, as_json=as_json):
        _drop(listing.dead_letters, as_json=as_json)
    _report_damage(listing)


def _is_empty(directory: Path, exporter: str, listing: _Listing, *, as_json: bool) -> bool:
    """Return whether there is nothing to do, and print so unless JSON is asked for."""
    if listing.dead_letters or listing.damage or as_json:
        return False
    typer.echo(f"{exporter} has no dead letters in {directory}")
    return True


def _report_damage(listing: _Listing, *, is_reported: bool = False) -> None:
    """Print which files of dead letters are damaged, unless *is_reported*, and exit with 1 if there are any."""
    for root, name, damage in () if is_reported else listing.damage:
        typer.echo(
            f"damaged: dead letters of {name}: {damage}; this file's dead letters are not shown; stop the pipeline, "
            f"then run: quiver repair {root}",
            err=True,
        )
    if listing.damage:
        raise typer.Exit(1)


def _ref_of(text: str) -> BundleRef:
    from quiver.bundle import BundleRef  # noqa: PLC0415 - keeps `--help` quick

    segment, colon, index = text.partition(":")
    if not (colon and segment.isdecimal() and index.isdecimal()):
        raise UsageError(f"{text!r} does not name a bundle; write SEGMENT:INDEX as in the list, for example 12:3")
    return BundleRef(int(segment), int(index))


def _find(directory: str, exporter: str | None, bundles: list[str] | None) -> _Listing:
    from quiver.delivery.dead_letters import dead_letters_root, exporters_with_dead_letters, read_dead_letters  # noqa: PLC0415
    from quiver.pipeline.companion_stores import find_companion_stores  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.format.names import QUARANTINE_DIR, check_subscriber_id  # noqa: PLC0415

    refs = [_ref_of(text) for text in bundles or ()]
    if exporter is not None:
        check_subscriber_id(exporter)
    listing = _Listing()
    for roots in (instance_roots(REAL_FILES, directory), *find_companion_stores(REAL_FILES, directory).values()):
        for root in roots:
            for name in exporters_with_dead_letters(REAL_FILES, root):
                if exporter not in {None, name}:
                    continue
                damage: list[CorruptionError] = []
                dead_letters = read_dead_letters(REAL_FILES, root, name, problems=damage)
                listing.dead_letters += [
                    (root, name, letter) for letter in dead_letters if not refs or letter.ref in refs
                ]
                listing.damage += [(root, name, one) for one in damage]
                folder = f"{dead_letters_root(root, name)}/{QUARANTINE_DIR}"
                if REAL_FILES.exists(folder):
                    listing.quarantined += [f"{folder}/{file}" for file in REAL_FILES.list_dir(folder)]
    missing = [str(ref) for ref in refs if all(ref != letter.ref for _, _, letter in listing.dead_letters)]
    if missing:
        damaged = f"; damaged: {counted(len(listing.damage), 'file')} of its dead letters" if listing.damage else ""
        raise UsageError(f"{exporter} has no dead letter {', '.join(missing)}{damaged}")
    return listing


def _list(directory: str, listing: _Listing, *, as_json: bool) -> None:
    from quiver.cli.console.paths import place_of  # noqa: PLC0415
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415

    if as_json:
        damaged = [
            {
                "directory": root,
                "exporter": name,
                "path": damage.path,
                "offset": damage.offset,
                "damaged": damage.reason,
            }
            for root, name, damage in listing.damage
        ]
        print_json([_as_dict(*one) for one in listing.dead_letters] + damaged)
        return
    now_ns = SYSTEM_CLOCK.now_ns()
    several = any(root != directory for root, _, _ in listing.dead_letters)
    rows = [
        ({"in": place_of(root, directory)} if several else {})
        | {
            "exporter": name,
            "bundle": str(letter.ref),
            "given_up": f"{human_age((now_ns - letter.given_up_at_ns) / 1e9)} ago",
            "attempts": letter.attempts,
            "size": human_bytes(letter.bundle.nbytes),
            "reason": letter.reason,
        }
        for root, name, letter in listing.dead_letters
    ]
    if rows or not listing.damage:
        print_table(f"dead letters of {directory}", rows)
    for path in listing.quarantined:
        typer.echo(f"quarantined as damaged: {path}")


def _as_dict(root: str, exporter: str, letter: DeadLetter) -> dict[str, Any]:
    return {
        "directory": root,
        "exporter": exporter,
        "bundle": str(letter.ref),
        "reason": letter.reason,
        "attempts": letter.attempts,
        "first_failed_at_ns": letter.first_failed_at_ns,
        "given_up_at_ns": letter.given_up_at_ns,
        "ingested_at_ns": letter.ingested_at_ns,
        "size_bytes": letter.bundle.nbytes,
        "slots": {
            letter.bundle.adapter.slots.get(slot, str(slot)): batch.num_rows
            for slot, batch in letter.bundle.batches.items()
        },
    }


def _show(found: _Found, *, as_json: bool) -> None:
    shown = [{**_as_dict(*one), "content": _content(one[2].bundle)} for one in found]
    if as_json:
        print_json(shown)
        return
    for one in shown:
        content = one.pop("content")
        for key in [key for key in one if key.endswith("_at_ns")]:
            one[key.removesuffix("_ns")] = _moment(one.pop(key))
        print_table(f"{one['exporter']} {one['bundle']}", [{"": key, "value": value} for key, value in one.items()])
        for name, rows in content.items():
            print_json({name: rows})


def _moment(at_ns: int | None) -> str | None:
    return None if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")


def _content(bundle: Bundle) -> dict[str, Any]:
    """Return the records of a bundle as rows, by view, or the reason where they cannot be decoded."""
    from quiver.errors import CorruptionError, InvalidBundleError  # noqa: PLC0415
    from quiver.otap import VIEWS, view  # noqa: PLC0415

    shown: dict[str, Any] = {}
    signals = bundle.adapter.signals_of(bundle.slots)
    for name in VIEWS:
        if {"spans": "traces"}.get(name, name) not in signals:
            continue
        try:
            shown[name] = view(bundle, name).to_pylist()
        except (CorruptionError, InvalidBundleError) as error:
            shown[name] = f"cannot be decoded: {error}"
    return shown


def _grouped(found: _Found) -> dict[tuple[str, str], list[DeadLetter]]:
    groups: dict[tuple[str, str], list[DeadLetter]] = {}
    for root, name, letter in found:
        groups.setdefault((root, name), []).append(letter)
    return groups


def _drop(found: _Found, *, as_json: bool) -> None:
    from quiver.delivery.dead_letters import open_dead_letters  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    dropped = 0
    for (root, name), dead_letters in _grouped(found).items():
        with open_dead_letters(REAL_FILES, root, name) as box:
            dropped += 0 if box is None else box.drop({letter.ref for letter in dead_letters})
    if as_json:
        print_json({"dropped": dropped})
    else:
        typer.echo(f"{counted(dropped, 'dead letter')} dropped")


@contextmanager
def _delivery_to(
    exporter: str, pipeline: Path | None, assignments: list[str], endpoint: str | None
) -> Iterator[_Deliver]:
    """Yield the function that delivers a dead letter: as the pipeline file configures it, or to an endpoint."""
    import os  # noqa: PLC0415 - here only: the library reads no environment

    from quiver.exporters.once import send_once  # noqa: PLC0415
    from quiver.exporters.otlp_grpc import OtlpGrpcSender  # noqa: PLC0415
    from quiver.exporters.parts import PartSender  # noqa: PLC0415
    from quiver.exporters.settings import ExporterSettings, RequestSizes  # noqa: PLC0415
    from quiver.exporters.size_limit import SizeLimit  # noqa: PLC0415
    from quiver.pipeline.forwarding import sender_of  # noqa: PLC0415
    from quiver.pipeline.processes.child import read_pipeline  # noqa: PLC0415

    if (pipeline is None) == (endpoint is None):
        raise UsageError("give either --pipeline FILE, to send as its exporter of that name does, or --to URL")
    sizes = RequestSizes()
    if endpoint is not None:
        sender: Any = OtlpGrpcSender(ExporterSettings(endpoint))
    else:
        read = read_pipeline(pipeline or Path(), assignments, os.environ)
        queries = [name for name, route in read.routes.items() if route.is_query]
        if exporter in queries:
            from quiver.pipeline.replay import DeadLetterExport  # noqa: PLC0415 - brings Spark

            with DeadLetterExport(read, exporter) as export:
                yield export.deliver
            return
        forwarders = dict(read.forwarders)
        if exporter not in forwarders:
            known = ", ".join([*forwarders, *queries]) or "none"
            raise UsageError(f"{pipeline} has no exporter {exporter}; its exporters are: {known}")
        sender = sender_of(exporter, forwarders[exporter])
        sizes = forwarders[exporter].sizes()
    parts = PartSender(sender, SizeLimit(sizes.request_bytes_max))
    try:
        yield lambda _root, letter: send_once(parts, letter.bundle)
    finally:
        sender.close()


def _replay(found: _Found, deliver: _Deliver, *, as_json: bool) -> None:
    done: list[dict[str, Any]] = []
    for (root, name), dead_letters in _grouped(found).items():
        done += _replay_of(root, name, dead_letters, deliver)
    failed = [one for one in done if not one["delivered"]]
    if as_json:
        print_json(done)
    else:
        if failed:
            print_table("not delivered; kept", failed)
        typer.echo(f"{len(done) - len(failed):,} of {len(done):,} dead letters delivered")
    if failed:
        raise typer.Exit(1)


def _replay_of(root: str, name: str, dead_letters: list[DeadLetter], deliver: _Deliver) -> Iterator[dict[str, Any]]:
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415
    from quiver.delivery.dead_letters import open_dead_letters, replay_dead_letters  # noqa: PLC0415
    from quiver.delivery.policy import Delivered  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    with open_dead_letters(REAL_FILES, root, name) as box, ProgressDisplay("replaying") as progress:
        for one in () if box is None else replay_dead_letters(box, dead_letters, partial(deliver, root)):
            progress(str(one.letter.ref))
            delivered = isinstance(one.outcome, Delivered)
            why = None if isinstance(one.outcome, Delivered) else str(one.outcome)
            yield {"exporter": name, "bundle": str(one.letter.ref), "delivered": delivered, "why_not": why}
