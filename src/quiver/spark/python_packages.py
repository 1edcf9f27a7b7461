"""Packs installed distributions, with what they require, into the archive that `python_archive` describes."""

from __future__ import annotations

import io
import json
import re
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution, entry_points
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import quiver
from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.python_archive import DESCRIPTION_NAME, OWN, PythonArchive, python_version

__all__ = ["write_python_archive"]

_EXTRAS = ("otlp", "spark", "objects", "etcd", "qwp")
"""The extras whose code may run in tasks."""

_OF_SPARK = frozenset({"pyspark", "py4j"})
"""Every Spark has its own."""

_PROCESSORS = "quiver.processors"
_GZIP_LEVEL = 6


def write_python_archive(
    path: Path, *, more: Iterable[str] = (), on_progress: Callable[[str], None] = lambda _: None
) -> PythonArchive:
    """
    Write the archive at *path*, a `.tar.gz`, and return its description. An existing archive is replaced at the end.

    It has this package, the packages that it requires as far as they are installed, those of installed processors, and
    the distributions *more* with what they require.

    Raises:
        UsageError: a distribution is not installed, or is an editable installation; the name is not a `.tar.gz`.
        OSError: a file cannot be read, or the archive cannot be written.
    """
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"{path}: Spark unpacks archives by their names; end the name in .tar.gz")
    processors = {point.dist.name for point in entry_points(group=_PROCESSORS) if point.dist is not None}
    found = _closure([f"{OWN}[{','.join(_EXTRAS)}]", *sorted(processors), *more])
    description = PythonArchive(
        python_version(),
        sysconfig.get_platform(),
        {name: found[name].version for name in sorted(found)},
    )
    files = {name: file for one in found.values() for name, file in _files(one)}
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=_GZIP_LEVEL, format=tarfile.GNU_FORMAT) as archive:
            _add_bytes(archive, DESCRIPTION_NAME, json.dumps(asdict(description), indent=1).encode())
            for name in sorted(files):
                on_progress(name)
                archive.add(files[name], name, recursive=False, filter=_anonymous)
        REAL_FILES.rename(str(temporary), str(path))
    finally:
        temporary.unlink(missing_ok=True)
    return description


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove what depends on the user. Times stay: compiled modules record those of their sources."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(data))


# ── distributions and their files ────────────────────────────────────────────────────────────────────


def _closure(wanted: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions *wanted* and all that they require, by normalized name."""
    found: dict[str, Distribution] = {}
    expanded: set[tuple[str, frozenset[str]]] = set()
    try:
        waiting = [(Requirement(text), False) for text in wanted]
    except InvalidRequirement as error:
        raise UsageError(f"{error}: write the name of an installed distribution") from error
    while waiting:
        one, is_optional = waiting.pop()
        name = _normalized(one.name)
        key = (name, frozenset(one.extras))
        if name in _OF_SPARK or key in expanded:
            continue
        expanded.add(key)
        try:
            found.setdefault(name, distribution(one.name))
        except PackageNotFoundError as error:
            if is_optional:
                continue
            raise UsageError(f"{one.name} is not installed; run: pip install {one.name}") from error
        for text in found[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append((needed, is_optional))
            elif any(needed.marker.evaluate({"extra": extra}) for extra in one.extras):
                # A machine may have only the extras that its pipelines use.
                waiting.append((needed, True))
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution: the name of each below the directory of packages, and its path."""
    is_own = _normalized(one.name) == OWN
    listed = [file for file in one.files or () if ".." not in file.parts and not file.is_absolute()]
    if is_own:
        yield from _own_files()
    elif any(file.suffix == ".pth" and len(file.parts) == 1 and _is_editable(one) for file in listed):
        raise UsageError(f"{one.name} is an editable installation, whose files are elsewhere: install it without -e")
    for file in listed:
        if is_own and (file.parts[0] == "quiver" or file.suffix == ".pth"):
            continue
        path = Path(str(one.locate_file(file)))
        if path.is_file() and file.name not in {"RECORD", "direct_url.json", "INSTALLER", "REQUESTED"}:
            yield str(PurePosixPath(file)), path


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of this package, which may run from a directory."""
    root = Path(str(quiver.__file__)).parent
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"quiver/{path.relative_to(root).as_posix()}", path


def _is_editable(one: Distribution) -> bool:
    text = one.read_text("direct_url.json")
    values: Any = json.loads(text) if text else {}
    return bool(values.get("dir_info", {}).get("editable"))
