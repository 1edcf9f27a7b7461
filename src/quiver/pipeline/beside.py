"""
What a pipeline keeps beside the directory of a store: `<store>.run`, and the buffers that stand in no file.
"""

from __future__ import annotations

from pathlib import Path

from quiver.errors import WrongUse

__all__ = ["beside"]


def beside(directory: str | Path, ending: str) -> Path:
    """
    Return *directory* with a full stop and *ending* behind its name, never a place inside of it.

    Args:
        directory: need not exist; ``.`` and ``..`` go by the name that they really have.
        ending: without the full stop.

    Raises:
        WrongUse: *directory* is ``/``, and nothing lies beside it.
    """
    path = Path(directory)
    if path.name in {"", ".."}:
        path = path.resolve()
    if not path.name:
        raise WrongUse(f"{path} cannot be a store of a pipeline, which keeps more beside it; name a directory below")
    return path.with_name(f"{path.name}.{ending}")
