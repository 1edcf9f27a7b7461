"""The compiled kernel, for tests that compare it with its twins in Python."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from quiver.primitives.kernel import KERNEL, describe_kernel

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("aof", "otap", "receivers", "store/format")]  # for twin_inputs.py


@pytest.fixture(scope="session")
def kernel() -> ModuleType:
    """The compiled kernel; tests that need it are skipped without one."""
    if KERNEL is None:
        pytest.skip(describe_kernel())
    return KERNEL
