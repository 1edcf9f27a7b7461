"""The properties of an open store: sizes, figures, problems, its log, and the rows of a slot as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quiver.errors import StoreClosedError, StoreFailedError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import RealFileSystem
from quiver.store.cold.tier import ColdTier
from quiver.store.context import StoreContext
from quiver.store.figures import figures
from quiver.store.format.cores import parse_core_directory
from quiver.store.format.names import WAL_DIR
from quiver.store.format.wal_entry import WalEntry
from quiver.store.limits.admission import Admission
from quiver.store.reading.query.scan import Scan
from quiver.store.reading.query.time_range import By, Moment
from quiver.store.reading.read import StoreReader
from quiver.store.receipts import BundleReceipt
from quiver.store.removal.cleanup import Cleanup
from quiver.store.store_html import store_html
from quiver.store.wal.replay import logged_entries

__all__ = ["StoreProperties"]

_PROBE_BYTES = 64 * 1024
"""The size of the bundle that `problems` asks for space for."""


class StoreProperties:
    """A base of `Store`, which sets these attributes. All methods are read-only."""

    path: str
    _fs: FileSystem
    _context: StoreContext
    _admission: Admission
    _cleanup: Cleanup
    _cold_tier: ColdTier
    _reader: StoreReader
    _sequence: int

    _closed: bool

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.path} is closed")

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed."""
        return self._closed

    @property
    def disk_bytes(self) -> int:
        """The bytes on disk: log, segments, and all other files."""
        return self._admission.disk_bytes

    def require_healthy(self) -> None:
        """
        Return when the log has not failed. Waits for nothing.

        Raises:
            StoreFailedError: a write or sync failed, or a background thread died; reopen to recover.
        """
        self._context.wal.require_healthy()

    def problems(self) -> tuple[str, ...]:
        """Return why the store accepts no bundles now, one sentence each; empty if it accepts them. Never waits."""
        if self._closed:
            return (f"{self.path} is closed",)
        with self._context.lock:
            try:
                self._context.wal.require_healthy()
            except StoreFailedError as error:
                return (f"the log failed: {error}",)
            failure = self._context.sealing.failure
            full = self._admission.why_refused(_PROBE_BYTES)
        if full is not None and full.cause in {"cap", "segments"} and self._cleanup.has_finished():
            full = None  # deleting finished segments makes space for the next bundle
        found = [] if failure is None else [f"a segment cannot be written: {failure}"]
        return (*found, *([] if full is None else [f"no space: {full.what}"]))

    def scan(
        self,
        slot: int | str | None = None,
        columns: Sequence[str] | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        by: By = "ingested",
        table: str | None = None,
        view: str | None = None,
    ) -> Scan:
        """
        Return the rows of one slot or view as one table, for any Arrow consumer; see `StoreReader.scan`.

        Resolves nothing. With `segment_only`, bundles are included when they are sealed.

        Raises:
            InvalidBundleError: the slot does not exist.
            StoreClosedError: the store is closed.
            UsageError: see `StoreReader.scan`.
        """
        self._require_open()
        return self._reader.scan(slot, columns, start, end, by=by, table=table, view=view)

    def is_durable(self, receipt: BundleReceipt) -> bool:
        """Return whether the bundle with *receipt* survives a power loss."""
        if self._context.settings.durability == "wal":
            return self._context.wal.synced >= receipt.wal_position
        return self._context.sealing.sealed_through >= receipt.sequence

    @property
    def companion_directory(self) -> str | None:
        """
        The directory in which receivers may keep their files: that of the store, or the one above its cores. None if it
        is not a directory of the operating system.
        """
        if not isinstance(self._fs, RealFileSystem):
            return None
        above, _, name = self.path.rpartition("/")
        return self.path if parse_core_directory(name) is None else above or "."

    def recent_wal_entries(self) -> Iterator[WalEntry]:
        """Iterate over the entries that are physically in the log, oldest first, including those that are sealed."""
        return logged_entries(self._fs, f"{self.path}/{WAL_DIR}")

    def _repr_html_(self) -> str:
        return store_html(self.path, self.stats, is_closed=self._closed)

    def stats(self) -> dict[str, Any]:
        """Return current figures: bytes, counts, and the lag of each subscriber."""
        return figures(
            self._context,
            self._cold_tier,
            next_sequence=self._sequence,
            disk_bytes=self.disk_bytes,
            staged_bytes=self._admission.staged_bytes,
        )
