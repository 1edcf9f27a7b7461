"""
The slot table and the format profile that a directory was written with, from its files.

Repair and migration must open a directory as it is, even if the caller does not pass the adapter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from quiver.bundle import OTAP, OTAP_CONFIG_HASH, Adapter
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import Profile
from quiver.store.format.names import WAL_DIR
from quiver.store.subscribers.progress_store import profile_in_use
from quiver.store.wal.replay import find_wal_files

__all__ = ["AdapterByHash", "WrittenBy", "as_written", "written_by"]

_FLIPPED_BYTES_MAX = 2
"""A configuration hash this close to a known one is a damaged copy of it, not another adapter's."""


@dataclass(frozen=True)
class AdapterByHash(Adapter):
    """A slot table of which only the digest is known: slots are identified by number."""

    digest: bytes = b""

    @cached_property
    def config_hash(self) -> bytes:
        """The digest, as it is in the log."""
        return self.digest


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """The format that a directory was written with; `config_hash` is in most of its log files, None without any."""

    adapter: Adapter
    profile: Profile
    config_hash: bytes | None


def as_written(config_hash: bytes) -> bytes:
    """Return the known configuration hash of which *config_hash* is a damaged copy, or *config_hash* itself."""
    for known in (OTAP.config_hash, OTAP_CONFIG_HASH):
        if sum(a != b for a, b in zip(config_hash, known, strict=True)) <= _FLIPPED_BYTES_MAX:
            return known
    return config_hash


def written_by(fs: FileSystem, root: str) -> WrittenBy:
    """
    Return the format of the store at *root*; the default adapter and profile if no file shows it.

    Raises:
        OSError: a file cannot be read.
    """
    directory = f"{root}/{WAL_DIR}"
    files = find_wal_files(fs, directory) if fs.exists(directory) else []
    hashes = Counter(as_written(file.config_hash) for file in files if file.config_hash is not None)
    if not hashes:
        return WrittenBy(OTAP, profile_in_use(fs, root), None)
    known = {OTAP.config_hash, OTAP_CONFIG_HASH}
    # If several are equally frequent, a known one: the others are more likely damaged copies of it.
    config_hash = max(hashes, key=lambda found: (hashes[found], found in known))
    if config_hash == OTAP_CONFIG_HASH:
        return WrittenBy(OTAP, "otap", config_hash)
    profile = profile_in_use(fs, root)
    if config_hash == OTAP.config_hash:
        # The engine of the other profile would refuse this log: the hash decides.
        return WrittenBy(OTAP, "spec", config_hash)
    return WrittenBy(AdapterByHash("unnamed", {}, digest=config_hash), profile, config_hash)
