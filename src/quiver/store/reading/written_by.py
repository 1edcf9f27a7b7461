"""
Under which slot table and in which profile a directory was written, told from its files.

What mends or migrates a directory must open it as it is, also when nobody hands it the adapter.
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
"""A configuration hash this close to a known one is a damaged one, not another adapter's."""


@dataclass(frozen=True)
class AdapterByHash(Adapter):
    """A slot table of which nothing is known but its digest: slots go by number."""

    digest: bytes = b""

    @cached_property
    def config_hash(self) -> bytes:
        """The digest as it stands in the log."""
        return self.digest


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """What a directory was written with: `config_hash` stands in most of its log files, None when there is none."""

    adapter: Adapter
    profile: Profile
    config_hash: bytes | None


def as_written(config_hash: bytes) -> bytes:
    """Return the known configuration hash of which *config_hash* is a damaged copy; itself where there is none."""
    for known in (OTAP.config_hash, OTAP_CONFIG_HASH):
        if sum(a != b for a, b in zip(config_hash, known, strict=True)) <= _FLIPPED_BYTES_MAX:
            return known
    return config_hash


def written_by(fs: FileSystem, root: str) -> WrittenBy:
    """
    Return what the store at *root* was written with; the default adapter and profile where nothing tells.

    Raises:
        OSError: a file cannot be read.
    """
    directory = f"{root}/{WAL_DIR}"
    files = find_wal_files(fs, directory) if fs.exists(directory) else []
    hashes = Counter(as_written(file.config_hash) for file in files if file.config_hash is not None)
    if not hashes:
        return WrittenBy(OTAP, profile_in_use(fs, root), None)
    known = {OTAP.config_hash, OTAP_CONFIG_HASH}
    # Among equally many a known one: the other is more likely to be a damaged copy of it.
    config_hash = max(hashes, key=lambda found: (hashes[found], found in known))
    if config_hash == OTAP_CONFIG_HASH:
        return WrittenBy(OTAP, "otap", config_hash)
    profile = profile_in_use(fs, root)
    if config_hash == OTAP.config_hash:
        # The engine that the other profile is for would refuse this log: the hash decides.
        return WrittenBy(OTAP, "spec", config_hash)
    return WrittenBy(AdapterByHash("unnamed", {}, digest=config_hash), profile, config_hash)
