"""The output of a Parquet exporter: a directory or a bucket, each with its committer and its staged files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.parquet_commit import ExportCommitter, StagedFile, committed_individually
from quiver.spark.exporters.settings import directory_mode
from quiver.spark.lake.object_commit import ObjectCommitter, individually_committed_objects
from quiver.spark.lake.staging import BucketStaging, DirectoryStaging, Staging

if TYPE_CHECKING:
    from quiver.bundle import BundleRef
    from quiver.objects.port import ObjectTier
    from quiver.spark.lake.settings import ParquetTables

__all__ = ["BatchCommitter", "BucketOutput", "DirectoryOutput", "LakeOutput", "configured_output", "output_of"]


class BatchCommitter(Protocol):
    """Commits the batches of one query: `ExportCommitter` on a disk, `ObjectCommitter` in a bucket."""

    exported_through: dict[str, BundleRef]
    """Per store, the position before which an earlier query of the same subscriber committed every bundle."""

    def is_committed(self, batch: int) -> bool:
        """Return whether *batch* has its record. If so, its files are in place, durably, on return."""

    def writing(self, batch: int) -> AbstractContextManager[str]:
        """Enclose the writing of *batch*; yield the prefix of its names. If it fails, its files are removed."""

    def commit(self, batch: int, parts: Iterable[StagedFile], through: Mapping[str, BundleRef]) -> tuple[str, ...]:
        """Make all *parts* of *batch* visible, even if a crash interrupts this. Return their final names."""


class LakeOutput(Protocol):
    """Where Parquet files become visible."""

    def prepare(self) -> None:
        """Create the directory, or check that the bucket can be written."""

    def committer(self, query_id: str, *, stores: Iterable[str], subscriber: str) -> BatchCommitter:
        """Return the committer of a query, after it finished what an earlier run left."""

    def staging(self, query_id: str, prefix: str) -> Staging:
        """Return where tasks write the files of one batch, with names that begin with *prefix*."""

    def committed_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""


@dataclass(frozen=True)
class DirectoryOutput:
    """
    A directory of this machine.

    Attributes:
        path: the directory, absolute.
        file_mode: permission bits of the files; None leaves them to the umask.
    """

    path: str
    file_mode: int | None = None

    def prepare(self) -> None:
        """Create the directory if it is missing."""
        if self.file_mode is not None:
            REAL_FILES.make_dirs(self.path, mode=directory_mode(self.file_mode))
        Path(self.path).mkdir(parents=True, exist_ok=True)

    def committer(self, query_id: str, *, stores: Iterable[str], subscriber: str) -> BatchCommitter:
        """Return the committer of a query, after it finished what an earlier run left."""
        committer = ExportCommitter(
            REAL_FILES,
            self.path,
            query_id=query_id,
            stores=stores,
            subscriber=subscriber,
            file_mode=self.file_mode,
        )
        committer.recover()
        return committer

    def staging(self, query_id: str, prefix: str) -> Staging:  # noqa: ARG002 - the prefix has it
        """Return where tasks write the hidden files of one batch."""
        return DirectoryStaging(self.path, prefix, self.file_mode)

    def committed_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""
        return committed_individually(REAL_FILES, self.path, names)


@dataclass(frozen=True)
class BucketOutput:
    """
    A prefix of a bucket.

    Attributes:
        location: of the prefix, with its options.
    """

    location: ObjectLocation

    @cached_property
    def _objects(self) -> ObjectTier:
        return open_objects(self.location)

    def prepare(self) -> None:
        """Check that objects can be written, read, listed and removed."""
        self._objects.list_below("")

    def committer(self, query_id: str, *, stores: Iterable[str], subscriber: str) -> BatchCommitter:
        """Return the committer of a query, after it finished what an earlier run left."""
        committer = ObjectCommitter(self._objects, query_id=query_id, stores=stores, subscriber=subscriber)
        committer.recover()
        return committer

    def staging(self, query_id: str, prefix: str) -> Staging:
        """Return where tasks send the files of one batch."""
        return BucketStaging(self.location, query_id, prefix)

    def committed_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""
        return individually_committed_objects(self._objects, names)


def output_of(
    path: str, options: Mapping[str, object] | None = None, *, file_mode: int | None = None
) -> DirectoryOutput | BucketOutput:
    """
    Return the output at *path*: a directory, or a URL of a bucket with its *options*.

    Raises:
        SettingsError: the URL or an option is invalid.
    """
    if "://" not in path:
        return DirectoryOutput(str(Path(path).absolute()), file_mode)
    return BucketOutput(ObjectLocation.from_url(path, options))


def configured_output(settings: ParquetTables) -> DirectoryOutput | BucketOutput:
    """Return where the files of an exporter with these settings become visible."""
    return output_of(settings.path, settings.options, file_mode=settings.file_mode)
