"""Fixtures shared by the tests of receivers."""

import pytest
from fake_store import FakeStore

from certificates import Authority


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("other"), "theirs")


@pytest.fixture(scope="session")
def server_files(authority):
    return authority.issue("server")


@pytest.fixture(scope="session")
def client_files(authority):
    return authority.issue("client")
