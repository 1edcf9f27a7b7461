"""Opening the object tier from settings: a verified object store, the metadata store, and the owner's name."""

from __future__ import annotations

import os.path
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace

from quiver.clock import Clock
from quiver.errors import SettingsError, UsageError
from quiver.metadata.location import MetadataLocation
from quiver.metadata.opening import open_metadata
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.observe import Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staging import names_in
from quiver.topics.cold.tier import ObjectColdTier
from quiver.topics.format.names import METADATA_FILE, UPLOADER_CHECKPOINT, is_namespace
from quiver.topics.format.watch import WATCH_FILE
from quiver.topics.settings import TopicSettings

__all__ = [
    "OWNER_FILE",
    "object_tier_of",
    "open_cold_tier",
    "owner_of",
    "refuse_without_tier",
    "require_tier_effect",
    "tier_signs",
]

OWNER_FILE = "owner.id"
_OWNER_BYTES_MAX = 64


def owner_of(fs: FileSystem, root: str) -> str:
    """
    Return the owner name of the directory *root*, created by the first call. Durable on return.

    The holder of the directory's lock is this owner: after a restart it takes its topics back without waiting.

    Raises:
        OSError: the file cannot be read or written.
    """
    path = f"{root}/{OWNER_FILE}"
    try:
        name = fs.read_all(path, size_max=_OWNER_BYTES_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError:
        name = ""
    if not name:
        name = secrets.token_hex(8)
        replace_file(fs, path, name.encode())
    return name


def tier_signs(fs: FileSystem, root: str) -> list[str]:
    """
    Return the paths that show that the topics below *root* had an object tier; nothing if they never had one.

    The owner's name may be lost, and the metadata may be lost or elsewhere: the upload checkpoint next to each topic
    remains. The checkpoints are returned as one path, with stars for the topics.

    Raises:
        OSError: the directory cannot be read.
    """
    found = [f"{root}/{name}" for name in (OWNER_FILE, METADATA_FILE) if fs.exists(f"{root}/{name}")]
    if any(fs.exists(f"{directory}/{UPLOADER_CHECKPOINT}") for directory in _directories_below(fs, root)):
        found.append(f"{root}/*/*/{UPLOADER_CHECKPOINT}")
    return found


def _directories_below(fs: FileSystem, root: str) -> Iterator[str]:
    for namespace in filter(is_namespace, names_in(fs, root)):
        for name in filter(is_namespace, names_in(fs, f"{root}/{namespace}")):
            yield f"{root}/{namespace}/{name}"


def refuse_without_tier(fs: FileSystem, root: str) -> None:
    """
    Raise if the topics below *root* had an object tier: only that tier knows the objects and the current owners.

    Raises:
        SettingsError: the topics had an object tier.
    """
    if signs := tier_signs(fs, root):
        raise SettingsError(
            f"the topics below {root} have objects: open them with objects (and metadata) as before. To continue "
            "without the messages that only the objects have, once no other process owns these topics, move away "
            f"{', '.join(signs)}"
        )


def require_tier_effect(
    root: str | None, settings: TopicSettings, *, objects: object, metadata: object, cold: object
) -> None:
    """
    Raise if an object tier, or a setting of it, would have no effect.

    Raises:
        UsageError: the directory is missing, or `metadata` is given without objects.
        SettingsError: a setting would have no effect.
    """
    if root is None and (objects is not None or metadata is not None or settings.cloud is not None):
        raise UsageError("objects need a directory: without one (a path, or wal.dir) topics are in memory only")
    if metadata is not None and objects is None and settings.cloud is None:
        raise UsageError("metadata describes the objects in an object store: give objects, too")
    has_objects = any(one is not None for one in (objects, settings.cloud, cold))
    settings.require_effect(has_objects=has_objects, has_files=root is not None)


def object_tier_of(
    root: str,
    settings: TopicSettings,
    *,
    objects: str | Mapping[str, object] | ObjectLocation | None,
    metadata: str | Mapping[str, object] | MetadataLocation | None,
    fs: FileSystem,
    clock: Clock,
    observer: Observer,
    background: bool,
) -> ObjectColdTier | None:
    """
    Return the object tier of the topics below *root*, as `open_cold_tier` does; None if they have none.

    Raises:
        SettingsError: they had one, and none is given now; or as `open_cold_tier`.
    """
    if objects is None and settings.cloud is None:
        refuse_without_tier(fs, root)
        return None
    return open_cold_tier(
        root, settings, objects=objects, metadata=metadata, fs=fs, clock=clock, observer=observer,
        background=background,
    )  # fmt: skip


def open_cold_tier(
    root: str,
    settings: TopicSettings,
    *,
    objects: str | Mapping[str, object] | ObjectLocation | None = None,
    metadata: str | Mapping[str, object] | MetadataLocation | None = None,
    environment: Mapping[str, str] | None = None,
    fs: FileSystem,
    clock: Clock,
    observer: Observer,
    background: bool = True,
    patience_s: float = 0.0,
) -> ObjectColdTier:
    """
    Open the object tier of the topics below *root*, whose lock the caller holds.

    Args:
        root: the directory of the topics.
        settings: `cloud` and `metadata` are the locations, unless the two next arguments are given.
        objects: the location of the objects.
        metadata: the location of the descriptors; by default a file next to the topics.
        environment: the values of ``${NAME}`` in the options of *objects* and *metadata*.
        fs: the file system of the logs, and of objects in a directory.
        clock: time.
        observer: where counts and events are sent.
        background: whether the tier's threads run.
        patience_s: how long opening a topic watches another owner that may be dead.

    Raises:
        SettingsError: the location for objects is missing or not valid.
        AccessDeniedError: the credentials do not allow what is needed.
        ObjectsUnavailableError, MetadataUnavailableError: a store does not answer.
        OSError: a directory cannot be used.
    """
    if objects is None:
        cloud = settings.cloud
        given = {} if cloud is None else {"backend": cloud.backend, "root": cloud.root, "options": dict(cloud.options)}
        objects = given
    objects = ObjectLocation.of(objects, environment=environment)
    default_location = f"sqlite://{os.path.abspath(root)}/{METADATA_FILE}"  # noqa: PTH100
    if objects.backend == "memory":
        # These objects end with the process: no local file may be deleted for them, and no record may outlive them.
        if settings.deleter.without_objects().deletes or any("deleter" in one for one in settings.topics.values()):
            raise SettingsError("deleter has no effect: no local file is deleted for objects that are in memory only")
        keep = replace(settings.deleter, retention_time_minutes=None, retention_size_mb=None)
        settings, default_location = replace(settings, deleter=keep), "memory://"
    tier = open_objects(objects, environment=environment, fs=fs, clock=clock, observer=observer)
    where = metadata or settings.metadata.location or default_location
    try:
        known = open_metadata(where, environment=environment)
        return ObjectColdTier(
            tier, known, settings=settings, owner=owner_of(fs, root), fs=fs, clock=clock,
            observer=observer, background=background, patience_s=patience_s, watch_path=f"{root}/{WATCH_FILE}",
        )  # fmt: skip
    except BaseException:
        tier.close()
        raise
