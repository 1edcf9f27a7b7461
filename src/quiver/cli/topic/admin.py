"""
`quiver topic upload|unload|reappend|truncate|delete|seek|unsubscribe`.

If a process has the topics open, the command asks it to do the work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.cli.object_store import MetadataOptions, ObjectOptions, ObjectsUrl
from quiver.cli.topic.objects import Namespace, RootPrefix, TierPlace
from quiver.cli.topic.opening import FileName, MetadataUrl, Root, Topic, open_topics, tier_of
from quiver.errors import DirectoryInUseError

__all__ = ["add_admin_commands"]

EachTopic = Annotated[str | None, typer.Argument(help="namespace/topic.  [default: all topics]")]
SubscriptionName = Annotated[str, typer.Argument(help="The name of the subscription.")]
START_HELP = "earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z, or 90m for 90 minutes ago."


@dataclass(frozen=True, slots=True)
class _Access:
    """The options for access to the topics below `root`."""

    root: Path
    tier: TierPlace
    file_name: str | None
    wait_s: float


def _access(
    root: Root,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    file_name: FileName = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0.0,
            help="Seconds to wait for the process that has the topics open, or for a possibly dead owner.",
        ),
    ] = 60.0,
) -> _Access:
    tier = tier_of(objects, option, metadata, metadata_option, namespace, root_prefix)
    return _Access(root, tier, file_name, wait)


def add_admin_commands(app: typer.Typer) -> None:
    """Add these commands to `quiver topic`."""
    app.command("upload", short_help="Upload messages that are not in objects.")(_with_access(upload))
    app.command("unload", short_help="Hand topics over to another machine.")(_with_access(unload))
    app.command("reappend", short_help="Append again messages that another owner replaced.")(_with_access(reappend))
    app.command("truncate", short_help="Delete the oldest messages.")(_with_access(truncate))
    app.command("delete", short_help="Delete a topic.")(_with_access(delete))
    app.command("seek", short_help="Move a subscription.")(_with_access(seek))
    app.command("unsubscribe", short_help="Remove a subscription.")(_with_access(unsubscribe))


def _with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* with the options of `_access` instead of its argument `access`, for typer."""
    shared = inspect.signature(_access).parameters
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "access"]

    def run(**given: Any) -> None:
        command(access=_access(**{name: given.pop(name) for name in shared}), **given)

    # The directory comes first; parameters without a default are arguments.
    needed = [one for one in own if one.default is inspect.Parameter.empty]
    ordered = [shared["root"], *needed, *(one for one in own if one not in needed), *list(shared.values())[1:]]
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(_access, include_extras=True)}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in ordered]
    )
    run.__annotations__ = {one.name: hints[one.name] for one in ordered}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def upload(access: _Access, topic: EachTopic = None, as_json: JsonFlag = False) -> None:
    """
    Upload all appended messages of one or all topics. Exits with 1 if some could not be uploaded.

    If a process has the topics open, that process does it.
    """
    _print_topics(_administer(access, "upload", topic=topic), as_json=as_json)


def unload(access: _Access, topic: EachTopic = None, as_json: JsonFlag = False) -> None:
    """
    Upload one or all topics and release ownership, so that another machine can continue at the next offset immediately.

    Closing the topics does the same; this command is for a machine whose process died. A process that has the topics
    open closes them, and its next append is refused. Exits with 1 if some topics could not be released.
    """
    _print_topics(_administer(access, "unload", topic=topic), as_json=as_json)


def reappend(access: _Access, topic: EachTopic = None, as_json: JsonFlag = False) -> None:
    """
    Append the messages that another owner's messages replaced, from quarantine/*.replaced.

    Each is appended once, even if the command is repeated, and gets a new offset. Exits with 1 if some could not be
    appended or read.

    If a process has the topics open, that process does it.
    """
    found = _administer(access, "reappend", topic=topic)["topics"]
    rows: list[dict[str, Any]] = [
        {"topic": one["topic"], **file, "problem": one.get("problem")}
        for one in found
        for file in one.get("files") or ([{}] if "problem" in one else [])
    ]
    if as_json:
        print_json(found)
    else:
        columns = ("topic", "file", "first_offset", "appended", "already_there", "damaged", "problem")
        print_table(
            "replaced files",
            [{column: row.get(column) for column in columns} for row in rows],
            empty="none",
        )
    if any(row["problem"] or row.get("damaged") for row in rows):
        raise typer.Exit(1)


def truncate(
    access: _Access,
    topic: Topic,
    before: Annotated[str, typer.Option("--before", help=f"The first message to keep: {START_HELP}")],
    as_json: JsonFlag = False,
) -> None:
    """
    Delete older messages of a topic, in units of files and objects, even if subscriptions have not read them.

    If a process has the topics open, that process does it.
    """
    result = _administer(access, "truncate", topic=topic, before=_start(before, "--before"))
    if as_json:
        print_json({"topic": topic, **result})
    else:
        typer.echo(f"{topic} now starts at offset {result['start_offset']}")


def delete(
    access: _Access,
    topic: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Delete a topic: its local messages, objects, subscriptions, and quarantined files.

    If a process has the topics open, that process does it.
    """
    if not yes:
        typer.confirm(f"Delete {topic} of {access.root} permanently?", abort=True)
    _administer(access, "delete", topic=topic)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        typer.echo(f"{topic} is deleted")


def seek(
    access: _Access,
    topic: Topic,
    subscription: SubscriptionName,
    to: Annotated[str, typer.Option("--to", help=START_HELP)],
    as_json: JsonFlag = False,
) -> None:
    """
    Move a subscription back or forward. Pending answers of its consumers are discarded.

    If a process has the topics open, that process does it. Refused while a streaming query or a pipeline
    uses this subscription.
    """
    result = _administer(access, "seek", topic=topic, subscription=subscription, start=_start(to, "--to"))
    if as_json:
        print_json({"topic": topic, "subscription": subscription, **result})
    else:
        typer.echo(f"{subscription} of {topic} continues at offset {result['offset']}")


def unsubscribe(access: _Access, topic: Topic, subscription: SubscriptionName, as_json: JsonFlag = False) -> None:
    """
    Remove a subscription and its position.

    If a process has the topics open, that process does it. Refused while a streaming query or a pipeline
    uses this subscription.
    """
    _administer(access, "unsubscribe", topic=topic, subscription=subscription)
    if as_json:
        print_json({"topic": topic, "subscription": subscription, "removed": True})
    else:
        typer.echo(f"{subscription} of {topic} is removed")


def _start(text: str, option: str) -> str | int:
    from quiver.cli.console.instants import parse_start  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415

    found = parse_start(text, option=option, now_ns=SYSTEM_CLOCK.now_ns())
    return found if isinstance(found, (str, int)) else found.isoformat()


def _administer(access: _Access, command: str, **arguments: Any) -> Mapping[str, Any]:
    """Run *command*, or ask the process that has the topics open."""
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415 - keeps `--help` quick
    from quiver.errors import UsageError  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.topics.format.request import TopicRequest  # noqa: PLC0415
    from quiver.topics.requests import ask, perform  # noqa: PLC0415

    if not access.root.is_dir():
        raise UsageError(f"{access.root} does not exist")
    request = TopicRequest(command, arguments)
    answer: Mapping[str, Any] | None = None
    while answer is None:
        try:
            store = open_topics(access.root, access.tier, access.file_name, wait_s=0.0)
        except DirectoryInUseError:
            answer = ask(REAL_FILES, str(access.root), request, wait_s=access.wait_s, clock=SYSTEM_CLOCK)
            continue
        with store as opened:
            answer = perform(opened, request, wait_s=access.wait_s, clock=SYSTEM_CLOCK)
    return answer


def _print_topics(result: Mapping[str, Any], *, as_json: bool) -> None:
    rows: Sequence[dict[str, Any]] = result["topics"]
    if as_json:
        print_json(rows)
    else:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        print_table("topics", [{column: row.get(column) for column in columns} for row in rows])
    if any("problem" in row for row in rows):
        raise typer.Exit(1)
