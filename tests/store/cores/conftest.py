"""Fixtures shared by the tests of cores."""

import pytest
from core_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()
