"""`quiver subscribers DIR list|drop|rewind`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.counted import counted
from quiver.errors import UnknownSubscriberError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiver.store.reading.listing import RewindEffect, SubscriberSummary

__all__ = ["subscribers"]

ACTIONS = ("list", "drop", "rewind")


def subscribers(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, drop or rewind.")] = "list",
    subscriber: Annotated[str | None, typer.Argument(metavar="ID", help="The subscriber to drop or rewind.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="The new position: earliest, latest, a segment number, a time, or 90m for 90 minutes ago."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    List the subscribers of a store and their lag; drop or rewind one. Those of companion stores are included.

    Safe while a writer runs. Dropping and rewinding are refused while a process works for the subscriber. Rewinding
    delivers existing bundles again. If --to is ahead of the subscriber, undelivered bundles before that position are
    skipped permanently and recorded in quiver.drops.ID.
    """
    from quiver.pipeline.companion_stores import find_companion_stores  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.reading.check import refuse_snapshot  # noqa: PLC0415

    roots = instance_roots(REAL_FILES, str(directory))
    others = [root for stores in find_companion_stores(REAL_FILES, directory).values() for root in stores]
    if action not in ACTIONS:
        raise UsageError(f"unknown action {action!r}; use one of {', '.join(ACTIONS)}")
    if action == "list":
        if subscriber is not None or to is not None:
            raise UsageError("list accepts neither ID nor --to")
        _list(str(directory), [*roots, *others], as_json=as_json)
        return
    if subscriber is None:
        raise UsageError(f"{action} needs a subscriber: quiver subscribers {directory} {action} ID")
    if (to is None) is (action == "rewind"):
        raise UsageError("rewind needs --to, and drop does not accept it")
    refuse_snapshot(REAL_FILES, str(directory))
    chosen = _those_with(roots, others, subscriber)
    done = _drop(chosen, subscriber) if to is None else _rewind(chosen, subscriber, to)
    if as_json:
        print_json(done)
        return
    for one in done:
        typer.echo(f"{one['directory']}: {one['done']}")


def _list(directory: str, roots: Sequence[str], *, as_json: bool) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    from quiver.cli.console.paths import place_of  # noqa: PLC0415
    from quiver.cli.reports import reported, since_success  # noqa: PLC0415
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.listing import summarize_subscribers  # noqa: PLC0415

    now_ns = SYSTEM_CLOCK.now_ns()
    found = [(root, one) for root in roots for one in summarize_subscribers(REAL_FILES, root, now_ns=now_ns)]
    waiting = [_retries(root, one.subscriber, now_ns) for root, one in found]
    reports = [reported(REAL_FILES, [root], one.subscriber) for root, one in found]
    if as_json:
        described = zip(found, waiting, reports, strict=True)
        print_json(
            [
                {"directory": root, **as_dict(one), **retries, **asdict(report)}
                for (root, one), retries, report in described
            ]
        )
    else:
        several = len(roots) > 1
        rows = [
            ({"in": place_of(root, directory)} if several else {})
            | row(one)
            | _retry_row(one, retries)
            | {"last_success": since_success(report, now_ns)}
            for (root, one), retries, report in zip(found, waiting, reports, strict=True)
        ]
        print_table(f"subscribers of {directory}", rows)
        for (root, one), report in zip(found, reports, strict=True):
            if report.error is not None:
                where = f" in {place_of(root, directory)}" if several else ""
                typer.echo(f"! {one.subscriber}{where} fails: {report.error.in_words(now_ns)}")
            if report.report_problem is not None:
                typer.echo(f"! {report.report_problem}")
    problems = [one.problem for _, one in found] + [retries["retry_problem"] for retries in waiting]
    if any([*problems, *(report.report_problem for report in reports)]):
        raise typer.Exit(1)


def as_dict(one: SubscriberSummary) -> dict[str, Any]:
    """Return a subscriber as plain values."""
    from dataclasses import asdict  # noqa: PLC0415

    return asdict(one)


def row(one: SubscriberSummary) -> dict[str, Any]:
    """Return a subscriber as a line of a table."""
    return {
        "subscriber": one.subscriber,
        "lag_bundles": one.lag_bundles,
        "lag_segments": one.lag_segments,
        "lag_bytes": None if one.lag_bytes is None else human_bytes(one.lag_bytes),
        "oldest": human_age(one.oldest_age_s),
        "progress": human_age(one.progress_age_s),
        "owner": one.owner if one.is_owned else (None if one.is_owned is None else "none"),
        "problem": one.problem,
    }


def _retries(root: str, subscriber: str, now_ns: int) -> dict[str, Any]:
    """Return an exporter's retries and the number of its dead letters."""
    from dataclasses import asdict  # noqa: PLC0415

    from quiver.cli.stats.waiting import waiting_of  # noqa: PLC0415
    from quiver.delivery.dead_letters import count_dead_letters  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    waiting = waiting_of(REAL_FILES, (root,), subscriber, now_ns=now_ns)
    return asdict(waiting) | {"dead_letters": count_dead_letters(REAL_FILES, root, subscriber)}


def _retry_row(one: SubscriberSummary, retries: dict[str, Any]) -> dict[str, Any]:
    from quiver.cli.stats.waiting import when  # noqa: PLC0415

    return {
        "problem": one.problem or retries["retry_problem"],
        "retrying": retries["retrying"],
        "attempts": retries["attempts"],
        "next_retry": when(retries["next_retry_s"], halted=retries["halted"]),
        "dead_letters": retries["dead_letters"],
    }


def _drop(roots: Sequence[str], subscriber: str) -> list[dict[str, Any]]:
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.listing import drop  # noqa: PLC0415

    done: list[dict[str, Any]] = []
    for root in roots:
        pending = drop(REAL_FILES, root, subscriber)
        undelivered = "an unknown number of bundles" if pending is None else counted(pending, "bundle")
        text = f"{subscriber} was dropped; {undelivered} had not been delivered to it"
        done.append({"directory": root, "subscriber": subscriber, "dropped_bundles": pending, "done": text})
    return done


def _rewind(roots: Sequence[str], subscriber: str, to: str) -> list[dict[str, Any]]:
    from quiver.cli.console.instants import parse_start  # noqa: PLC0415
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.format.names import skip_ledger_name  # noqa: PLC0415
    from quiver.store.reading.listing import rewind  # noqa: PLC0415

    start: Any = parse_start(to, option="--to", now_ns=SYSTEM_CLOCK.now_ns())
    if isinstance(start, int) and len(roots) > 1:
        raise UsageError(f"--to {to}: each core counts its own segments; give a time, or the directory of one core")
    done: list[dict[str, Any]] = []
    for root in roots:
        rewound = rewind(REAL_FILES, root, subscriber, start)
        where = f"bundle {rewound.index} of segment" if rewound.index else "segment"
        where = f"{where} {rewound.segment}"
        text = f"{subscriber} continues at {where} and gets {counted(rewound.bundles_again, 'bundle')} again"
        if rewound.bundles_skipped:
            _forget_retries(root, subscriber, rewound)
            ledger = f"{root}/{skip_ledger_name(subscriber)}"
            skipped = counted(rewound.bundles_skipped, "bundle")
            text = f"{subscriber} continues at {where} and skips {skipped}, see {ledger}"
        done.append(
            {
                "directory": root,
                "subscriber": subscriber,
                "segment": rewound.segment,
                "index": rewound.index,
                "bundles_again": rewound.bundles_again,
                "bundles_skipped": rewound.bundles_skipped,
                "done": text,
            }
        )
    return done


def _forget_retries(root: str, subscriber: str, rewound: RewindEffect) -> None:
    """Remove skipped bundles from the exporter's retry set, so that they are not retried."""
    from quiver.bundle import BundleRef  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.format.names import retry_set_name  # noqa: PLC0415
    from quiver.store.subscribers.retry_set import RetrySet  # noqa: PLC0415

    if not REAL_FILES.exists(f"{root}/{retry_set_name(subscriber)}"):
        return
    with RetrySet.open(REAL_FILES, root, subscriber) as retries:
        for entry in retries.entries():
            if entry.ref < BundleRef(rewound.segment, rewound.index):
                retries.resolved(entry.ref)
        retries.save()


def _those_with(roots: Sequence[str], others: Sequence[str], subscriber: str) -> Sequence[str]:
    """
    Return the stores in *roots* with the subscriber, or those in *others* if there are none.

    An exporter that was moved after a processor has the same name in both, and the old one is to be dropped. A single
    root is returned unchecked, and reports an unknown subscriber itself.
    """
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.format.names import check_subscriber_id  # noqa: PLC0415
    from quiver.store.subscribers.progress_store import find_subscribers, lock_subscriber  # noqa: PLC0415

    if len(roots) == 1 and not others:
        return roots
    check_subscriber_id(subscriber)
    own, elsewhere = (
        [root for root in some if subscriber in find_subscribers(REAL_FILES, root)] for some in (roots, others)
    )
    found = own or elsewhere
    if not found and len(roots) == 1:
        return roots
    if not found:
        raise UnknownSubscriberError(f"no subscriber {subscriber!r} in {', '.join(roots)}")
    for root in found:
        # All cores or none: otherwise a refusal by one core would come after the others had changed.
        lock_subscriber(REAL_FILES, root, subscriber).release()
    return found
