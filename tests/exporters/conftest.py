"""
Certificates, made once.
"""

import pytest
from far_side_certificates import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))
