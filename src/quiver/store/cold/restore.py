"""
Restores a store from its object tier, without its former disk, for `quiver restore --cold`.

The store keeps its identity, because that is the folder of its objects. Its list is rebuilt from the objects, each of
which is read completely but not stored on the disk. Bundles that were only in the log and the progress of subscribers
are lost. Segment numbers continue above all that the old store can have used, so that a Spark checkpoint that is newer
than the newest object skips nothing.

The directory is built under a temporary name and renamed last.
"""

from __future__ import annotations

import dataclasses
import os.path
import posixpath
from dataclasses import dataclass, field

from quiver.clock import Clock
from quiver.errors import UsageError
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectTier
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.store.cold.location import folder_of, location_to_list, object_key
from quiver.store.cold.rebuild import list_tier
from quiver.store.cold.register import ColdRegister
from quiver.store.format.cold_list import ColdSegment, parse_object_name
from quiver.store.format.cores import core_directory
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import SEGMENTS_DIR, STORE_ID, WAL_DIR
from quiver.store.number_floor import number_beyond, raise_floor, skip_numbers
from quiver.store.snapshots.new_directory import begin_directory, finish_directory

__all__ = ["RestoredStore", "restore_from_tier", "stores_in_tier"]


@dataclass(slots=True)
class RestoredStore:
    """
    The segments and damaged objects found for one store.

    Attributes:
        identity: of the store.
        path: its directory.
        segments: the valid ones, ascending.
        damaged: the keys of damaged objects.
    """

    identity: str
    path: str
    segments: list[ColdSegment] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def bundles(self) -> int:
        """The number of bundles in the segments."""
        return sum(entry.bundle_count for entry in self.segments)

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the segments."""
        return sum(entry.size_bytes for entry in self.segments)


def stores_in_tier(tier: ObjectTier) -> list[str]:
    """
    Return the identities of the stores, or cores of stores, that have segments in the tier.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: the objects cannot be listed.
    """
    found = set()
    for info in tier.list_below(posixpath.dirname(folder_of("x"))):
        _, identity, *rest = info.key.split("/")
        is_segment = len(rest) == 2 and rest[0] == "segments" and parse_object_name(rest[1]) is not None
        if is_segment and isinstance(decode_identity(memoryview(f"{identity}\n".encode())), Frame):
            found.add(identity)
    return sorted(found)


def restore_from_tier(
    fs: FileSystem,
    target: str,
    tier: ObjectTier,
    location: ObjectLocation,
    identities: list[str],
    *,
    clock: Clock,
    dry_run: bool = False,
) -> list[RestoredStore]:
    """
    Create the directory *target* from objects. Durable and complete on return.

    Args:
        fs: the file system.
        target: must not exist.
        tier: the objects, open.
        location: of the objects; the store's list stores it without its secrets.
        identities: of the store; or of its cores, which become `core_0` and so on, in this order.
        clock: used to find segment numbers that the old store cannot have used.
        dry_run: read only, and write nothing.

    Raises:
        UsageError: *target* exists, or a store has no valid segment in the tier. *target* is not created.
        ObjectsUnavailableError: the object store does not answer. *target* is not created.
        OSError: the disk reported an error; *target* is not created.
    """
    if location.backend == "fs":
        # Programs with another working directory read the list.
        location = dataclasses.replace(location, prefix=os.path.abspath(location.prefix))  # noqa: PTH100
    found = []
    for core, identity in enumerate(identities):
        path = target if len(identities) == 1 else f"{target}/{core_directory(core)}"
        found.append(_find_segments(fs, RestoredStore(identity, path), tier, location))
    if dry_run:
        return found
    partial = begin_directory(fs, [], target)
    for one in found:
        _make(fs, one, f"{partial}{one.path[len(target) :]}", location, clock)
    finish_directory(fs, partial, target)
    return found


def _find_segments(fs: FileSystem, one: RestoredStore, tier: ObjectTier, location: ObjectLocation) -> RestoredStore:
    folder = folder_of(one.identity)
    for entry in list_tier(fs, location_to_list(location, folder), tier):
        if entry.state == "verified":
            one.segments.append(entry)
        else:
            one.damaged.append(object_key(folder, entry))
    if not one.segments:
        raise UsageError(f"{location}: there is no segment of a store below {folder}/")
    return one


def _make(fs: FileSystem, one: RestoredStore, root: str, location: ObjectLocation, clock: Clock) -> None:
    directory = f"{root}/{SEGMENTS_DIR}"
    for folder in (f"{root}/{WAL_DIR}", directory):
        fs.make_dirs(folder)
    replace_file(fs, f"{root}/{STORE_ID}", f"{one.identity}\n".encode())
    register = ColdRegister(fs, directory, location_to_list(location, folder_of(one.identity)))
    register.replace_all(one.segments)
    next_number = one.segments[-1].seq + 1
    raise_floor(fs, root, next_number)
    skip_numbers(fs, root, number_beyond(next_number, clock))
