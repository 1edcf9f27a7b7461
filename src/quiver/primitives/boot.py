"""The current boot of the machine: on Linux, all processes of one boot share the monotonic clock."""

from __future__ import annotations

import contextlib

from quiver.primitives.disk.file_system import FileSystem

__all__ = ["boot_name"]

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_TIME_NAMESPACE = "/proc/self/ns/time"
_BOOT_ID_BYTES_MAX = 256


def boot_name(fs: FileSystem) -> str | None:
    """Return a name of this boot and its monotonic clock; None if the system has none."""
    try:
        boot = fs.read_all(_BOOT_ID, size_max=_BOOT_ID_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a container may have its own monotonic clock
        boot = f"{boot}:{fs.stat(_TIME_NAMESPACE).inode}"
    return boot or None
