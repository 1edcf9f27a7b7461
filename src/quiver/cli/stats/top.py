"""`quiver top DIR`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.cli.stats.watching import CountOption, EveryOption
from quiver.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from quiver.cli.stats.top_figures import Showing
    from quiver.cli.stats.waiting import Waiting

__all__ = ["top"]

_NO_PIPELINE = "no pipeline runs here; if it has several buffers, --run-dir is the directory next to the first one"

_CLEAR = "\x1b[2J\x1b[H"


def top(
    directory: Annotated[Path, typer.Argument(help="The store's directory of a running pipeline.")],
    endpoint: Annotated[
        str | None,
        typer.Option(help="The metrics port, host:port.  [default: from the state file]", show_default=False),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="The directory with logs and state.  [default: DIR.run]", show_default=False)
    ] = None,
    every: EveryOption = "2s",
    count: CountOption = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Watch a running pipeline: processes, rates, lag, retries, disk, and the last errors.

    Only reads the metrics port and the directory. With --json, each update is one line. Without a terminal, there is
    one update, or as many as --count.
    """
    import threading  # noqa: PLC0415 - for this alone

    from quiver.cli.stats.top_figures import showing, take_snapshot  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK as clock  # noqa: N811, PLC0415
    from quiver.pipeline.companion_stores import sibling_directory  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.receivers.settings import split_address  # noqa: PLC0415
    from quiver.settings import parse_duration_s  # noqa: PLC0415

    every_s = parse_duration_s(every, key="--every")
    if every_s <= 0:
        raise UsageError("--every must be positive")
    if endpoint is not None:
        try:
            split_address(endpoint)
        except SettingsError:
            raise UsageError(f"--endpoint: {endpoint!r} is not host:port, for example 127.0.0.1:9464") from None
    notes = sibling_directory(directory, "run") if run_dir is None else run_dir
    if not directory.exists() and not notes.exists():
        raise UsageError(f"neither {directory} nor {notes} exists; give the directory of a pipeline's store")
    if count is None and not sys.stdout.isatty():
        count = 1
    never = threading.Condition()
    before = None
    done = 0
    try:
        while True:
            now = take_snapshot(
                REAL_FILES, str(directory), str(notes), endpoint, at_s=clock.monotonic(), now_ns=clock.now_ns()
            )
            found = showing(now, before)
            if as_json:
                print_json(asdict(found), in_a_line=True)
            else:
                _show(str(directory), found, clock.now_ns())
            before, done = now, done + 1
            if count is not None and done >= count:
                return
            with never:
                clock.wait(never, every_s)
    except KeyboardInterrupt:
        return


def _show(directory: str, found: Showing, now_ns: int) -> None:
    from quiver.cli.reports import Reported, since_success  # noqa: PLC0415 - keeps `--help` quick

    if sys.stdout.isatty():
        typer.echo(_CLEAR, nl=False)
    disk = found.disk
    row = {
        "on disk": human_bytes(int(disk["bytes"] or 0)),
        "of the cap": None if disk["of_the_cap"] is None else f"{disk['of_the_cap']:.0%}",
        "log": None if disk["log_bytes"] is None else human_bytes(int(disk["log_bytes"])),
        "open segment": None if disk["open_bytes"] is None else human_bytes(int(disk["open_bytes"])),
        "segments": None if disk["segments"] is None else int(disk["segments"]),
        "quarantined": None if disk["quarantined"] is None else int(disk["quarantined"]),
    }
    print_table(directory, [row])
    print_table("processes", [asdict(node) for node in found.nodes], empty=_NO_PIPELINE)
    flows = [
        {
            "what": flow.what,
            "of": flow.of or None,
            "per second": None if flow.per_second is None else f"{flow.per_second:,.1f}",
            "since start": flow.total,
        }
        for flow in found.flows
    ]
    print_table("flow", flows, empty="unknown: the pipeline does not serve metrics (`metrics.listen`)")
    rows = [
        {
            "subscriber": one.subscriber,
            "lag bundles": one.lag_bundles,
            "lag bytes": None if one.lag_bytes is None else human_bytes(one.lag_bytes),
            "oldest": human_age(one.oldest_age_s),
            "acked per second": f"{found.rates[one.subscriber]:,.1f}" if one.subscriber in found.rates else None,
            "problem": one.problem,
        }
        | _backoff(found.waiting.get(one.subscriber))
        | {
            "dead letters": found.dead_letters.get(one.subscriber, 0),
            "last success": since_success(found.reports.get(one.subscriber, Reported()), now_ns),
        }
        for one in found.subscribers
    ]
    print_table("subscribers", rows)
    for name, report in found.reports.items():
        waits = found.waiting.get(name)
        is_printed = waits is not None and report.error is not None and waits.last_failure == report.error.message
        if report.error is not None and not is_printed:  # the reason for pending retries is printed below
            typer.echo(f"! {name} fails: {report.error.in_words(now_ns)}")
    for name, waits in found.waiting.items():
        if waits.last_failure is not None:
            does = "halted until it is restarted" if waits.halted else "waits"
            typer.echo(f"! {name} {does}: {waits.last_failure}")
    for line in found.errors:
        typer.echo(f"! {line}")
    if found.problem:
        typer.echo(f"not known: {found.problem}", err=True)


def _backoff(waits: Waiting | None) -> dict[str, Any]:
    """Return the pending retries of a subscriber as columns."""
    from quiver.cli.stats.waiting import when  # noqa: PLC0415 - keeps `--help` quick

    if waits is None:
        return {"retrying": 0, "attempts": None, "next retry": None}
    return {
        "retrying": waits.retrying,
        "attempts": waits.attempts or None,
        "next retry": when(waits.next_retry_s, halted=waits.halted),
    }
