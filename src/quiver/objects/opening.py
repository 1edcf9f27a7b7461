"""Opening a tier from its location, with verified access and retries."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import AccessDeniedError, ObjectNotFoundError, SettingsError
from quiver.lazy_names import naming_extra
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.objects.memory import MemoryObjects
from quiver.objects.port import ObjectTier
from quiver.objects.remote import connect
from quiver.objects.retrying import TRIES_MAX, RetryingObjects
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["PROBE_FOLDER", "open_objects", "prove"]

PROBE_FOLDER = "quiver-probe"
"""Where the access check writes and removes its small object."""


def open_objects(
    location: str | Mapping[str, object] | ObjectLocation,
    *,
    environment: Mapping[str, str] | None = None,
    writable: bool = True,
    check_access: bool = True,
    file_mode: int | None = None,
    tries_max: int = TRIES_MAX,
    fs: FileSystem = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> ObjectTier:
    """
    Return the tier at *location* after checking access: each operation needed has succeeded once.

    Args:
        location: a URL, the path of a directory, a mapping of ``backend``, ``root`` and ``options``, or an
            `ObjectLocation`.
        environment: the values of ``${NAME}`` in options.
        writable: False only reads, and checks only read access.
        file_mode: permission bits of the files of a `fs` location; None makes them readable by their owner only.
        check_access: False sends no request; another process has checked access.
        tries_max: how often a call is tried while the store does not answer.
        fs: the disk of a `fs` location.
        clock: waits between attempts.
        observer: counts retries.

    Raises:
        SettingsError: it is not a location.
        AccessDeniedError: the credentials do not allow it.
        ObjectsUnavailableError: the store does not answer.
        OSError: the directory cannot be used.
        ModuleNotFoundError: the extra `objects` is not installed; buckets need it.
    """
    location = ObjectLocation.of(location, environment=environment)
    inner: ObjectTier
    if location.backend == "fs":
        inner = DirectoryObjects(fs, location.prefix, clock=clock, file_mode=file_mode, writable=writable)
    elif location.backend == "memory":
        inner = MemoryObjects(clock=clock)
    else:
        with naming_extra(f"a bucket ({location.backend})", "objects"):
            inner = connect(location)
    tier = RetryingObjects(inner, clock=clock, observer=observer or InMemoryObserver(), tries_max=tries_max)
    if check_access:
        prove(tier, str(location), writable=writable)
    return tier


def prove(tier: ObjectTier, name: str, *, writable: bool) -> None:
    """
    Perform each operation that the log needs once, so that wrong credentials are reported now, as such.

    Some servers answer a read with an unknown access key as if the object were missing, which a log would report as a
    loss. Here the object has just been written.

    Raises:
        SettingsError: the bucket does not exist.
        AccessDeniedError: the credentials do not allow it.
        ObjectsUnavailableError: the store does not answer.
    """
    if not writable:
        next(iter(tier.list_below(PROBE_FOLDER)), None)
        return
    key = f"{PROBE_FOLDER}/{secrets.token_hex(8)}"
    try:
        tier.put(key, b"quiver")
    except ObjectNotFoundError:
        raise SettingsError(f"objects: the bucket of {name} does not exist") from None
    try:
        found = tier.get(key, size_max=64)
    except ObjectNotFoundError:
        found = b""
    if found != b"quiver":
        raise AccessDeniedError(f"objects: {name} accepted an object and does not return it; check the credentials")
    next(iter(tier.list_below(PROBE_FOLDER)), None)
    tier.delete([key])
