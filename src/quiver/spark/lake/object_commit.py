"""
Make a batch of objects visible in a bucket: complete objects, exactly once, for every reader that lists the bucket.

::

    1  tasks upload    _quiver/<query id>/staged/<batch>-….part   readers of *.parquet never see it
    2  the driver puts _quiver/<query id>/<batch>.json            the commit, only if there is none yet
    3  each part is copied to <table>/<partition>/<query>-<batch>-<n>.parquet, within the object store
    4  the parts of this batch and of earlier ones are removed

A bucket has no rename, but a copy to one name is atomic. A crash before 2 leaves parts that no reader sees. A crash
after 2 is rolled forward: the record lists the parts and their names. A copy that is repeated writes the same bytes to
the same name. The record of a batch is put on the condition that there is none: if two drivers run the same batch, one
of them commits, and the other removes its own parts and rolls the first one forward.

A part is removed only after its batch, or a later one, has a record. So no process can remove the parts that another
one commits. Parts of a batch that never gets a record are removed after a day.

Each record repeats the positions of all earlier ones. Starting needs only the newest record of each query.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, ObjectExistsError, ObjectNotFoundError, ObjectsUnavailableError, QuiverError
from quiver.objects.port import ObjectTier
from quiver.spark.exporters.commit_records import RECORD_BYTES_MAX
from quiver.spark.exporters.parquet_commit import (
    INDIVIDUAL_PREFIX,
    RECORDS_DIR,
    RECORDS_KEPT,
    ExportRecord,
    StagedFile,
    part_prefix,
    record_batch_of,
)
from quiver.store.reading.offsets import STORE_UNKNOWN

__all__ = ["STAGED_DIR", "ObjectCommitter", "individually_committed_objects", "staged_batch_of"]

STAGED_DIR = "staged"
LEFTOVER_AGE_NS = 24 * 3600 * 1_000_000_000
_COPIES_AT_ONCE = 8


class ObjectCommitter:
    """
    Commits the batches of one query into one location of an object store. One live query per subscriber is assumed; if
    there are two, each batch is still visible once.

    Args:
        objects: the location; keys are relative to it.
        query_id: Spark's id of the query, which stays the same over restarts from one checkpoint.
        stores: identities of the stores: one, or one for each core.
        subscriber: the subscriber of the query.
        clock: tells the age of parts that were never committed.
        random: returns the name of an attempt, which no other attempt has.
    """

    def __init__(
        self,
        objects: ObjectTier,
        *,
        query_id: str,
        stores: Iterable[str],
        subscriber: str,
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._objects = objects
        self._query_id = query_id
        self._stores = frozenset(stores)
        self._subscriber = subscriber
        self._clock = clock
        self._random = random
        self._attempt = ""
        self._through: dict[str, BundleRef] = {}
        self.exported_through: dict[str, BundleRef] = {}
        """Per store, the position before which an earlier query of the same subscriber committed every bundle."""

    def recover(self) -> None:
        """
        Finish committed batches and remove what an earlier run left. Call it once, before the first batch.

        Raises:
            CorruptionError: a commit record is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        if self._query_id.startswith(INDIVIDUAL_PREFIX):
            self.is_committed(0)
            return
        newest: dict[str, int] = {}
        staged: dict[str, list[str]] = defaultdict(list)
        oldest_ns = self._clock.now_ns() - LEFTOVER_AGE_NS
        old = []
        for info in self._objects.list_below(RECORDS_DIR):
            query_id, _, name = info.key.removeprefix(f"{RECORDS_DIR}/").partition("/")
            batch = record_batch_of(name)
            if name.startswith(f"{STAGED_DIR}/"):
                staged[query_id].append(info.key)
                if info.modified_ns < oldest_ns:
                    old.append(info.key)
            elif batch is not None:
                newest[query_id] = max(batch, newest.get(query_id, batch))
        for query_id, batch in newest.items():
            if not query_id.startswith(INDIVIDUAL_PREFIX) or staged[query_id]:
                self._finish(query_id, batch, staged[query_id])
        self.exported_through = dict(self._through)
        # No record names a part of a batch that has none. A process that would still commit it died long ago.
        self._objects.delete(key for key in old if staged_batch_of(key) > newest.get(_query_of(key), -1))

    def _finish(self, query_id: str, batch: int, staged: Iterable[str]) -> None:
        record = self._record(query_id, batch)
        if record is None or record.subscriber != self._subscriber:
            return
        if query_id.startswith(INDIVIDUAL_PREFIX):
            self._publish(query_id, record, staged)
        elif self._stores & set(record.through):
            self._publish(query_id, record, staged)
            self._know(record)

    def is_committed(self, batch: int) -> bool:
        """
        Return whether *batch* has its record. If so, its files are in place, durably, on return.

        Raises:
            CorruptionError: the record is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        record = self._record(self._query_id, batch)
        if record is None:
            return False
        self._publish(self._query_id, record)
        self._know(record)
        return True

    @contextlib.contextmanager
    def writing(self, batch: int) -> Iterator[str]:
        """
        Enclose the writing of the parts of *batch*, whose names begin with the yielded prefix.

        If it fails, they are removed: they are written again, or never.
        """
        self._attempt = self._random()
        prefix = f"{batch:010}-{self._attempt}-"
        try:
            yield prefix
        except BaseException:
            with contextlib.suppress(QuiverError, OSError):  # a later batch removes them, and the first error matters
                staged = self._staged(self._query_id)
                self._objects.delete(key for key in staged if key.rpartition("/")[2].startswith(prefix))
            raise

    def commit(self, batch: int, parts: Iterable[StagedFile], through: Mapping[str, BundleRef]) -> tuple[str, ...]:
        """
        Make all *parts* of *batch* visible, even if a crash interrupts this. Durable on return.

        The *parts* must be uploaded completely. Nothing is written if there are no parts. If another process committed
        the batch meanwhile, its files are made visible instead, and *parts* are removed.

        Returns:
            The keys of the visible files.

        Raises:
            ObjectsUnavailableError: whether the batch is committed is unknown; `is_committed` tells.
        """
        ordered = sorted(parts, key=lambda part: (part.table, part.name))
        if not ordered:
            return ()
        stem = part_prefix(self._query_id, batch)[1:]
        named = tuple((part, f"{stem}{number}.parquet") for number, part in enumerate(ordered))
        reached = {store: max(at, self._through.get(store, at)) for store, at in through.items()}
        record = ExportRecord(batch, self._subscriber, dict(sorted({**self._through, **reached}.items())), named)
        try:
            self._objects.put(self._record_key(self._query_id, batch), record.encode(), if_absent=True)
        except ObjectExistsError:
            found = self._record(self._query_id, batch)
            if found is None:
                raise
            record = found
        self._publish(self._query_id, record)
        self._know(record)
        self._prune(batch)
        return tuple(f"{part.table}/{name}" for part, name in record.files)

    def _publish(self, query_id: str, record: ExportRecord, staged: Iterable[str] | None = None) -> None:
        """Copy each part of *record* that is still staged to its final name, and remove it. Durable on return."""
        found = self._staged(query_id) if staged is None else list(staged)
        if not found:
            return
        known = set(found)

        def copy(file: tuple[StagedFile, str]) -> None:
            part, name = file
            source = self._staged_key(query_id, part.name)
            if source not in known:
                return
            try:
                info = self._objects.copy(source, f"{part.table}/{name}")
            except ObjectNotFoundError:
                return  # another process has just published it
            if info.size_bytes != part.size_bytes:
                raise ObjectsUnavailableError("copy", info.key, "the copy differs from the part in its size")

        with ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="quiver-publish") as pool:
            list(pool.map(copy, record.files))
        decided = [key for key in found if staged_batch_of(key) <= record.batch]
        # Every file of the record was either copied just now or published before: its part is needed no more.
        self._objects.delete(decided)

    def _know(self, record: ExportRecord) -> None:
        for store, position in record.through.items():
            if store != STORE_UNKNOWN:
                self._through[store] = max(self._through.get(store, position), position)

    def _record(self, query_id: str, batch: int) -> ExportRecord | None:
        key = self._record_key(query_id, batch)
        try:
            record = ExportRecord.decode(self._objects.get(key, size_max=RECORD_BYTES_MAX), key)
        except ObjectNotFoundError:
            return None
        if record.batch != batch:
            raise CorruptionError(key, 0, f"the commit record is that of batch {record.batch}")
        return record

    def _staged(self, query_id: str) -> list[str]:
        return [info.key for info in self._objects.list_below(f"{RECORDS_DIR}/{query_id}/{STAGED_DIR}")]

    def _prune(self, batch: int) -> None:
        if batch >= RECORDS_KEPT:
            self._objects.delete([self._record_key(self._query_id, batch - RECORDS_KEPT)])

    def _record_key(self, query_id: str, batch: int) -> str:
        return f"{RECORDS_DIR}/{query_id}/{batch:010}.json"

    def _staged_key(self, query_id: str, name: str) -> str:
        return f"{RECORDS_DIR}/{query_id}/{STAGED_DIR}/{name}"


def individually_committed_objects(objects: ObjectTier, names: AbstractSet[str]) -> set[str]:
    """Return those of *names* under which a bundle was exported individually."""
    found = set()
    for info in objects.list_below(RECORDS_DIR) if names else ():
        query_id, _, name = info.key.removeprefix(f"{RECORDS_DIR}/").partition("/")
        if query_id in names and record_batch_of(name) == 0:
            found.add(query_id)
    return found


def staged_batch_of(key: str) -> int:
    """Return the batch of a part; a name of another form belongs to no batch, and sorts after all."""
    digits = key.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 2**63


def _query_of(key: str) -> str:
    return key.removeprefix(f"{RECORDS_DIR}/").partition("/")[0]
