"""The command-line options for the locations of object stores and metadata stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.metadata import MetadataLocation
    from quiver.objects import ObjectLocation

__all__ = [
    "MetadataOptions",
    "ObjectOptions",
    "ObjectsUrl",
    "metadata_location",
    "object_location",
]

ObjectsUrl = Annotated[
    str | None,
    typer.Option("--objects", help="The location of the objects: a directory, or a URL such as s3://bucket/prefix."),
]
ObjectOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the object store, such as endpoint=http://host:9000; may be repeated."
        " ${NAME} is an environment variable.",
    ),
]
MetadataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata-option",
        metavar="KEY=VALUE",
        help="An option of etcd: ca_file, cert_file, key_file, user, password; may be repeated."
        " ${NAME} is an environment variable.",
    ),
]


def object_location(url: str | None, options: list[str] | None) -> ObjectLocation | None:
    """
    Return the location that ``--objects`` and ``--option`` describe; None without it.

    Raises:
        SettingsError: an invalid location or option.
        UsageError: options without a URL, or an option that is not ``key=value``.
    """
    from quiver.objects import ObjectLocation  # noqa: PLC0415 - keeps `--help` quick

    given = _key_values("--option", options)
    if url is not None:
        return ObjectLocation.from_url(url, given, environment=os.environ)
    if given:
        raise UsageError("--option needs --objects, the location of the object store")
    return None


def metadata_location(url: str | None, options: list[str] | None) -> MetadataLocation | None:
    """
    Return the location that ``--metadata`` and ``--metadata-option`` describe; None without it.

    Raises:
        SettingsError: an invalid location or option.
        UsageError: options without a URL, or an option that is not ``key=value``.
    """
    from quiver.metadata import MetadataLocation  # noqa: PLC0415 - keeps `--help` quick

    given = _key_values("--metadata-option", options)
    if url is not None:
        return MetadataLocation.of(url, given, environment=os.environ)
    if given:
        raise UsageError("--metadata-option needs --metadata, the location of etcd")
    return None


def _key_values(name: str, given: list[str] | None) -> dict[str, str]:
    pairs = [one.partition("=") for one in given or ()]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{name} takes key=value, not {key!r}")
    return {key: value for key, _, value in pairs}
