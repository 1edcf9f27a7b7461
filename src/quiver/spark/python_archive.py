"""
An archive of Python packages that executors of a Spark cluster unpack: its description, which is its first member.

The archive has no interpreter. Each machine runs its own Python of the same minor version, which the archive records,
with the PySpark of its own Spark.
"""

from __future__ import annotations

import json
import sys
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from quiver.errors import UsageError

__all__ = ["DESCRIPTION_NAME", "OWN", "PythonArchive", "check_python_archive", "python_version", "read_description"]

DESCRIPTION_NAME = "quiver-python.json"
_DESCRIPTION_BYTES_MAX = 1 << 20

OWN = "arrow-quiver"
"""The name of the distribution of this package."""


@dataclass(frozen=True, slots=True)
class PythonArchive:
    """
    The description of an archive.

    Attributes:
        python: the minor version of Python, such as 3.11.
        platform: the platform of its compiled modules, such as linux-x86_64.
        distributions: name → version of everything in it.
    """

    python: str
    platform: str
    distributions: Mapping[str, str]


def read_description(path: Path) -> PythonArchive:
    """
    Return the description of the archive at *path*.

    Raises:
        UsageError: it is no archive of `write_python_archive`.
        OSError: it cannot be read.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
            is_description = first is not None and first.name == DESCRIPTION_NAME
            member = archive.extractfile(DESCRIPTION_NAME) if is_description else None
            values = json.loads(b"" if member is None else member.read(_DESCRIPTION_BYTES_MAX))
        return PythonArchive(str(values["python"]), str(values["platform"]), dict(values["distributions"]))
    except (tarfile.TarError, zlib.error, EOFError, ValueError, TypeError, LookupError) as error:
        raise UsageError(f"{path} is not an archive of Python packages: build it with quiver spark package") from error


def check_python_archive(path: Path) -> None:
    """
    Check that the archive at *path* is for this Python and has this version of Quiver.

    Raises:
        UsageError: it is for others, is no such archive, or is missing.
        OSError: it cannot be read.
    """
    try:
        found = read_description(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"spark.python_archive: there is no file {path}: build it with quiver spark package"
        ) from error
    own = distribution(OWN).version
    for what, theirs, ours in (
        ("Python", found.python, python_version()),
        ("Quiver", str(found.distributions.get(OWN)), own),
    ):
        if theirs != ours:
            raise UsageError(
                f"spark.python_archive: {path} is for {what} {theirs}, and the driver has {ours}: build it again with "
                "quiver spark package"
            )


def python_version() -> str:
    """Return the minor version of this Python, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
