"""The parts of the object tier that a store needs to read its first segment: the list and access to the objects."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os.path
from collections.abc import Iterator, Mapping

from quiver.clock import Clock
from quiver.errors import CorruptionError, UsageError
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Settings
from quiver.store.catalog import Catalog
from quiver.store.cold.files import ColdFiles, ColdListing
from quiver.store.cold.location import TierWhenNeeded, folder_of, location_from_list, location_to_list
from quiver.store.cold.rebuild import rebuild_cold_list
from quiver.store.cold.register import ColdRegister, info_of
from quiver.store.format.cold_list import ColdSegment
from quiver.store.format.fleet.names import inbox_folder
from quiver.store.format.names import SEGMENTS_DIR
from quiver.store.reading.store_files import StoreFiles

__all__ = ["ColdSide", "open_cold_side"]

_ID_BYTES_MAX = 200


class ColdSide:
    """
    The tier of an open store.

    Attributes:
        register: the segments in the tier.
        tier: the objects, opened on demand.
        is_set: whether the settings name a tier; otherwise there may be objects of an earlier run.
    """

    def __init__(self, register: ColdRegister, tier: TierWhenNeeded, *, is_set: bool) -> None:
        self.register = register
        self.tier = tier
        self.is_set = is_set

    @property
    def is_used(self) -> bool:
        """Whether there are segments in the tier or a tier is set."""
        return self.is_set or len(self.register) > 0

    def fs(self, fs: FileSystem) -> FileSystem:
        """Return *fs* for reading, with the segments of the tier."""
        return _OwnFiles(fs, self) if self.is_used else fs

    def open_tier(self, _location: ObjectLocation) -> ObjectTier:
        """
        Return the tier of this store, which has credentials, not that at the location in the list.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        return self.tier.get()

    def restore(self, catalog: Catalog, next_seq: int) -> int:
        """
        Add the segments that are only in the tier to *catalog*; return the number above *next_seq* and all in the list.

        This includes a segment whose file was just moved to quarantine: the tier has the original.
        """
        for entry in self.register.entries():
            next_seq = max(next_seq, entry.seq + 1)
            if entry.state == "verified" and entry.seq not in catalog:
                catalog.add_cold(info_of(entry, self.register.directory))
        return next_seq


class _Verified(Mapping[int, ColdSegment]):
    """The verified entries in an open store's register, always up to date."""

    def __init__(self, register: ColdRegister) -> None:
        self._register = register

    def __getitem__(self, seq: int) -> ColdSegment:
        entry = self._register.get(seq)
        if entry is None or entry.state != "verified":
            raise KeyError(seq)
        return entry

    def __iter__(self) -> Iterator[int]:
        return (entry.seq for entry in self._register.entries() if entry.state == "verified")

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _OwnFiles(ColdFiles):
    """
    The segments of an open store's own tier, according to its register in memory.

    The list on the disk is not used: if it was damaged meanwhile, segments that are missing in it would count as
    damaged.
    """

    def __init__(self, fs: FileSystem, side: ColdSide) -> None:
        super().__init__(fs, open_tier=side.open_tier)
        self._own = side.register.directory
        location, folder = location_from_list(side.register.location)
        self._own_listing = ColdListing(location, folder, _Verified(side.register))

    def _listing(self, directory: str) -> ColdListing | None:
        return self._own_listing if directory == self._own else super()._listing(directory)


def open_cold_side(
    root: str,
    settings: Settings,
    *,
    fs: FileSystem,
    clock: Clock,
    observer: Observer,
    objects: ObjectTier | None,
) -> ColdSide:
    """
    Read the list of the store at *root*. The object store is not accessed, unless the list is damaged or missing: then
    it is rebuilt from the objects.

    Args:
        root: the store's directory; it has its identity.
        settings: `cold.objects` is the location of objects.
        fs: the file system.
        clock: time.
        observer: gets counts.
        objects: an open tier; by default it is opened on demand.

    Raises:
        CorruptionError: the list is damaged or missing, and there are no objects to rebuild it from.
        ObjectsUnavailableError: the list cannot be rebuilt because the object store does not answer.
        SettingsError: the list has objects at another location.
        UsageError: a tier was passed without `cold.objects`, so readers could not find the objects.
        OSError: the disk reported an error.
    """
    location = settings.cold_objects
    if location is not None and location.backend == "fs":
        # Programs with another working directory read the list.
        location = dataclasses.replace(location, prefix=os.path.abspath(location.prefix))  # noqa: PTH100
    if location is None and objects is not None:
        raise UsageError("objects also needs cold.objects: the cold list stores it as the location of the objects")
    wanted = None
    if location is not None:
        identity = StoreFiles(fs, root).identity()
        folder = folder_of(identity) if settings.fleet_name is None else inbox_folder(identity)
        wanted = location_to_list(location, folder)
    directory = f"{root}/{SEGMENTS_DIR}"
    try:
        register = ColdRegister.load(fs, directory, wanted)
    except CorruptionError as damage:
        if wanted is None:
            raise
        tier = TierWhenNeeded(location, objects, fs=fs, clock=clock, observer=observer)
        try:
            register = rebuild_cold_list(fs, root, directory, wanted, tier.get(), damage)
        except BaseException:
            tier.close()
            raise
        observer.count("quiver.recovery.damaged_files_total", kind="cold")
        observer.event(
            "quiver.cold.rebuilt", level=logging.ERROR, path=damage.path, reason=damage.reason, segments=len(register)
        )
        return ColdSide(register, tier, is_set=True)
    with contextlib.suppress(OSError):
        # A full disk must not prevent opening; the next change of the list creates the mark.
        register.mark()
    if location is None and len(register):
        location = location_from_list(register.location)[0]
    tier = TierWhenNeeded(location, objects, fs=fs, clock=clock, observer=observer)
    return ColdSide(register, tier, is_set=wanted is not None)
