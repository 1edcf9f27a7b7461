"""`quiver topic list|inspect|verify|repair|tail|produce|subscriptions`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, exit_of_verify, human_bytes, print_json, print_table
from quiver.cli.object_store import MetadataOptions, ObjectOptions, ObjectsUrl
from quiver.cli.topic.admin import add_admin_commands
from quiver.cli.topic.objects import (
    Namespace,
    RootPrefix,
    TierPlace,
    check_objects,
    messages_of_objects,
    metadata_of,
    rebuild_catalog,
)
from quiver.cli.topic.opening import FileName, MetadataUrl, Root, Topic, Wait, open_topics, tier_of
from quiver.counted import counted
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.primitives.disk.file_system import FileSystem
    from quiver.topics.cold.catalog import ObjectCatalog
    from quiver.topics.format.message import Message
    from quiver.topics.reading.check import CheckedTopic
    from quiver.topics.reading.read import TopicFiles

__all__ = ["build_topic_app"]

POLL_S = 0.2
_CHECKS_MAX = 5


def build_topic_app() -> typer.Typer:
    """Return the commands below `quiver topic`."""
    app = typer.Typer(help="Inspect, read and write topics.", no_args_is_help=True, add_completion=False)
    app.command("list", short_help="List the topics.")(list_topics)
    app.command("inspect", short_help="Show a topic's files, objects, subscriptions.")(inspect)
    app.command("verify", short_help="Read every message and check it.")(verify)
    app.command("repair", short_help="Truncate torn tails, quarantine damage.")(repair)
    app.command("tail", short_help="Print messages.")(tail)
    app.command("produce", short_help="Append messages.")(produce)
    app.command("subscriptions", short_help="Show subscriptions and their lag.")(subscriptions)
    add_admin_commands(app)
    app.command("rebuild-catalog", short_help="Rebuild the metadata from the objects.")(rebuild_catalog)
    app.command("rebuild-catalogue", hidden=True, deprecated=True)(rebuild_catalog)  # its former name
    return app


def list_topics(
    root: Root,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    as_json: JsonFlag = False,
) -> None:
    """List the topics with their offsets, files and subscriptions. Safe while a writer runs."""
    tier = tier_of(None, None, metadata, metadata_option, namespace, root_prefix)
    checked = _check_each(root, _topics(root), tier).items()
    if as_json:
        print_json([{"topic": topic} | one.as_dict() for topic, one in checked])
        return
    rows = [
        {
            "topic": topic,
            "start": one.start_offset,
            "next": one.next_offset,
            "files": len(one.files),
            "size": human_bytes(one.size_bytes),
            "subscriptions": [saved.name for saved in one.subscriptions],
            "intact": one.is_intact,
        }
        for topic, one in checked
    ]
    print_table(f"topics of {root}", rows)


def inspect(
    root: Root,
    topic: Topic,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    as_json: JsonFlag = False,
) -> None:
    """Show a topic's files and subscriptions, with their problems. Exits with 1 if something is damaged."""
    tier = tier_of(None, None, metadata, metadata_option, namespace, root_prefix)
    (one,) = _check_each(root, [topic], tier).values()
    if as_json:
        print_json(one.as_dict())
    else:
        typer.echo(
            f"{one.directory}: offsets {one.start_offset} to {one.next_offset - 1}, synced to {one.synced_offset}"
        )
        print_table("files", [_file_row(file) for file in one.as_dict()["files"]])
        if one.objects:
            typer.echo(f"objects: {len(one.objects):,}, offsets {one.objects[0][0]} to {one.objects[-1][1] - 1}")
        print_table("subscriptions", _subscription_rows(one))
        _print_findings(one)
    if not one.is_intact:
        raise typer.Exit(1)


def verify(
    root: Root,
    topic: Annotated[str | None, typer.Argument(help="namespace/topic.  [default: all topics]")] = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    as_json: JsonFlag = False,
) -> None:
    """
    Read and check every message of one or all topics. Safe while a writer runs.

    Messages that are not in files are lost, unless they are in objects according to the metadata; with --objects, those
    are read and checked, too. Exits with 1 if something is damaged, and with 3 if nothing is, but something was not
    read.
    """
    names = [topic] if topic is not None else _topics(root)
    tier = tier_of(objects, option, metadata, metadata_option, namespace, root_prefix)
    checked = _check_each(root, names, tier, reads_all=True).values()
    if as_json:
        print_json([one.as_dict() for one in checked])
    else:
        for one in checked:
            messages = sum(file.messages for file in one.files)
            verdict = "DAMAGED" if one.damaged else "NOT ALL READ" if one.unread else "intact"
            typer.echo(f"{one.directory}: {verdict}, {counted(messages, 'message')} in files")
            _print_findings(one)
    exit_of_verify(damaged=any(one.damaged for one in checked), unread=any(one.unread for one in checked))


def repair(
    root: Root,
    topic: Annotated[str | None, typer.Argument(help="namespace/topic.  [default: all topics]")] = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    file_name: FileName = None,
    wait: Wait = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """
    Recover topics as opening does: truncate torn tails, quarantine damaged bytes, and continue with safe offsets.

    No process may have the topics open. Every message is read. Damaged bytes also stay in place: readers skip them and
    report the lost messages, and `verify` reports them as quarantined. Exits with 1 if there is damage that cannot be
    repaired.
    """
    from quiver.topics.format.names import QUARANTINE_DIR  # noqa: PLC0415 - keeps `--help` quick

    names = [topic] if topic is not None else _topics(root)
    tier = tier_of(objects, option, metadata, metadata_option, namespace, root_prefix)
    before = _check_each(root, names, tier)
    with open_topics(root, tier, file_name, wait_s=wait) as store:
        for name in names:
            with store.topic(name).reader("earliest", follow=False, on_lost="skip") as reader:
                for _ in reader:  # reading quarantines damage
                    pass
    after = _check_each(root, names, tier)
    rows = [
        {
            "topic": name,
            "truncated_bytes": before[name].size_bytes - one.size_bytes,
            "quarantined": sum(f"/{QUARANTINE_DIR}/" in finding.path for finding in one.findings),
            "next": one.next_offset,
            "intact": one.is_intact,
        }
        for name, one in after.items()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(f"topics of {root}", rows)
    if not all(one.is_intact for one in after.values()):
        raise typer.Exit(1)


def tail(
    root: Root,
    topic: Topic,
    start: Annotated[str, typer.Option("--from", help="earliest, latest, or an offset.")] = "earliest",
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many messages.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for new messages.")] = False,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    as_json: JsonFlag = False,
) -> None:
    """
    Print the messages in local files, and with --objects also those in objects. Safe while a writer runs.

    Lost ranges are skipped.
    """
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415 - keeps `--help` quick
    from quiver.topics.reading.read import TopicFiles  # noqa: PLC0415

    source = TopicFiles(str(root), topic)
    if start not in {"earliest", "latest"} and not start.isdecimal():
        raise UsageError("--from must be earliest, latest or an offset")
    at = int(start) if start.isdecimal() else 0 if start == "earliest" else source.next_offset()
    tier = tier_of(objects, option, metadata, metadata_option, namespace, root_prefix)
    messages = _messages(root, topic, source, at, tier)
    printed = 0
    pause = threading.Condition()
    while True:
        for message in messages:
            _print_message(message, as_json=as_json)
            at = message.offset + 1
            printed += 1
            if printed == count:
                return
        if not follow:
            return
        with pause:
            SYSTEM_CLOCK.wait(pause, POLL_S)
        messages = source.read(max(at, source.start_offset()), on_lost="skip")


def _messages(root: Path, topic: str, source: TopicFiles, start: int, tier: TierPlace) -> Iterator[Message]:
    from quiver.topics.cold.catalog import ObjectCatalog  # noqa: PLC0415
    from quiver.topics.format.names import check_topic  # noqa: PLC0415

    at = start
    with metadata_of(root, tier.metadata) as store:
        name = check_topic(topic)
        catalogue = None if store is None else ObjectCatalog(store, root=tier.root, topic=name)
        for message in source.read(max(start, source.start_offset()), on_lost="skip"):
            if message.offset > at and catalogue is not None:
                yield from _from_objects(catalogue, tier, at, message.offset)
            yield message
            at = message.offset + 1
        if catalogue is not None:
            yield from _from_objects(catalogue, tier, at, catalogue.next_offset)


def _from_objects(catalogue: ObjectCatalog, tier: TierPlace, start: int, stop: int) -> Iterator[Message]:
    found = catalogue.at_or_after(start)
    if found is None or found.start_offset >= stop:
        return  # they are in neither files nor objects
    first = max(start, found.start_offset)
    if tier.objects is None:
        typer.echo(f"messages {first} to {stop - 1} are in objects; give their location with --objects", err=True)
    else:
        yield from messages_of_objects(tier.objects, catalogue, first, stop)


def produce(
    root: Root,
    topic: Topic,
    payloads: Annotated[list[str] | None, typer.Argument(help="Messages.  [default: lines of standard input]")] = None,
    key: Annotated[str | None, typer.Option(help="The key of each message.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="An attribute name=value of each message; may be repeated.")
    ] = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    metadata: MetadataUrl = None,
    metadata_option: MetadataOptions = None,
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    file_name: FileName = None,
    wait: Wait = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Append messages to a topic, durably. No other process may have the directory open."""
    attributes: dict[str, str] = {}
    for pair in attribute or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--attribute {pair!r}: write name=value")
        attributes[name] = value
    found: list[int] = []
    tier = tier_of(objects, option, metadata, metadata_option, namespace, root_prefix)
    with open_topics(root, tier, file_name, wait_s=wait) as store:
        log = store.topic(topic)
        # Keep the bytes: they may not be text.
        lines = map(os.fsencode, payloads) if payloads else (line.rstrip(b"\n") for line in sys.stdin.buffer)
        found.extend(log.append(line, attributes=attributes or None, key=key) for line in lines)
        log.flush()
    if as_json:
        print_json({"topic": topic, "offsets": found})
    else:
        offsets = f", offsets {found[0]} to {found[-1]}" if len(found) > 1 else f", offset {found[0]}" if found else ""
        typer.echo(f"{topic}: {counted(len(found), 'message')}{offsets}")


def subscriptions(root: Root, topic: Topic, as_json: JsonFlag = False) -> None:
    """Show the subscriptions of a topic and their lag. Safe while a writer runs."""
    one = _check(root, topic)
    rows = _subscription_rows(one)
    if as_json:
        print_json(rows)
    else:
        print_table(f"subscriptions of {topic}", rows)


def _topics(root: Path) -> list[str]:
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.topics.format.names import ACTIVE_FILE  # noqa: PLC0415
    from quiver.topics.reading.listing import topics_below  # noqa: PLC0415

    return topics_below(REAL_FILES, str(root), file_name=ACTIVE_FILE)


def _check(root: Path, topic: str) -> CheckedTopic:
    return _check_each(root, [topic], TierPlace())[topic]


def _check_each(root: Path, topics: list[str], tier: TierPlace, *, reads_all: bool = False) -> dict[str, CheckedTopic]:
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.topics.cold.catalog import ObjectCatalog  # noqa: PLC0415
    from quiver.topics.format.names import check_topic  # noqa: PLC0415

    found = {}
    with metadata_of(root, tier.metadata) as store, ProgressDisplay("reading") as progress:
        for topic in map(check_topic, topics):
            directory = root / topic
            if not directory.is_dir():
                raise UsageError(f"{directory} has no topic")
            catalogue = None if store is None else ObjectCatalog(store, root=tier.root, topic=topic)
            one = _check_while_files_go(progress.fs(REAL_FILES), str(directory), catalogue)
            if reads_all:
                one = replace(one, findings=(*one.findings, *check_objects(root, one, tier, catalogue)))
            found[topic] = one
    return found


def _check_while_files_go(fs: FileSystem, directory: str, catalogue: ObjectCatalog | None) -> CheckedTopic:
    """Check a topic, again if its writer removes files meanwhile because objects have them."""
    from quiver.topics.reading.check import check_topic_directory  # noqa: PLC0415 - keeps `--help` quick

    for left in reversed(range(_CHECKS_MAX)):
        names = fs.list_dir(directory)
        known = () if catalogue is None else catalogue.spans()
        ranges = [(one.start_offset, one.end_offset + 1) for one in known]
        try:
            checked = check_topic_directory(fs, directory, objects=ranges)
        except FileNotFoundError:
            if not left:
                raise
        else:
            if checked.is_intact or not left or fs.list_dir(directory) == names:
                break
        if catalogue is not None:
            catalogue.refresh()
    return checked


def _file_row(file: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": Path(file["path"]).name,
        "first": file["first_offset"],
        "next": file["next_offset"],
        "messages": file["messages"],
        "size": human_bytes(file["size_bytes"]),
    }


def _subscription_rows(one: CheckedTopic) -> list[dict[str, Any]]:
    return [
        {
            "subscription": saved.name,
            "kind": saved.kind,
            "next_offset": saved.next_offset,
            "lag_messages": max(0, one.next_offset - saved.next_offset),
            "acked_above": sum(end - first for first, end in saved.acked),
        }
        for saved in one.subscriptions
    ]


def _print_findings(one: CheckedTopic) -> None:
    if one.findings:
        print_table("findings", [finding.as_dict() for finding in one.findings])


def _print_message(message: Message, *, as_json: bool) -> None:
    text = message.payload.decode("utf-8", "backslashreplace")
    if as_json:
        print_json(
            {
                "offset": message.offset,
                "publish_time_ns": message.publish_time_ns,
                "key": message.key,
                "attributes": dict(message.attributes),
                "payload": text,
            },
            in_a_line=True,
        )
    else:
        typer.echo(f"{message.offset}\t{text}")
