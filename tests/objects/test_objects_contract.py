"""Every tier fulfils the contract: in memory, on a disk, and in the buckets of real servers."""

from __future__ import annotations

import pytest

from emulators.azure import AzureServer
from emulators.gcs import GcsServer
from quiver.clock import SYSTEM_CLOCK
from quiver.objects import ObjectLocation, ObjectTier, open_objects
from quiver.objects.directory import DirectoryObjects
from quiver.objects.memory import MemoryObjects
from quiver.objects.remote import RemoteObjects
from quiver.objects.retrying import RetryingObjects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import FaultObjects
from quiver.testing.objects_contract import ObjectTierContract
from s3_server import S3Server


class TestMemory(ObjectTierContract):
    @pytest.fixture
    def tier(self) -> ObjectTier:
        return MemoryObjects()


class TestDirectory(ObjectTierContract):
    @pytest.fixture
    def tier(self, tmp_path) -> ObjectTier:
        return DirectoryObjects(REAL_FILES, str(tmp_path / "cold"))


class TestDirectoryThatCrashes(ObjectTierContract):
    @pytest.fixture
    def tier(self) -> ObjectTier:
        return DirectoryObjects(CrashFileSystem(), "/cold")


class TestClientLibrary(ObjectTierContract):
    """The client library's in-memory store, without a network."""

    @pytest.fixture
    def tier(self) -> ObjectTier:
        store = pytest.importorskip("obstore.store")
        return RemoteObjects(store.MemoryStore(), name="memory")


class TestClientLibraryWithGenerations(ObjectTierContract):
    """As with Google: a condition names the generation that has the etag."""

    @pytest.fixture
    def tier(self) -> ObjectTier:
        store = pytest.importorskip("obstore.store")
        return RemoteObjects(store.MemoryStore(), name="memory", has_generations=True)


class TestWrapped(ObjectTierContract):
    """The wrappers change nothing when no call fails."""

    @pytest.fixture
    def tier(self) -> ObjectTier:
        return RetryingObjects(FaultObjects(MemoryObjects()), clock=SYSTEM_CLOCK, observer=InMemoryObserver())


class TestS3(ObjectTierContract):
    """SeaweedFS."""

    @pytest.fixture
    def tier(self, s3_server: S3Server) -> ObjectTier:
        return open_objects(ObjectLocation.from_url(s3_server.url(), s3_server.options()))


@pytest.mark.versity
class TestVersity(ObjectTierContract):
    """The Versity gateway."""

    @pytest.fixture
    def tier(self, versity_server: S3Server) -> ObjectTier:
        return open_objects(ObjectLocation.from_url(versity_server.url(), versity_server.options()))


@pytest.mark.emulators
class TestGoogle(ObjectTierContract):
    """fake-gcs-server."""

    @pytest.fixture
    def tier(self, gcs_server: GcsServer) -> ObjectTier:
        return open_objects(ObjectLocation.from_url(gcs_server.url(), gcs_server.options()))


@pytest.mark.emulators
class TestAzure(ObjectTierContract):
    """Azurite."""

    @pytest.fixture
    def tier(self, azure_server: AzureServer) -> ObjectTier:
        return open_objects(ObjectLocation.from_url(azure_server.url(), azure_server.options()))
