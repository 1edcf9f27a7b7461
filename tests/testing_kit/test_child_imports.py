"""Programs that tests start test the same tree as the tests."""

import subprocess
import sys
from pathlib import Path

import quiver


def test_a_child_imports_the_quiver_of_its_parent():
    """Regardless of other installations and of the environment of the shell."""
    assert Path(quiver.__file__).parents[2] == Path(__file__).parents[2]
    script = "import quiver; print(quiver.__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == quiver.__file__
