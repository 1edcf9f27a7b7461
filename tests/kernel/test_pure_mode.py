"""The modules that have twins pass their tests in the other mode as well: in pure Python when the kernel is built."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "tests/aof/format",
    "tests/aof/recovery/test_aof_recovery.py",
    "tests/otap/tables/test_any_values.py",
    "tests/otap/views/test_columnar.py",
)


def test_modules_with_twins_pass_in_pure_python(kernel):
    """The tests of formats, recovery and views pass with QUIVER_PURE=1."""
    # The tested quiver is in PYTHONPATH: also that of a wheel or a build with sanitizers.
    # Without the kernel, sanitizers check nothing of Quiver and make the tests much slower.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=tools", *MODULES]
    without = ("PYTEST", "COV", "LD_PRELOAD", "PYTHONMALLOC")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"QUIVER_PURE": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
