"""
The settings of a Spark session, as a pipeline file has them, and the properties that they become. Pure, without Spark.

A property comes from the first of: these settings, `spark-defaults.conf`, and the defaults of Quiver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from quiver.errors import SettingsError, UsageError
from quiver.spark.python_archive import check_python_archive, python_version

__all__ = ["LOCAL_MASTER", "MASTER", "PYTHON", "SessionSettings", "is_local", "parse_properties", "write_properties"]

MASTER = "spark.master"
LOCAL_MASTER = "local[2]"
"""Where Spark runs by default: two cores of this machine."""

_MASTERS = re.compile(r"local(-cluster)?(\[[^]]*\])?|yarn|spark://.+|k8s://.+")
_COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")

_KEYS = {
    MASTER: "master",
    "spark.jars.packages": "packages",
    "spark.jars": "jars",
    "spark.files": "files",
    "spark.archives": "archives",
}
"""Properties that have a key of their own → that key."""

PYTHON = "spark.pyspark.python"
_PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
_PYTHON_DIRECTORY = "quiver-python"

_FIXED = {
    "spark.submit.deployMode": "the process that `quiver run` starts is the driver",
    "spark.scheduler.mode": "dispatch_strategy of a port selects it",
    "spark.sql.session.timeZone": "views and files have UTC",
}
"""Properties that a pipeline sets itself, and why."""


def is_local(master: str) -> bool:
    """Return whether the driver and all tasks run in processes of this machine that share its files and sockets."""
    return master == "local" or master.startswith("local[")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """
    Where Spark runs, and the code and files that it needs.

    Attributes:
        master: ``local[N]``, ``spark://host:port``, ``yarn`` or ``k8s://https://host:port``; None for that of
            `spark-defaults.conf`, or else two cores of this machine.
        config: properties of Spark; may contain secrets.
        packages: Maven coordinates, ``group:artifact:version``.
        jars: paths or URLs of jars, for the driver and the executors.
        files: paths or URLs of files that tasks find in their working directory.
        archives: the same for archives, which are unpacked there; ``path#name`` names the directory.
        python_archive: an archive of `quiver spark package`, from which the tasks import this package.

    Raises:
        SettingsError: a value is not of its form, or a property has a key of its own or cannot be set.
    """

    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    python_archive: str | None = None

    def __post_init__(self) -> None:
        if self.master is not None and _MASTERS.fullmatch(self.master) is None:
            raise SettingsError(
                "master: write local[2], spark://host:7077, yarn or k8s://https://host:443"
                + ("; sc:// has no driver here, which exporters need" if self.master.startswith("sc://") else "")
            )
        for key in self.config:
            if not key.startswith("spark."):
                raise SettingsError(f"config: {key!r} has no effect, because properties of Spark start with spark.")
            if key in _KEYS:
                raise SettingsError(f"config: {key} has a key of its own; write {_KEYS[key]} next to config")
            if key in _FIXED:
                raise SettingsError(f"config: {key} cannot be changed, because {_FIXED[key]}; leave it out")
        for coordinate in self.packages:
            if _COORDINATE.fullmatch(coordinate) is None:
                raise SettingsError(f"packages: {coordinate!r} is not group:artifact:version")
        for key in ("jars", "files", "archives"):
            for place in getattr(self, key):
                if not place or "," in place:
                    raise SettingsError(f"{key}: {place!r} is not one path or URL; write a list")
        if self.python_archive is not None:
            self._check_python_archive()
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    def _check_python_archive(self) -> None:
        if not self.python_archive or set(",#") & set(self.python_archive):
            raise SettingsError(f"python_archive: {self.python_archive!r} is not the path of one archive")
        if self.master is not None and is_local(self.master):
            raise SettingsError(f"python_archive has no effect with master {self.master}; leave it out")
        if _PYTHON_PATH in self.config:
            raise SettingsError(f"config: {_PYTHON_PATH} and python_archive set the same value; keep one")

    def properties(self) -> dict[str, str]:
        """Return these settings as properties of Spark; a setting that is not given has none."""
        lists = {key: getattr(self, name) for key, name in _KEYS.items() if key != MASTER}
        found: dict[str, str] = {}
        if self.python_archive is not None:
            lists["spark.archives"] += (f"{self.python_archive}#{_PYTHON_DIRECTORY}",)
            # A relative path: tasks run in the directory in which archives are unpacked.
            found = {_PYTHON_PATH: _PYTHON_DIRECTORY, PYTHON: f"python{python_version()}"}
        found |= self.config
        found |= {key: ",".join(places) for key, places in lists.items() if places}
        return found | ({} if self.master is None else {MASTER: self.master})

    def check_files(self) -> None:
        """
        Check that the local jars, files and archives exist: Spark would only log that it leaves them out. Check that
        the archive of Python packages is for this Python and this version of Quiver.

        Raises:
            UsageError: one is missing, or is for another version.
            OSError: the archive of Python packages cannot be read.
        """
        for key in ("jars", "files", "archives"):
            for place in getattr(self, key):
                path = _local_path(place.partition("#")[0])
                if path is not None and not path.exists():
                    raise UsageError(f"spark.{key}: there is no file {path}")
        if self.python_archive is not None:
            check_python_archive(Path(self.python_archive))


def _local_path(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme not in {"", "file"}:
        return None  # `local:` is a path on each executor
    return Path(unquote(parts.path) if parts.scheme else place)


# ── files of properties ──────────────────────────────────────────────────────────────────────────────

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PAIR = re.compile(r"(?P<key>(?:\\.|[^\\\s=:])+)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    r"""
    Return the properties in *text*, which has the form of Java's property files, such as `spark-defaults.conf`.

    A key ends at a space, ``=`` or ``:``. Lines that start with ``#`` or ``!`` are comments, and a line that ends with
    ``\`` continues. Spaces around a value are removed, as Spark does.
    """
    found = {}
    for line in _logical_lines(text.splitlines()):
        match = _PAIR.match(line)
        if match is not None:
            found[_unescaped(match["key"])] = _unescaped(match["value"]).strip()
    return found


def _logical_lines(lines: Iterable[str]) -> Iterable[str]:
    joined = ""
    for raw in lines:
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield joined + line
        joined = ""
    if joined:
        yield joined


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(character, text)


def write_properties(properties: Mapping[str, str]) -> str:
    """Return *properties* in the form that `parse_properties` and Spark read."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(text: str) -> str:
    return re.sub(r"[\\ =:#!\t\n\r\f]", lambda match: f"\\u{ord(match[0]):04x}", text)
