"""The compiled kernel, for tests that compare it with its twins in Python."""

from types import ModuleType

import pytest

from quiver.primitives.kernel import KERNEL, describe_kernel


@pytest.fixture(scope="session")
def kernel() -> ModuleType:
    """The compiled kernel; tests that need it are skipped without one."""
    if KERNEL is None:
        pytest.skip(describe_kernel())
    return KERNEL
