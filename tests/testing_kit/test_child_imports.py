"""Programs that tests start test the same quiver as the tests."""

import site
import subprocess
import sys
from pathlib import Path

import quiver


def test_a_child_imports_the_quiver_of_its_parent():
    """Regardless of other installations and of the environment of the shell."""
    places = {str(Path(__file__).parents[2] / "src"), *site.getsitepackages()}  # `make test-wheel`: the latter
    assert str(Path(quiver.__file__).parents[1]) in places
    script = "import quiver; print(quiver.__file__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == quiver.__file__
