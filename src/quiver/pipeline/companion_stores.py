"""What a pipeline keeps beside the directory of a store: `<store>.run`, and the buffers that stand in no file."""

from __future__ import annotations

import re
from pathlib import Path

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cores.instances import instance_roots

__all__ = ["beside", "stores_beside"]

_MADE = re.compile(r"(intake|staged)(-.+)?")
"""What `quiver.pipeline.config.flow` calls the buffers that stand in no file and are not in memory."""


def beside(directory: str | Path, ending: str) -> Path:
    """
    Return *directory* with a full stop and *ending* behind its name, never a place inside of it.

    Args:
        directory: need not exist; ``.`` and ``..`` go by the name that they really have.
        ending: without the full stop.

    Raises:
        UsageError: *directory* is ``/``, and nothing lies beside it.
    """
    path = Path(directory)
    if path.name in {"", ".."}:
        path = path.resolve()
    if not path.name:
        raise UsageError(f"{path} cannot be a store of a pipeline, which keeps more beside it; name a directory below")
    return path.with_name(f"{path.name}.{ending}")


def stores_beside(fs: FileSystem, directory: str | Path) -> dict[str, list[str]]:
    """
    Return the buffers that a pipeline keeps beside the store at *directory*, sorted, each with its stores: itself, or
    one for each core. Whoever has only the name of that store finds here who stands behind those buffers.

    Raises:
        OSError: what lies there cannot be listed.
    """
    try:
        place = beside(directory, "run")
    except UsageError:
        return {}  # nothing lies beside the root of all
    own = place.name.removesuffix("run")
    names = fs.list_dir(str(place.parent)) if fs.exists(str(place.parent)) else []
    found = {}
    for name in sorted(one for one in names if one.startswith(own) and _MADE.fullmatch(one.removeprefix(own))):
        path = str(place.with_name(name))
        try:
            found[path] = instance_roots(fs, path)
        except (UsageError, NotADirectoryError):
            continue  # it only has such a name
    return found
