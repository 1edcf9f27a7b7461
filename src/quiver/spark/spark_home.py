"""
A SPARK_HOME from which Spark's Python processes start faster.

Spark puts `python/lib/pyspark.zip` of its home first on the path of each Python process that it starts: one for each
query, and one for each data source and each task that runs at the same time. Modules in that archive have no bytecode,
so every process compiles them again, which takes two thirds of its start. A home in which `pyspark.zip` is a directory
with a link to the installed package lets them load the bytecode that is next to its modules.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["installed_spark_home", "link_spark_home"]

_ARCHIVES = Path("python", "lib")
_SUFFIX = ".zip"


def link_spark_home(installed: Path, directory: Path) -> None:
    """
    Create *directory*: links to everything in the Spark home *installed*, but with packages instead of archives.

    An archive whose package is not installed is linked as it is.

    Raises:
        OSError: the file system has no symbolic links, or *installed* has no archives.
    """
    (directory / _ARCHIVES).mkdir(parents=True)
    _link_all(installed, directory, without="python")
    _link_all(installed / "python", directory / "python", without="lib")
    for archive in (installed / _ARCHIVES).iterdir():
        name = archive.name.partition("-")[0].removesuffix(_SUFFIX)
        package = _package(name) if archive.name.endswith(_SUFFIX) else None
        link = directory / _ARCHIVES / archive.name
        if package is None:
            link.symlink_to(archive)
        else:
            # Only the package: a directory of other packages would come before the standard library.
            link.mkdir()
            (link / name).symlink_to(package, target_is_directory=True)


def _link_all(source: Path, target: Path, *, without: str) -> None:
    for path in source.iterdir():
        if path.name != without:
            (target / path.name).symlink_to(path)


def _package(name: str) -> Path | None:
    """Return the directory of the installed package *name*. pip installs the versions that the archives contain."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def installed_spark_home() -> Path | None:
    """Return the Spark home that pip installed with PySpark; None if there is none."""
    package = _package("pyspark")
    return None if package is None or not (package / _ARCHIVES).is_dir() else package
