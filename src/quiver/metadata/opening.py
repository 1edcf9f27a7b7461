"""Opening a metadata store from its location."""

from __future__ import annotations

from collections.abc import Mapping

from quiver.lazy_names import naming_extra
from quiver.metadata.etcd import EtcdMetadata
from quiver.metadata.location import MetadataLocation
from quiver.metadata.memory import MemoryMetadata
from quiver.metadata.port import MetadataStore
from quiver.metadata.sqlite import SqliteMetadata

__all__ = ["open_metadata"]


def open_metadata(
    location: str | Mapping[str, object] | MetadataLocation, *, environment: Mapping[str, str] | None = None
) -> MetadataStore:
    """
    Return the store at *location*.

    An etcd is not contacted yet: a log can start and continue without it for a while.

    Args:
        location: ``etcd://host:2379,host:2379`` (``etcds`` with TLS), ``sqlite:///path`` or ``memory://``; or a mapping
            of `endpoint` and the options of `quiver.metadata.location`, which may be written as JSON.
        environment: the values of ``${NAME}`` in options.

    Raises:
        SettingsError: it is not a metadata store, or an option or certificate file is not valid.
        CorruptionError: the SQLite file is damaged.
        MetadataUnavailableError: the SQLite file cannot be opened.
        ModuleNotFoundError: the extra `etcd` is not installed, and the location is an etcd.
    """
    location = MetadataLocation.of(location, environment=environment)
    if location.kind == "etcd":
        with naming_extra("etcd", "etcd"):
            return EtcdMetadata(location.endpoints, location.access)
    if location.kind == "sqlite":
        return SqliteMetadata(location.path)
    return MemoryMetadata()
