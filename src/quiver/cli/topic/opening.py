"""Options of the `quiver topic` commands that open topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.object_store import metadata_location, object_location
from quiver.cli.topic.objects import TierPlace

if TYPE_CHECKING:
    from quiver.topics.store import TopicStore

__all__ = ["FileName", "MetadataUrl", "Root", "Topic", "Wait", "open_topics", "tier_of"]

Root = Annotated[Path, typer.Argument(help="The directory of the topics.")]
Topic = Annotated[str, typer.Argument(help="namespace/topic")]
MetadataUrl = Annotated[
    str | None,
    typer.Option(
        "--metadata", help="The metadata about objects: etcd://host:port or sqlite:///path.  [default: in the topics]"
    ),
]
FileName = Annotated[str | None, typer.Option("--file-name", help="The setting wal.file_name, if it is not wal.log.")]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0.0,
        help="Seconds to wait for another process that has the directory open, or for a possibly dead owner.",
    ),
]


def tier_of(
    objects: str | None,
    option: list[str] | None,
    metadata: str | None,
    metadata_option: list[str] | None,
    namespace: str,
    root_prefix: str,
) -> TierPlace:
    """
    Return the location of the object tier from the options of a command.

    Raises:
        SettingsError, UsageError: the options are invalid.
    """
    where = metadata_location(metadata, metadata_option)
    return TierPlace(object_location(objects, option), where, namespace, root_prefix)


def open_topics(root: Path, tier: TierPlace, file_name: str | None, *, wait_s: float) -> TopicStore:
    """
    Open the topics below *root*, for as long as the command runs.

    Raises:
        DirectoryInUseError: another process still has the directory open after *wait_s*. SettingsError, UsageError,
        AccessDeniedError, ObjectsUnavailableError, MetadataUnavailableError: as `TopicStore.open`.
    """
    from quiver.topics.settings import MetadataSettings, TopicSettings, UploaderSettings, WalSettings  # noqa: PLC0415
    from quiver.topics.store import TopicStore  # noqa: PLC0415 - keeps `--help` quick

    settings = TopicSettings(
        wal=WalSettings() if file_name is None else WalSettings(file_name=file_name),
        uploader=UploaderSettings(root_prefix=tier.root_prefix),
        metadata=MetadataSettings(namespace=tier.namespace),
    )
    return TopicStore.open(
        root, settings=settings, objects=tier.objects, metadata=tier.metadata, takeover_wait=wait_s, background=False
    )
