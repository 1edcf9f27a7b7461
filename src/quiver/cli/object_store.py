"""
The options of every command that takes the URL of an object store or a metadata store, and the location that they
describe.
"""

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
    str | None, typer.Option("--objects", help="Where objects are: a directory, or s3://bucket/prefix and the like.")
]
ObjectOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="For the object store, as endpoint=http://host:9000; may be repeated. ${NAME} is an environment variable.",
    ),
]
MetadataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata-option",
        metavar="KEY=VALUE",
        help="For an etcd: ca_file, cert_file, key_file, user, password; may be repeated. ${NAME} is an environment"
        " variable.",
    ),
]


def object_location(url: str | None, options: list[str] | None) -> ObjectLocation | None:
    """
    Return the location that ``--objects`` and ``--option`` describe; None without a URL.

    Raises:
        SettingsError: not a location, or an option that it does not have.
        UsageError: options without a URL, or one that is not ``key=value``.
    """
    from quiver.objects import ObjectLocation  # noqa: PLC0415 - keeps `--help` quick

    given = _key_values("--option", options)
    if url is not None:
        return ObjectLocation.from_url(url, given, environment=os.environ)
    if given:
        raise UsageError("--option is for the object store: say where it is, with --objects")
    return None


def metadata_location(url: str | None, options: list[str] | None) -> MetadataLocation | None:
    """
    Return the location that ``--metadata`` and ``--metadata-option`` describe; None without a URL.

    Raises:
        SettingsError: not a location, or an option that it does not have.
        UsageError: options without a URL, or one that is not ``key=value``.
    """
    from quiver.metadata import MetadataLocation  # noqa: PLC0415 - keeps `--help` quick

    given = _key_values("--metadata-option", options)
    if url is not None:
        return MetadataLocation.of(url, given, environment=os.environ)
    if given:
        raise UsageError("--metadata-option is for an etcd: say where it is, with --metadata")
    return None


def _key_values(name: str, given: list[str] | None) -> dict[str, str]:
    pairs = [one.partition("=") for one in given or ()]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{name} takes key=value, not {key!r}")
    return {key: value for key, _, value in pairs}
