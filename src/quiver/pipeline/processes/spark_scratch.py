"""Where Spark's own files go while a pipeline runs: a place of its own, gone with the run, or with the next one."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["NOTE_NAME", "scratch_of"]

NOTE_NAME = "scratch"
"""In the run directory: the path of the place."""

_NOTE_BYTES_MAX = 4096
_PLACE_NAME = re.compile(r"quiver-spark-[0-9a-f]{8}")

_log = logging.getLogger("quiver.pipeline")


@contextlib.contextmanager
def scratch_of(run_dir: Path) -> Iterator[Path]:
    """
    Give a path for scratch files, and remove what is there at the end. What a run left that was killed goes first.

    Nothing is made here: the child that needs it does so, for a full disk is no reason not to start.

    Args:
        run_dir: held by this process. The place is noted in it, durably where there is room.
    """
    _remove_what_is_left(run_dir)
    # Not in the run directory: names of sockets are short.
    place = Path(tempfile.gettempdir()) / f"quiver-spark-{secrets.token_hex(4)}"
    try:
        replace_file(REAL_FILES, str(run_dir / NOTE_NAME), str(place).encode())
    except OSError as error:
        _log.warning("%s stays when this process is killed: %s", place, error)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # the next run removes what is not there
            (run_dir / NOTE_NAME).unlink()


def _remove_what_is_left(run_dir: Path) -> None:
    try:
        place = Path(REAL_FILES.read_all(str(run_dir / NOTE_NAME), size_max=_NOTE_BYTES_MAX).decode())
    except (OSError, ValueError):
        return
    # Nothing else is removed, whatever somebody writes there; and a link is not followed.
    if place.is_absolute() and _PLACE_NAME.fullmatch(place.name):
        shutil.rmtree(place, ignore_errors=True)
