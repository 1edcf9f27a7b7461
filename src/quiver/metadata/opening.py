"""
From a URL to a metadata store.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from quiver.errors import SettingsInvalid
from quiver.metadata.etcd import EtcdMetadata
from quiver.metadata.memory import MemoryMetadata
from quiver.metadata.port import MetadataStore
from quiver.metadata.sqlite import SqliteMetadata

__all__ = ["open_metadata"]

_SCHEMES = ("etcd://host:port", "etcds://host:port", "sqlite:///path", "memory://")


def open_metadata(url: str) -> MetadataStore:
    """
    Return the store at *url*: ``etcd://host:2379,host:2379`` (``etcds`` with TLS), ``sqlite:///path`` or ``memory://``.

    An etcd is not asked yet: a log starts, and goes on, without it for a while.

    Raises:
        SettingsInvalid: not a metadata store.
        Damaged: the SQLite file is broken.
        MetadataUnavailable: the SQLite file cannot be opened.
    """
    scheme, _, rest = url.partition("://")
    if scheme in {"etcd", "etcds", "http", "https"} and rest:
        web = "https" if scheme in {"etcds", "https"} else "http"
        hosts = [host for host in rest.rstrip("/").split(",") if host]
        if not hosts or any(mark in host for mark in "/@?#" for host in hosts):
            raise SettingsInvalid(f"metadata: write hosts and ports, as {_SCHEMES[0]}, without paths or passwords")
        return EtcdMetadata([f"{web}://{host}" for host in hosts])
    if scheme == "sqlite" and rest:
        path = unquote(urlsplit(url).netloc + urlsplit(url).path)
        return SqliteMetadata(path)
    if scheme == "memory":
        return MemoryMetadata()
    raise SettingsInvalid(f"metadata: a URL of {scheme!r} is none of {', '.join(_SCHEMES)}")
