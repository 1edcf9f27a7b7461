"""`quiver topic rebuild-catalog`: rebuild the metadata about objects; and reading of objects for other commands."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.cli.object_store import MetadataOptions, ObjectOptions, metadata_location, object_location
from quiver.errors import DirectoryInUseError, UsageError

if TYPE_CHECKING:
    from quiver.metadata import MetadataLocation
    from quiver.metadata.port import MetadataStore
    from quiver.objects import ObjectLocation
    from quiver.objects.port import ObjectTier
    from quiver.primitives.findings import Finding
    from quiver.topics.cold.catalog import ObjectCatalog
    from quiver.topics.cold.catalog_rebuild import Rebuilt
    from quiver.topics.format.message import Message
    from quiver.topics.reading.check import CheckedTopic

__all__ = [
    "Namespace",
    "RootPrefix",
    "TierPlace",
    "check_objects",
    "messages_of_objects",
    "metadata_of",
    "rebuild_catalog",
]

_TTL_S = 60.0

Objects = Annotated[
    str, typer.Argument(help="The location of the objects: a directory, or a URL such as s3://bucket/prefix.")
]
MetadataUrl = Annotated[str, typer.Option("--metadata", help="etcd://host:port, or sqlite:///path/metadata.db")]
TopicName = Annotated[str, typer.Option("--topic", help="namespace/topic.  [default: every topic with objects]")]
Namespace = Annotated[
    str, typer.Option("--namespace", help="The setting metadata.namespace, the prefix of all metadata keys.")
]
RootPrefix = Annotated[
    str, typer.Option("--root-prefix", help="The setting uploader.root_prefix, the prefix of the keys of objects.")
]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait for a possibly dead owner, whose lease is 300 s.")]


@dataclass(frozen=True, slots=True)
class TierPlace:
    """
    The location of a topic directory's object tier, from the options of a command.

    Attributes:
        objects: the location of the objects.
        metadata: the location of the metadata about them.
        namespace: the prefix of all metadata keys.
        root_prefix: the prefix of the keys of objects, after the namespace.
    """

    objects: ObjectLocation | None = None
    metadata: MetadataLocation | None = None
    namespace: str = ""
    root_prefix: str = "/danube"

    @property
    def root(self) -> str:
        """The prefix of the keys of objects."""
        return (self.namespace + self.root_prefix).rstrip("/")


@contextlib.contextmanager
def metadata_of(root: Path, where: MetadataLocation | None) -> Iterator[MetadataStore | None]:
    """
    Open the metadata at *where*, or the file in the topic directory; yield None if there is neither.

    Raises:
        SettingsError, MetadataUnavailableError, CorruptionError: it cannot be opened.
    """
    from quiver.metadata import open_metadata  # noqa: PLC0415
    from quiver.topics.format.names import METADATA_FILE  # noqa: PLC0415

    default_file = root / METADATA_FILE
    location = where or (f"sqlite://{default_file.resolve()}" if default_file.is_file() else None)
    store = None if location is None else open_metadata(location)
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def messages_of_objects(objects: ObjectLocation, catalogue: ObjectCatalog, start: int, stop: int) -> Iterator[Message]:
    """
    Yield the messages in objects from *start* to *stop* (exclusive), and skip damaged ones.

    Raises:
        ObjectsUnavailableError, MetadataUnavailableError, AccessDeniedError: they cannot be read.
    """
    from quiver.objects import open_objects  # noqa: PLC0415
    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.primitives.scan import Damage  # noqa: PLC0415
    from quiver.topics.cold.pieces import ColdPiece  # noqa: PLC0415
    from quiver.topics.cold.reader import ObjectReader  # noqa: PLC0415
    from quiver.topics.format.message import decode_message  # noqa: PLC0415

    tier = open_objects(objects, writable=False)
    reader = ObjectReader(tier, catalogue, observer=InMemoryObserver())
    while start < stop:
        found = reader.take(start, stop)
        if isinstance(found, ColdPiece):
            for body in found.bodies:
                message = decode_message(body)
                if not isinstance(message, Damage):
                    yield message
            start += len(found.bodies)
        else:
            end = reader.next_offset(start) if found is None else found.next_offset
            start = stop if end is None else end


def check_objects(
    root: Path, checked: CheckedTopic, tier: TierPlace, catalogue: ObjectCatalog | None
) -> Iterator[Finding]:
    """
    Read every message in the objects listed in *catalogue*. Yield findings about damaged and unread messages.

    Raises:
        UsageError: the location of the objects is given without the metadata.
        ObjectsUnavailableError, MetadataUnavailableError, AccessDeniedError: they cannot be read.
    """
    from quiver.objects import open_objects  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.primitives.findings import Finding  # noqa: PLC0415
    from quiver.topics.cold.opening import tier_signs  # noqa: PLC0415

    if catalogue is None:
        if tier.objects is not None:
            raise UsageError("--objects also needs the metadata about the objects; give it with --metadata")
        for path in tier_signs(REAL_FILES, str(root))[:1]:
            reason = "these topics have objects, but no metadata about them; give it with --metadata"
            yield Finding(path, 0, "not read", reason)
    elif tier.objects is None:
        for first, end in checked.only_in_objects:
            reason = f"the messages {first} to {end - 1} are only in objects; use --objects to read them"
            yield Finding(checked.directory, 0, "not read", reason)
    else:
        with contextlib.closing(open_objects(tier.objects, writable=False)) as objects:
            yield from _damage_in_objects(objects, catalogue)


def _damage_in_objects(objects: ObjectTier, catalogue: ObjectCatalog) -> Iterator[Finding]:
    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.primitives.findings import Finding  # noqa: PLC0415
    from quiver.topics.cold.pieces import ColdPiece  # noqa: PLC0415
    from quiver.topics.cold.reader import ObjectReader  # noqa: PLC0415

    reader = ObjectReader(objects, catalogue, observer=InMemoryObserver())
    at = 0
    for span in catalogue.spans():
        at = max(at, span.start_offset)
        while at <= span.end_offset:
            found = reader.take(at, span.end_offset + 1)
            if found is None:
                break  # retention has just removed it
            if isinstance(found, ColdPiece):
                at += len(found.bodies)
                continue
            reason = f"messages {found.first_offset} to {found.next_offset - 1}: {found.reason}"
            yield Finding(found.name, found.position, "damaged", reason)
            at = found.next_offset


def rebuild_catalog(
    objects: Objects,
    metadata: MetadataUrl,
    metadata_option: MetadataOptions = None,
    topic: TopicName = "",
    namespace: Namespace = "",
    root_prefix: RootPrefix = "/danube",
    option: ObjectOptions = None,
    wait: Wait = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """
    Rebuild the metadata by reading every object. Refused while a process owns the topic.

    A dead process owns it until its lease expires; --wait waits for that. Exits with 1 if objects are damaged or
    offsets are missing between them.
    """
    from quiver.metadata import open_metadata  # noqa: PLC0415
    from quiver.objects import open_objects  # noqa: PLC0415
    from quiver.topics.cold.catalog_rebuild import topics_with_objects  # noqa: PLC0415
    from quiver.topics.format.names import check_topic  # noqa: PLC0415

    location = object_location(objects, option) or objects
    tier = open_objects(location, writable=False)
    root = TierPlace(namespace=namespace, root_prefix=root_prefix).root
    known = open_metadata(metadata_location(metadata, metadata_option) or metadata)
    with contextlib.closing(tier), contextlib.closing(known):
        names = [check_topic(topic)] if topic else topics_with_objects(tier)
        found = {name: _rebuild(tier, known, name, root, wait) for name in names}
    if as_json:
        print_json([{"topic": name} | _report(rebuilt) for name, rebuilt in found.items()])
    else:
        rows = [
            {
                "topic": name,
                "objects": len(rebuilt.descriptors),
                "from": rebuilt.descriptors[0].start_offset if rebuilt.descriptors else None,
                "to": rebuilt.descriptors[-1].end_offset if rebuilt.descriptors else None,
                "damaged": [str(error) for error in rebuilt.damaged],
                "left out": len(rebuilt.left_out),
                "missing": [f"{first}-{end - 1}" for first, end in rebuilt.holes],
            }
            for name, rebuilt in found.items()
        ]
        print_table(f"objects of {location}", rows)
    if any(rebuilt.damaged or rebuilt.holes for rebuilt in found.values()):
        raise typer.Exit(1)


def _rebuild(tier: ObjectTier, store: MetadataStore, topic: str, root: str, wait_s: float) -> Rebuilt:
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.metadata import acquire  # noqa: PLC0415
    from quiver.topics.cold.catalog import ObjectCatalog  # noqa: PLC0415
    from quiver.topics.cold.catalog_rebuild import rebuild_catalog as rebuild  # noqa: PLC0415
    from quiver.topics.format.descriptor import owner_key  # noqa: PLC0415

    try:
        ownership = acquire(
            store, owner_key(root, topic), owner=f"rebuild {secrets.token_hex(4)}", ttl_s=_TTL_S, clock=SYSTEM_CLOCK,
            patience_s=wait_s,
        )  # fmt: skip
    except DirectoryInUseError as error:
        if error.retry_after_s is None:
            raise
        # Each call of this command sees the owner for the first time, so it must wait for a complete lease.
        wait = math.ceil(round(error.retry_after_s + wait_s, 3)) + 1
        remedy = f"unload it there, or, if no process has it open, wait for its lease with --wait {wait}"
        raise DirectoryInUseError(error.path, error.holder, remedy=remedy, retry_after_s=error.retry_after_s) from None
    try:
        return rebuild(tier, ObjectCatalog(store, root=root, topic=topic, commits=ownership))
    finally:
        ownership.release()


def _report(rebuilt: Rebuilt) -> dict[str, Any]:
    return {
        "objects": [
            {
                "object_id": one.object_id,
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
                "size": one.size,
            }
            for one in rebuilt.descriptors
        ],
        "damaged": [{"key": error.path, "offset": error.offset, "reason": error.reason} for error in rebuilt.damaged],
        "left_out": rebuilt.left_out,
        "holes": [list(hole) for hole in rebuilt.holes],
    }
