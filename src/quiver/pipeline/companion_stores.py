"""The directories of a pipeline next to a store: `<store>.run`, and the implicit buffers."""

from __future__ import annotations

import re
from pathlib import Path

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cores.instances import instance_roots

__all__ = ["find_companion_stores", "sibling_directory"]

_MADE = re.compile(r"(intake|staged)(-.+)?")
"""The names of implicit buffers on disk; `quiver.pipeline.config.flow` generates them."""


def sibling_directory(directory: str | Path, ending: str) -> Path:
    """
    Return the path ``<directory>.<ending>``, a sibling of *directory* and never a path inside of it.

    Args:
        directory: need not exist; ``.`` and ``..`` are resolved to the real name.
        ending: without the dot.

    Raises:
        UsageError: *directory* is ``/``, which has no siblings.
    """
    path = Path(directory)
    if path.name in {"", ".."}:
        path = path.resolve()
    if not path.name:
        raise UsageError(f"{path} cannot be a store of a pipeline, which needs sibling directories; use a subdirectory")
    return path.with_name(f"{path.name}.{ending}")


def find_companion_stores(fs: FileSystem, directory: str | Path) -> dict[str, list[str]]:
    """
    Return the implicit buffers of a pipeline next to the store at *directory*, sorted, each with its stores: the buffer
    itself, or one store for each core.

    Raises:
        OSError: the parent directory cannot be listed.
    """
    try:
        place = sibling_directory(directory, "run")
    except UsageError:
        return {}  # the root directory has no siblings
    own = place.name.removesuffix("run")
    names = fs.list_dir(str(place.parent)) if fs.exists(str(place.parent)) else []
    found = {}
    for name in sorted(one for one in names if one.startswith(own) and _MADE.fullmatch(one.removeprefix(own))):
        path = str(place.with_name(name))
        try:
            found[path] = instance_roots(fs, path)
        except (UsageError, NotADirectoryError):
            continue  # it has such a name but is not a store
    return found
