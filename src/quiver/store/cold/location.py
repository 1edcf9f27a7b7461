"""The location of a store's objects in its cold list: without secrets, with the folder of this store."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, get_args

from quiver.clock import Clock
from quiver.errors import CorruptionError, SettingsError, StoreClosedError
from quiver.objects.location import Backend, ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_checked
from quiver.store.format.cold_list import COLD_LIST_BYTES_MAX, ColdList, ColdSegment, decode_cold_list, object_name
from quiver.store.format.names import COLD_LIST, COLD_MARK

__all__ = [
    "LIST_MISSING",
    "TierWhenNeeded",
    "folder_of",
    "load_cold_list",
    "location_from_list",
    "location_to_list",
    "mark_path",
    "object_key",
    "quarantine_key",
]


LIST_MISSING = "the list is missing"


def folder_of(identity: str) -> str:
    """Return the folder of the store with this identity. Several stores can share a bucket."""
    return f"stores/{identity}"


def mark_path(directory: str) -> str:
    """Return the path of the mark for the cold list in *directory*, where the segments are."""
    root = directory.rpartition("/")[0]
    return f"{root}/{COLD_MARK}" if root else COLD_MARK


def load_cold_list(fs: FileSystem, directory: str, *, consequence: str) -> ColdList | None:
    """
    Return the cold list in *directory*, where the segments are; None when the store has none.

    Args:
        fs: the file system.
        directory: where the segments are.
        consequence: completes the error message after the reason: the remedy, or the information that is missing.

    Raises:
        CorruptionError: the list is damaged or missing.
        OSError: the disk could not be read.
    """
    path = f"{directory}/{COLD_LIST}"
    try:
        found = read_checked(fs, path, decode_cold_list, COLD_LIST_BYTES_MAX)
        if found is not None or not fs.exists(mark_path(directory)):
            return found
        # The mark is created after the list, so both may have appeared just now.
        found = read_checked(fs, path, decode_cold_list, COLD_LIST_BYTES_MAX)
    except CorruptionError as error:
        raise CorruptionError(path, error.offset, f"{error.reason}; {consequence}") from error
    if found is None:
        raise CorruptionError(path, 0, f"{LIST_MISSING}; {consequence}")
    return found


def object_key(folder: str, entry: ColdSegment) -> str:
    """Return the key of a segment's object."""
    return f"{folder}/segments/{object_name(entry.seq, entry.crc32)}"


def quarantine_key(folder: str, entry: ColdSegment) -> str:
    """Return the key under which a damaged object is kept."""
    return f"{folder}/quarantine/{object_name(entry.seq, entry.crc32)}"


def location_to_list(location: ObjectLocation, folder: str) -> dict[str, Any]:
    """Return the location for the cold list: everything but its secrets."""
    options = {key: value for key, value in location.options.items() if str(value) not in location.secrets}
    return {
        "backend": location.backend,
        "container": location.container,
        "prefix": location.prefix,
        "options": options,
        "folder": folder,
    }


def location_from_list(kept: Mapping[str, Any]) -> tuple[ObjectLocation, str]:
    """
    Return the location and folder in a cold list.

    Raises:
        SettingsError: another version wrote them, and this one cannot read them.
    """
    backend: Backend | None = next((known for known in get_args(Backend) if known == kept.get("backend")), None)
    options = kept.get("options", {})
    texts = [kept.get(key, "") for key in ("container", "prefix", "folder")]
    if (
        backend is None
        or not isinstance(options, dict)
        or not all(isinstance(text, str) for text in texts)
        or not texts[2]
    ):
        raise SettingsError("this version cannot read the location of the objects in the cold list")
    return ObjectLocation(backend, texts[0], texts[1], options), texts[2]


class TierWhenNeeded:
    """
    A tier that is opened on first use. Thread-safe.

    A store can be opened even if the object store does not answer.

    Args:
        location: of the objects.
        given: a tier that is already open; its owner closes it.
        fs: the disk, for a tier in a directory.
        clock: used to wait between retries.
        observer: counts the retries.
    """

    def __init__(
        self,
        location: ObjectLocation | None,
        given: ObjectTier | None,
        *,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._location = location
        self._given = given
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._own: ObjectTier | None = None
        self._closed = False

    def get(self) -> ObjectTier:
        """
        Return the tier.

        Raises:
            AccessDeniedError: the credentials do not allow access.
            ObjectsUnavailableError: the object store does not answer.
            StoreClosedError: `close` was called.
            SettingsError: the location does not exist, or none is set.
            OSError: the directory cannot be used.
        """
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                if self._closed:
                    raise StoreClosedError("the store of this tier is closed")
                if self._location is None:
                    raise SettingsError("cold.objects is not set: there is no object tier")
                self._own = open_objects(self._location, fs=self._fs, clock=self._clock, observer=self._observer)
            return self._own

    def close(self) -> None:
        """Close the tier if it was opened here; calls that wait for a retry fail. Idempotent."""
        # Without the lock: a thread that is opening the tier may be waiting for the network.
        self._closed = True
        own = self._own
        if own is not None:
            own.close()
