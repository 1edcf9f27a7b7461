"""
The bundles that an exporter of tables could not take through its processors: held, and tried again one by one.

::

    batch ─▶ bundles that fail ─▶ retry set, durably ─▶ the rest is exported and the batch committed
                                     │
    drain ◀── one whose time has come, by itself: exported under a name of its own, or later again, or a dead letter

A batch and the drain exclude one another. A batch that was cut short may come again with a bundle that was exported by
itself meanwhile: the first batch of a life asks the exporter by that name.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.batches import read_stored
from quiver.delivery.policy import Exhausted, Permanent, RetryPolicy, Transient, outcome_of_error
from quiver.delivery.undelivered import Undelivered
from quiver.errors import (
    BundleUnavailableError,
    CorruptionError,
    DeliveryHaltedError,
    InvalidBundleError,
    QuiverError,
    StoreFailedError,
)
from quiver.observe import InMemoryObserver, Observer
from quiver.otap import VIEWS, decode_groups
from quiver.otap.stored import stored_requests
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.spark.exporters.exported import failure_type
from quiver.spark.exporters.parquet_commit import apart_id
from quiver.spark.tables import Descriptors
from quiver.store.format.names import SEGMENTS_DIR, segment_name
from quiver.store.reading.listing import find_segments
from quiver.store.reading.segments import store_identity
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.store.subscribers.state import SegmentRef, SubscriberState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quiver.delivery.dead_letters import DeadLetters
    from quiver.delivery.exporter_stats import ExporterStats
    from quiver.store.format.exporter_report import FailureType

__all__ = [
    "BundleExport",
    "HeldExports",
    "LettersOf",
    "blames_nobody",
    "names_apart",
    "row_of",
    "told",
    "undecodable",
    "unresolved_bundles",
]

DRAIN_EVERY_S = 0.5
CLOSE_S = 5.0

REASON_CHARS_MAX = 400

_BRIDGE_ERRORS = ("Py4JNetworkError", "Py4JError")
_WAITED = ("Exception thrown in awaitResult", "Job aborted", "Writing job failed")
_PACKAGE = re.compile(r"^(?:[\w$]+\.)+(?=[A-Z]\w*: )")

_NOBODYS = (
    "SPARK_JOB_CANCELLED", "SparkContext was shut down", "SparkContext has been shutdown", "stopped SparkContext",
    "No space left on device", "port number from pyspark.daemon",
)  # fmt: skip
"""What Spark says when a job ends for a reason of its own."""

LettersOf = Callable[[str, str], "DeadLetters"]
"""The directory of a store and a subscriber → its dead letters; the class is one. Handed in: it brings the engine."""

_log = logging.getLogger("quiver")


@runtime_checkable
class BundleExport(Protocol):
    """What exports batches, and can do so bundle by bundle: `TableBatches` and `ParquetExporter`."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Export one batch."""

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """Compute what the processors make of *bundles*; raise what they raise."""

    def apart(self, spark: SparkSession, bundle: pa.Table, name: str) -> None:
        """Export one bundle by itself, under *name*."""

    def exported_apart(self, names: AbstractSet[str]) -> set[str]:
        """Return under which of *names* a bundle was exported by itself."""


def undecodable(bundle: Bundle) -> str | None:
    """Say why something in *bundle* can never be decoded; None when all of it can."""
    return next(
        (
            f"a request for {view} cannot be decoded: {why}"
            for view in VIEWS
            for group in decode_groups(stored_requests(bundle.batches, view), view)
            for _, why in group.bad
        ),
        None,
    )


def names_apart(subscriber: str, places: Iterable[tuple[str, BundleRef]]) -> dict[str, tuple[str, BundleRef]]:
    """
    Return the names under which *subscriber* exports the bundles at *places* by themselves: each the directory of a
    store, and a bundle in it.
    """
    identities: dict[str, str] = {}
    named = {}
    for root, ref in places:
        if root not in identities:
            identities[root] = store_identity(REAL_FILES, root)
        named[apart_id(subscriber, f"{identities[root]}/{ref}")] = (root, ref)
    return named


def row_of(root: str, ref: BundleRef, bundle: Bundle) -> pa.Table:
    """Return the descriptor of a sealed bundle, as a frame of mode `bundles` has it."""
    path = f"{root}/{SEGMENTS_DIR}/{segment_name(ref.segment)}"
    return pa.table(
        {
            "path": pa.array([path], pa.string()),
            "segment": pa.array([ref.segment], pa.int64()),
            "index": pa.array([ref.index], pa.int64()),
            "slots": pa.array([list(bundle.slots)], pa.list_(pa.int32())),
        }
    )


def blames_nobody(error: Exception) -> bool:
    """
    Say whether *error* is of Spark or of the machine, and would have hit any bundle: the query was stopped, the disk is
    full, nobody answers.
    """
    if type(error).__name__ in _BRIDGE_ERRORS or isinstance(error, OSError):
        return True
    text = str(error)
    return any(words in text for words in _NOBODYS)


def told(error: Exception) -> str:
    """
    Return what *error* says, for people, in a line: of what Spark and the bridge to Java wrap
    around one, that one.
    """
    raw = [line for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    lines = [line.strip() for line in raw]
    # Python sends its traceback, which ends with the error itself: from a worker, or from what a batch is handed to.
    begins = next((at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    if begins is not None:
        frames = [at for at, line in enumerate(lines) if at > begins and line.startswith('File "')]
        after = (frames[-1] if frames else begins) + 1
        # After the place stands the line of code, where there is one, and after that, perhaps, marks below it: all
        # further in than the error.
        outer = [line.strip() for line in raw[after:] if not line[0].isspace()]
        lines = outer or [line for line in lines[after + 1 :] if set(line) - set("^~ ")] or lines[after:]
    is_named = begins is not None
    at = next((at for at, line in enumerate(lines[:-1]) if "An error occurred while calling" in line), None)
    if at is not None:
        lines = _causes(lines[at + 1 :])  # of the bridge; the error stands below
        is_named = True
    text = lines[0] if lines else ""
    return text[:REASON_CHARS_MAX] if is_named else f"{type(error).__name__}: {text}"[:REASON_CHARS_MAX]


def _causes(lines: list[str]) -> list[str]:
    """Return what a Java error in *lines* says, beginning with the first that is not about who waited for whom."""
    said = [lines[0].removeprefix(": ")]
    said += [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # A job tells which task it lost, and behind that why.
    said = [re.sub(r"^.*: Lost task \S+ .*?\): (?=\S)", "", line) for line in said]
    inner = next((at for at, line in enumerate(said) if not any(words in line for words in _WAITED)), 0)
    return [_PACKAGE.sub("", line) for line in said[inner:]]


def unresolved_bundles(root: str, subscriber: str) -> list[BundleRef]:
    """Return every bundle that a subscriber has not resolved."""
    progress = load_progress(REAL_FILES, root, subscriber)
    state = SubscriberState() if progress is None else SubscriberState.from_progress(progress)
    found = []
    for info in find_segments(REAL_FILES, root).infos:
        left = state.unresolved(SegmentRef.of(info))
        found += [BundleRef(info.seq, index) for index in range(info.bundle_count) if left >> index & 1]
    return found


class HeldExports:
    """
    What one exporter holds, of all stores that it reads. The retry sets are open while there is something in them.

    Args:
        subscriber: the exporter.
        policy: how often, how long, and what then.
        export: exports a bundle by itself; None of one that cannot: then nothing is ever due.
        letters: makes the dead letters, if the policy wants any.
        clock: when the next attempt of a bundle is due.
        observer: takes counts and events.
        background: try again in a thread; without it the caller drives `drain`.
        stats: takes the failures of bundles.

    Attributes:
        busy: held by whoever exports: a batch, or the drain for one bundle.
        halted: the policy said so, in the drain.
        failed: the drain's thread died; no batch may pass until another life of the exporter begins.
        session: where the drain's jobs run; it waits for one.
    """

    def __init__(
        self,
        subscriber: str,
        policy: RetryPolicy,
        *,
        export: BundleExport | None,
        letters: LettersOf | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        background: bool = True,
        stats: ExporterStats | None = None,
    ) -> None:
        self._stats = stats
        self.busy = threading.Lock()
        self.halted: DeliveryHaltedError | None = None
        self.failed: StoreFailedError | None = None
        self.session: SparkSession | None = None
        self._subscriber = subscriber
        self._policy = policy
        self._export = export
        self._letters = letters
        self._clock = clock
        self._observer = observer
        self._background = background and export is not None
        self._stores: dict[str, Undelivered] = {}
        self._guard = threading.Lock()
        self._is_closed = False
        # A daemon: it is in the middle of nothing that a crash could not interrupt.
        self._worker = Worker(
            f"quiver-held {subscriber}", self._turn, every=DRAIN_EVERY_S, on_death=self._fail, clock=clock,
            observer=observer or InMemoryObserver(),
        )  # fmt: skip
        self._not_before_s = 0.0

    def take_up(self, root: str) -> None:
        """
        Go on with what an earlier life held of the store at *root*.

        Raises:
            DirectoryInUseError: another life goes on with it.
            OSError: the disk refused.
        """
        try:
            there_is = bool(load_retry_set(REAL_FILES, root, self._subscriber))
        except CorruptionError:
            there_is = True
        if there_is:
            self._of(root)
            self._begin()

    def _of(self, root: str) -> Undelivered:
        if root not in self._stores:
            letters = None
            if self._letters is not None and self._policy.on_exhausted == "dead_letter":
                letters = self._letters(root, self._subscriber)
            retries = RetrySet.open(
                REAL_FILES,
                root,
                self._subscriber,
                unresolved=lambda: unresolved_bundles(root, self._subscriber),
                clock=self._clock,
            )
            self._stores[root] = Undelivered(
                self._subscriber,
                self._policy,
                retries=retries,
                letters=letters,
                clock=self._clock,
                observer=self._observer,
            )
        return self._stores[root]

    def _begin(self) -> None:
        if self._background:
            self._worker.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not any(len(one.retries) for one in self._stores.values())

    def has(self, root: str, ref: BundleRef) -> bool:
        """Say whether a bundle is held."""
        return root in self._stores and ref in self._stores[root].retries

    # ── in a batch ───────────────────────────────────────────────────────────────────────────────────

    def set_aside(self, failed: Mapping[tuple[str, BundleRef], Transient | Permanent]) -> None:
        """
        Hold the bundles of a batch that *failed*, by store and place, or give them up. Durable on return.

        Raises:
            DeliveryHaltedError: the policy says to stop at one of them.
            CapacityError: so much is held that the batch must not pass these; it is to be tried again.
            OSError: the disk refused; the same holds.
        """
        try:
            for (root, ref), outcome in failed.items():
                self._failed(root, ref, outcome, save=False)
        finally:
            self._save()
        if not self.is_empty:
            self._begin()

    def _failed(self, root: str, ref: BundleRef, outcome: Transient | Permanent, *, save: bool) -> None:
        undelivered = self._of(root)
        if self._stats is not None:
            kind: FailureType = "data" if isinstance(outcome, Permanent) else "processor"
            self._stats.failed(kind, f"bundle {ref}: {outcome}")
        verdict = undelivered.failed(ref, outcome, content=lambda: _content(root, ref), save=save)
        if isinstance(verdict, Exhausted):
            if verdict.how == "halt":
                raise DeliveryHaltedError(self._subscriber, str(ref), verdict.reason)
            undelivered.resolved(ref)

    def _save(self) -> None:
        for root, undelivered in list(self._stores.items()):
            undelivered.save()
            if not len(undelivered.retries):
                # Not kept open: it is rare, and the next life of this exporter, in this process, needs them too.
                undelivered.close()
                del self._stores[root]

    # ── apart ────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self) -> Finished | None:
        try:
            self.drain()
        except DeliveryHaltedError as halted:
            self.halted = halted
            return FINISHED
        except (QuiverError, OSError) as error:
            self._pause(f"what is held cannot be tried again: {error}")
        finally:
            if self._is_closed:
                self._let_go()
        return None

    def _fail(self, died: WorkerDiedError) -> None:
        """Let the next batch fail: nothing that is held would be tried again."""
        self.failed = StoreFailedError(f"exporter {self._subscriber}: {died}; start the query again")

    def drain(self) -> int:
        """
        Try every bundle whose time has come once more, by itself; return how many left.

        Raises:
            DeliveryHaltedError: the policy says to stop at one of them.
            OSError: the disk refused; nothing is lost.
        """
        left = 0
        due = [(root, entry.ref) for root, one in list(self._stores.items()) for entry in one.retries.due()]
        for root, ref in due:
            if not self.busy.acquire(timeout=DRAIN_EVERY_S):
                break  # a batch takes its time; and whoever closes must not wait for it
            try:
                if self._is_closed or self.session is None or self._clock.monotonic() < self._not_before_s:
                    break
                if not self._is_due(root, ref):
                    continue  # somebody else tried it meanwhile
                self._again(self.session, root, ref)
                left += not self.has(root, ref)
                self._save()
            finally:
                self.busy.release()
        return left

    def _is_due(self, root: str, ref: BundleRef) -> bool:
        return self.has(root, ref) and self._stores[root].retries.wait_s(ref) <= 0

    def _again(self, spark: SparkSession, root: str, ref: BundleRef) -> None:
        try:
            bundle = read_stored(REAL_FILES, root, ref)
        except BundleUnavailableError:
            self._of(root).resolved(ref)  # gone, by policy
            return
        except CorruptionError as error:
            self._failed(root, ref, outcome_of_error(error), save=True)
            return
        reason = undecodable(bundle)
        outcome = self._exported(spark, root, ref, bundle) if reason is None else Permanent("UNDECODABLE", reason)
        if outcome is not None:
            self._failed(root, ref, outcome, save=True)

    def _exported(self, spark: SparkSession, root: str, ref: BundleRef, bundle: Bundle) -> Transient | None:
        """Export a bundle; return what its processors have against it. What the exporter has is another matter."""
        if self._export is None:
            return None
        row = row_of(root, ref, bundle)
        (name,) = names_apart(self._subscriber, [(root, ref)])
        try:
            self._export.apart(spark, row, name)
        except Exception as failure:  # noqa: BLE001 - the edge: Spark, processors and sinks raise many kinds
            error = self._of_processors(spark, row)
            if error is not None and not blames_nobody(error):
                # A session that is ended under it fails, too.
                return None if self._is_closed else Transient("PROCESSOR", told(error))
            # The far side is down, or full: that costs the bundle no attempt.
            said = told(error or failure)
            why = f"bundle {ref} passes the processors, but cannot be exported: {said}"
            if self._stats is not None:
                self._stats.failed(failure_type(said), why)
            self._pause(why)
        else:
            self._of(root).resolved(ref)
        return None

    def _of_processors(self, spark: SparkSession, row: pa.Table) -> Exception | None:
        if self._export is None:
            return None
        try:
            self._export.probe(spark, row, views=Descriptors(row).views)
        except Exception as error:  # noqa: BLE001 - the same edge
            return error
        return None

    def _pause(self, why: str) -> None:
        self._not_before_s = self._clock.monotonic() + self._policy.max_interval_s
        _log.warning(
            "quiver.spark.held_wait subscriber=%s wait_s=%g reason=%s",
            self._subscriber,
            self._policy.max_interval_s,
            why,
        )

    def close(self) -> None:
        """
        Stop trying, and let go of retry sets and dead letters. Idempotent. Stop the query first.

        A bundle that is being exported is waited for a moment only. Until that has ended the next life is refused what
        is held: two would export the bundle at the same time, and each remove what the other has written so far.
        """
        self._is_closed = True
        if self._worker.stop(CLOSE_S):
            self._let_go()
        # Otherwise the thread releases them itself, when its turn ends.

    def _let_go(self) -> None:
        with self._guard:
            stores, self._stores = self._stores, {}
        for undelivered in stores.values():
            undelivered.close()


def _content(root: str, ref: BundleRef) -> Bundle | None:
    try:
        return read_stored(REAL_FILES, root, ref)
    except (CorruptionError, BundleUnavailableError, InvalidBundleError):
        return None
