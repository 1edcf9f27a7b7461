"""The directory of Spark's temporary files: removed at the end of the run, or by the next run."""

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

__all__ = ["NOTE_NAME", "spark_temp_dir"]

NOTE_NAME = "scratch"
"""The file in the run directory that contains the path of the temporary directory."""

_NOTE_BYTES_MAX = 4096
_PLACE_NAME = re.compile(r"quiver-spark-[0-9a-f]{8}")

_log = logging.getLogger("quiver.pipeline")


@contextlib.contextmanager
def spark_temp_dir(run_dir: Path) -> Iterator[Path]:
    """
    Yield a path for temporary files, and remove it at the end. First remove the directory of a run that was killed.

    The child that needs the directory creates it, so that a full disk does not prevent the start.

    Args:
        run_dir: a run directory locked by this process. It records the path, durably if there is space.
    """
    _remove_what_is_left(run_dir)
    # Not in the run directory: paths of sockets must be short.
    place = Path(tempfile.gettempdir()) / f"quiver-spark-{secrets.token_hex(4)}"
    try:
        replace_file(REAL_FILES, str(run_dir / NOTE_NAME), str(place).encode())
    except OSError as error:
        _log.warning("%s will not be removed if this process is killed: %s", place, error)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # the next run removes a directory that no longer exists
            (run_dir / NOTE_NAME).unlink()


def _remove_what_is_left(run_dir: Path) -> None:
    try:
        place = Path(REAL_FILES.read_all(str(run_dir / NOTE_NAME), size_max=_NOTE_BYTES_MAX).decode())
    except (OSError, ValueError):
        return
    # Remove only paths of this form, even if the file was changed, and do not follow links.
    if place.is_absolute() and _PLACE_NAME.fullmatch(place.name):
        shutil.rmtree(place, ignore_errors=True)
