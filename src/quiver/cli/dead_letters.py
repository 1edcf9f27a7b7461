"""`quiver dead-letters DIR list|show|replay|drop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.bundle import Bundle, BundleRef
    from quiver.delivery.dead_letters import DeadLetter
    from quiver.delivery.policy import Outcome
    from quiver.errors import CorruptionError

__all__ = ["dead_letters"]

_Found = list[tuple[str, str, "DeadLetter"]]
_Deliver = Callable[[str, "DeadLetter"], "Outcome"]


@dataclass(slots=True)
class _Look:
    """
    What was found: letters, what of them is damaged, each with its store and exporter, and files
    set aside before.
    """

    letters: _Found = field(default_factory=list)
    damage: list[tuple[str, str, CorruptionError]] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)


class Action(StrEnum):
    """What to do."""

    list = "list"
    show = "show"
    replay = "replay"
    drop = "drop"


def dead_letters(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.list,
    exporter: Annotated[str | None, typer.Argument(metavar="EXPORTER", help="Whose letters.")] = None,
    bundles: Annotated[
        list[str] | None, typer.Argument(metavar="BUNDLE", help="Which ones, as listed: 12:3. All when left out.")
    ] = None,
    pipeline: Annotated[
        Path | None, typer.Option("--pipeline", help="Replay as the exporter of that name in this pipeline file sends.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} of the pipeline file.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Replay to this OTLP endpoint instead, over gRPC.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    List, show, replay or drop what exporters gave up, also those that a pipeline feeds from a buffer beside the store.

    Works beside a pipeline that runs. A letter that is replayed is dropped when the far side has it, and stays
    otherwise. A letter is the bundle as the exporter saw it; nobody else is sent it again.
    """
    refs = [_ref_of(text) for text in bundles or ()]
    look = _find(str(directory), exporter, refs)
    found = look.letters
    if action is Action.list:
        _list(str(directory), look, as_json=as_json)
    elif exporter is None:
        raise UsageError(f"{action} whose? quiver dead-letters {directory} {action} EXPORTER [BUNDLE …]")
    elif not found and not look.damage and not as_json:
        typer.echo(f"{exporter} has no dead letters in {directory}")
    elif action is Action.show:
        _show(found, as_json=as_json)
    elif action is Action.drop:
        _drop(found, as_json=as_json)
    else:
        with _way_out(exporter, pipeline, assignments or [], endpoint) as deliver:
            _replay(found, deliver, as_json=as_json)
    _tell_of_damage(look, is_told=as_json and action is Action.list)


def _tell_of_damage(look: _Look, *, is_told: bool) -> None:
    """Say which files of dead letters are damaged, unless *is_told*, and exit with 1 if there are any."""
    for root, name, damage in () if is_told else look.damage:
        typer.echo(
            f"damaged: dead letters of {name}: {damage}; the letters in it are not shown; stop the pipeline, then: "
            f"quiver repair {root}",
            err=True,
        )
    if look.damage:
        raise typer.Exit(1)


def _ref_of(text: str) -> BundleRef:
    from quiver.bundle import BundleRef  # noqa: PLC0415 - keeps `--help` quick

    segment, colon, index = text.partition(":")
    if not (colon and segment.isdecimal() and index.isdecimal()):
        raise UsageError(f"{text!r} is no bundle; they are listed as SEGMENT:INDEX, for example 12:3")
    return BundleRef(int(segment), int(index))


def _find(directory: str, exporter: str | None, refs: list[BundleRef]) -> _Look:
    from quiver.delivery.dead_letters import exporters_with_letters, letters_root, read_letters  # noqa: PLC0415
    from quiver.pipeline.companion_stores import stores_beside  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.format.names import QUARANTINE_DIR, check_subscriber_id  # noqa: PLC0415

    if exporter is not None:
        check_subscriber_id(exporter)
    look = _Look()
    for roots in (instance_roots(REAL_FILES, directory), *stores_beside(REAL_FILES, directory).values()):
        for root in roots:
            for name in exporters_with_letters(REAL_FILES, root):
                if exporter not in {None, name}:
                    continue
                damage: list[CorruptionError] = []
                letters = read_letters(REAL_FILES, root, name, problems=damage)
                look.letters += [(root, name, letter) for letter in letters if not refs or letter.ref in refs]
                look.damage += [(root, name, one) for one in damage]
                aside = f"{letters_root(root, name)}/{QUARANTINE_DIR}"
                if REAL_FILES.exists(aside):
                    look.set_aside += [f"{aside}/{file}" for file in REAL_FILES.list_dir(aside)]
    missing = [str(ref) for ref in refs if all(ref != letter.ref for _, _, letter in look.letters)]
    if missing:
        damaged = f"; {len(look.damage)} files of its letters are damaged" if look.damage else ""
        raise UsageError(f"{exporter} has no letter {', '.join(missing)}{damaged}")
    return look


def _list(directory: str, look: _Look, *, as_json: bool) -> None:
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
            for root, name, damage in look.damage
        ]
        print_json([_as_dict(*one) for one in look.letters] + damaged)
        return
    now_ns = SYSTEM_CLOCK.now_ns()
    several = any(root != directory for root, _, _ in look.letters)
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
        for root, name, letter in look.letters
    ]
    if rows or not look.damage:
        print_table(f"dead letters of {directory}", rows)
    for path in look.set_aside:
        typer.echo(f"set aside as damaged: {path}")


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
    """Return what can be shown of a bundle: its records as rows, or the bytes of what cannot be decoded."""
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
    from quiver.delivery.dead_letters import open_letters  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    dropped = 0
    for (root, name), letters in _grouped(found).items():
        with open_letters(REAL_FILES, root, name) as box:
            dropped += 0 if box is None else box.drop({letter.ref for letter in letters})
    if as_json:
        print_json({"dropped": dropped})
    else:
        typer.echo(f"{dropped:,} letters are gone")


@contextmanager
def _way_out(exporter: str, pipeline: Path | None, assignments: list[str], endpoint: str | None) -> Iterator[_Deliver]:
    """Yield what delivers a letter of a store: as the pipeline file says, or to an endpoint."""
    import os  # noqa: PLC0415 - here only: the library reads no environment

    from quiver.exporters.once import send_once  # noqa: PLC0415
    from quiver.exporters.otlp_grpc import OtlpGrpcSender  # noqa: PLC0415
    from quiver.exporters.parts import PartSender  # noqa: PLC0415
    from quiver.exporters.settings import ExporterSettings, RequestSizes  # noqa: PLC0415
    from quiver.exporters.size_limit import SizeLimit  # noqa: PLC0415
    from quiver.pipeline.forwarding import sender_of  # noqa: PLC0415
    from quiver.pipeline.processes.child import read_pipeline  # noqa: PLC0415

    if (pipeline is None) == (endpoint is None):
        raise UsageError("replay where to? --pipeline FILE, as the exporter of that name there, or --to URL")
    sizes = RequestSizes()
    if endpoint is not None:
        sender: Any = OtlpGrpcSender(ExporterSettings(endpoint))
    else:
        read = read_pipeline(pipeline or Path(), assignments, os.environ)
        queries = [name for name, route in read.routes.items() if route.is_query]
        if exporter in queries:
            from quiver.pipeline.replay import LetterExport  # noqa: PLC0415 - brings Spark

            with LetterExport(read, exporter) as export:
                yield export.deliver
            return
        forwarders = dict(read.forwarders)
        if exporter not in forwarders:
            known = ", ".join([*forwarders, *queries]) or "none"
            raise UsageError(f"{pipeline} has no exporter {exporter}; there are: {known}")
        sender = sender_of(exporter, forwarders[exporter])
        sizes = forwarders[exporter].sizes()
    parts = PartSender(sender, SizeLimit(sizes.request_bytes_max))
    try:
        yield lambda _root, letter: send_once(parts, letter.bundle)
    finally:
        sender.close()


def _replay(found: _Found, deliver: _Deliver, *, as_json: bool) -> None:
    done: list[dict[str, Any]] = []
    for (root, name), letters in _grouped(found).items():
        done += _replay_of(root, name, letters, deliver)
    failed = [one for one in done if not one["delivered"]]
    if as_json:
        print_json(done)
    else:
        if failed:
            print_table("not delivered; they stay", failed)
        typer.echo(f"{len(done) - len(failed):,} of {len(done):,} letters are delivered")
    if failed:
        raise typer.Exit(1)


def _replay_of(root: str, name: str, letters: list[DeadLetter], deliver: _Deliver) -> Iterator[dict[str, Any]]:
    from quiver.cli.console.progress import Progress  # noqa: PLC0415
    from quiver.delivery.dead_letters import open_letters, replay_letters  # noqa: PLC0415
    from quiver.delivery.policy import Delivered  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    with open_letters(REAL_FILES, root, name) as box, Progress("replaying") as progress:
        for one in () if box is None else replay_letters(box, letters, partial(deliver, root)):
            progress(str(one.letter.ref))
            delivered = isinstance(one.outcome, Delivered)
            why = None if isinstance(one.outcome, Delivered) else str(one.outcome)
            yield {"exporter": name, "bundle": str(one.letter.ref), "delivered": delivered, "why_not": why}
