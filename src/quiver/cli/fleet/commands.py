"""`quiver fleet`: the nodes of a fleet and the lag of its readers, from the bucket alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.cli.object_store import ObjectOptions, object_location
from quiver.counted import counted
from quiver.errors import UsageError
from quiver.settings import parse_duration_s

if TYPE_CHECKING:
    from quiver.objects import ObjectTier

__all__ = ["build_fleet_app"]

_ROWS_MAX = 20

Place = Annotated[
    str, typer.Argument(metavar="URL", help="The fleet: a directory, or a URL such as s3://bucket/fleet-a.")
]
Node = Annotated[str, typer.Argument(help="The name or the identity of a node.")]
SilentAfter = Annotated[
    str, typer.Option(help="A node that wrote no record for longer is silent; a running one writes every ten minutes.")
]


def build_fleet_app() -> typer.Typer:
    """Return the commands below `quiver fleet`."""
    app = typer.Typer(help="Inspect the nodes and readers of a fleet.", no_args_is_help=True, add_completion=False)
    app.command("list", short_help="List the nodes.")(list_nodes)
    app.command("show", short_help="Describe one node.")(show)
    app.command("lag", short_help="Show what readers have not acknowledged.")(lag)
    app.command("retire", short_help="Remove what a node left in the bucket.")(retire)
    app.command("doctor", short_help="Check nodes, chains and readers.")(doctor)
    app.command("metrics", short_help="Print the figures as Prometheus text.")(metrics)
    return app


def list_nodes(
    place: Place, options: ObjectOptions = None, silent_after: SilentAfter = "30m", as_json: JsonFlag = False
) -> None:
    """
    List the nodes of a fleet. Their figures are as old as their records.

    The clock difference is that between the node and the object store, with a second of uncertainty.
    """
    found, _ = _figures(place, options, silent_after)
    if as_json:
        print_json(found)
    else:
        print_table(f"nodes of {place}", [_node_row(one) for one in found])


def _node_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": one["name"],
        "identity": one["identity"],
        "state": one["state"],
        "seen": human_age(one["seen_s"]),
        "clock": None if one["clock_difference_s"] is None else f"{one['clock_difference_s']:+.1f} s",
        "version": one["version"],
        "in bucket": human_bytes(one["inbox_bytes"]),
        "waiting": _bytes(one["waiting_bytes"]),
        "disk": _bytes(one["disk_bytes"]),
        "cap": _bytes(one["disk_cap_bytes"]),
        "problem": one["problem"],
    }


def show(
    place: Place,
    node: Node,
    options: ObjectOptions = None,
    silent_after: SilentAfter = "30m",
    as_json: JsonFlag = False,
) -> None:
    """Describe the nodes with one name or identity: what they report, what is in the bucket, and who has read it."""
    from quiver.cli.fleet.figures import node_figures, node_lag_figures  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.store.reading.fleet.survey import find_nodes, survey  # noqa: PLC0415

    silent_s = parse_duration_s(silent_after, key="--silent-after")
    described = []
    with _opened(place, options, writable=False) as tier:
        for identity in find_nodes(tier, [node]):
            found = survey(tier, identity=identity)
            now_ns = SYSTEM_CLOCK.now_ns()
            one = found.nodes[identity]
            figures = node_figures(one, now_ns=now_ns, silent_s=silent_s)
            figures["readers"] = [node_lag_figures(one, by, now_ns=now_ns) for by in found.readers_of(one)]
            described.append(figures)
    if as_json:
        print_json(described)
        return
    for figures in described:
        rows = [
            {"figure": key, "value": _text(key, value)}
            for key, value in figures.items()
            if key not in {"name", "readers"}
        ]
        print_table(f"node {figures['name']}", rows)
        print_table("readers", [_lag_row(one) for one in figures["readers"]])


def _text(key: str, value: Any) -> str | None:
    if value is None:
        return None
    if key.endswith("_bytes"):
        return human_bytes(value)
    if key == "clock_difference_s":
        return f"{value:+.1f} s"
    if key.endswith("_s"):
        return human_age(value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or None
    return ", ".join(value) if isinstance(value, list) else str(value)


def lag(
    place: Place,
    options: ObjectOptions = None,
    subscriber: Annotated[str | None, typer.Option(help="Only this reader.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of nodes to show for each reader.")] = _ROWS_MAX,
    as_json: JsonFlag = False,
) -> None:
    """
    Show what each reader has not acknowledged: segments that are in the bucket, not those that are still on nodes.

    With --json, all nodes are listed.
    """
    _, readers = _figures(place, options, "30m")
    if subscriber is not None:
        readers = [one for one in readers if one["subscriber"] == subscriber]
        if not readers:
            raise UsageError(f"this fleet has no reader {subscriber}: no node waits for it, and it never acknowledged")
    if as_json:
        print_json(readers)
        return
    print_table(f"readers of {place}", [_reader_row(one) for one in readers])
    for one in readers:
        lagging = [node for node in one["of_nodes"] if node["lag_segments"] or node["problem"]]
        if lagging:
            shown = f", {rows} of {len(lagging)}" if len(lagging) > rows else ""
            print_table(f"{one['subscriber']}: nodes with lag{shown}", [_lag_row(node) for node in lagging[:rows]])


def _reader_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "reader": one["subscriber"],
        "nodes": one["nodes"],
        "behind": one["nodes_behind"],
        "segments": one["lag_segments"],
        "bytes": human_bytes(one["lag_bytes"]),
        "gone": one["gone_segments"],
        "oldest": human_age(one["oldest_s"]),
        "blocked": one["blocked_nodes"],
    }


def _lag_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "reader": one["subscriber"],
        "node": one["name"],
        "identity": one["identity"],
        "position": one["position"],
        "segments": one["lag_segments"],
        "bytes": human_bytes(one["lag_bytes"]),
        "gone": one["gone_segments"],
        "oldest": human_age(one["oldest_s"]),
        "problem": one["problem"],
    }


def retire(
    place: Place,
    node: Node,
    options: ObjectOptions = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A reader that need not have acknowledged the node; may be repeated.")
    ] = None,
    silent_after: Annotated[str, typer.Option(help="The silence required of a node that was not stopped.")] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and show what would be removed.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Remove the record and the objects of a node that does not come back, if its readers have acknowledged everything.

    Refused while the node may be running. Data that was only on its disk is not affected.
    """
    from dataclasses import asdict  # noqa: PLC0415 - keeps `--help` quick

    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.store.reading.fleet.retirement import retire_node  # noqa: PLC0415
    from quiver.store.reading.fleet.survey import find_nodes  # noqa: PLC0415

    silent_s = parse_duration_s(silent_after, key="--silent-after")
    with _opened(place, options, writable=not dry_run) as tier:
        identities = find_nodes(tier, [node])
        if len(identities) > 1:
            raise UsageError(f"{len(identities)} nodes are named {node}; give an identity: {', '.join(identities)}")
        found = retire_node(
            tier,
            identities[0],
            now_ns=SYSTEM_CLOCK.now_ns(),
            silent_s=silent_s,
            without=without or (),
            dry_run=dry_run,
        )
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    done = "would be removed" if dry_run else "removed"
    objects = f"record, {counted(found.segments, 'segment')}, {counted(found.others, 'other object')}"
    typer.echo(f"{found.name} ({found.identity}): {objects} {done}")
    if found.waiting_segments:
        typer.echo(f"its disk had {counted(found.waiting_segments, 'segment')} not yet uploaded", err=True)


def doctor(
    place: Place,
    options: ObjectOptions = None,
    silent_after: SilentAfter = "30m",
    clock_max: Annotated[str, typer.Option(help="Report larger differences of clocks.")] = "1m",
    lag_max: Annotated[str, typer.Option(help="Report readers whose oldest segment is older.")] = "1h",
    as_json: JsonFlag = False,
) -> None:
    """
    Check nodes, chains and readers: silent nodes, clocks, disks, versions, two stores with one identity, missing and
    rejected segments, lag.

    Exits with 1 if a check fails.
    """
    from dataclasses import asdict  # noqa: PLC0415 - keeps `--help` quick

    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.store.reading.fleet.checks import CHECKS, FleetLimits, check_fleet  # noqa: PLC0415
    from quiver.store.reading.fleet.rejected import list_rejected  # noqa: PLC0415
    from quiver.store.reading.fleet.survey import survey  # noqa: PLC0415

    limits = FleetLimits(
        silent_s=parse_duration_s(silent_after, key="--silent-after"),
        clock_s=parse_duration_s(clock_max, key="--clock-max"),
        lag_s=parse_duration_s(lag_max, key="--lag-max"),
    )
    with _opened(place, options, writable=False) as tier:
        found = survey(tier)
        rejected = {name: [one for _, one in list_rejected(tier, name)] for name in found.readers}
        findings = check_fleet(found, now_ns=SYSTEM_CLOCK.now_ns(), limits=limits, rejected=rejected)
        if any(one.check == "chain" for one in findings):
            found = survey(tier)  # a listing is not a snapshot: only what is still missing is reported
            rejected = {name: rejected.get(name, []) for name in found.readers}
            findings = check_fleet(found, now_ns=SYSTEM_CLOCK.now_ns(), limits=limits, rejected=rejected)
    if as_json:
        print_json(
            {
                "nodes": len(found.nodes),
                "readers": list(found.readers),
                "findings": [asdict(one) | {"advice": CHECKS[one.check]} for one in findings],
            }
        )
    else:
        rows = [
            {
                "check": one.check,
                "node": one.node,
                "identity": one.identity,
                "reader": one.subscriber,
                "finding": one.problem,
            }
            for one in findings
        ]
        print_table(
            f"{place}: {counted(len(found.nodes), 'node')}, {counted(len(found.readers), 'reader')}",
            rows,
            empty="nothing to report",
        )
        for check in dict.fromkeys(one.check for one in findings):
            typer.echo(f"{check}: {CHECKS[check]}")
    if findings:
        raise typer.Exit(1)


def metrics(place: Place, options: ObjectOptions = None, silent_after: SilentAfter = "30m") -> None:
    """
    Print the figures of nodes and readers as Prometheus text.

    Run it every few minutes, and write its output to a file that an agent of Prometheus collects.
    """
    from quiver.cli.fleet.prometheus import prometheus_text  # noqa: PLC0415 - keeps `--help` quick

    nodes, readers = _figures(place, options, silent_after)
    typer.echo(prometheus_text(nodes, readers), nl=False)


def _figures(
    place: str, options: list[str] | None, silent_after: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the figures of all nodes, by name, and those of all readers."""
    from quiver.cli.fleet.figures import lag_figures, node_figures  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.store.reading.fleet.survey import survey  # noqa: PLC0415

    silent_s = parse_duration_s(silent_after, key="--silent-after")
    with _opened(place, options, writable=False) as tier:
        found = survey(tier)
    now_ns = SYSTEM_CLOCK.now_ns()
    nodes = [node_figures(node, now_ns=now_ns, silent_s=silent_s) for node in found.nodes.values()]
    return sorted(nodes, key=lambda one: (one["name"], one["identity"])), lag_figures(found, now_ns=now_ns)


def _bytes(count: int | None) -> str | None:
    return None if count is None else human_bytes(count)


@contextlib.contextmanager
def _opened(place: str, options: list[str] | None, *, writable: bool) -> Iterator[ObjectTier]:
    from quiver.objects import open_objects  # noqa: PLC0415 - keeps `--help` quick

    is_directory = "://" not in place
    if is_directory and not Path(place).is_dir():
        raise UsageError(f"{place} is not a directory")
    location = object_location(place, options)
    if location is None:
        raise UsageError("name a directory or a bucket")
    with contextlib.closing(open_objects(location, writable=writable, check_access=not is_directory)) as objects:
        yield objects
