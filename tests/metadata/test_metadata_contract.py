"""Every metadata store fulfils the contract: a dictionary, a file, and a real etcd."""

from __future__ import annotations

import secrets

import pytest

from etcd_server import SecureEtcd, etcd_binary
from quiver.metadata import MetadataStore, open_metadata
from quiver.testing.faultmetadata import FaultMetadata
from quiver.testing.metadata_contract import MetadataContract


@pytest.fixture
def root() -> str:
    return f"/test/{secrets.token_hex(6)}/"


class TestMemory(MetadataContract):
    @pytest.fixture
    def store(self) -> MetadataStore:
        return open_metadata("memory://")


class TestWrapped(MetadataContract):
    """The fault wrapper changes nothing if no call fails."""

    @pytest.fixture
    def store(self) -> MetadataStore:
        return FaultMetadata(open_metadata("memory://"))


class TestSqlite(MetadataContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = open_metadata(f"sqlite://{tmp_path}/metadata.db")
        yield store
        store.close()


class TestEtcd(MetadataContract):
    """Part of the default suite if an etcd is found."""

    @pytest.fixture
    def store(self, etcd_server: str):
        store = open_metadata(etcd_server.replace("http://", "etcd://"))
        yield store
        store.close()


class TestSecureEtcd(MetadataContract):
    """An etcd with TLS, client certificates and users, if an etcd is found."""

    @pytest.fixture
    def store(self, secure_etcd: SecureEtcd):
        store = open_metadata({"endpoint": secure_etcd.url, **secure_etcd.options})
        yield store
        store.close()


@pytest.mark.etcd
class TestBuiltEtcd(TestEtcd):
    """The same if an etcd is required."""

    def test_an_etcd_is_found(self):
        """`make test-etcd` builds it: a run that skips everything proves nothing."""
        assert etcd_binary() is not None
