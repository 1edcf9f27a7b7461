"""
Dead letters: the bundles that an exporter could not deliver, each with the reason, in one store for each exporter.

The store is the directory ``dead-letter/<exporter>/`` inside the store that the bundles came from. `quiver.read`,
`quiver inspect` and Spark read it like any other store, also while the exporter runs. A dead letter is the original
bundle with one more slot for the reason (`DEAD_LETTER_SCHEMA`)::

    1  the dead letter is logged and synced    only then
    2  the original is acknowledged            crash in between: the original is tried again and may be added again

A dead letter is identified by the position of the original (`DeadLetter.ref`), so one that was added twice is listed,
replayed and dropped once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from quiver.bundle import OTAP, SLOT_MAX, Adapter, Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.counted import counted
from quiver.delivery.policy import Delivered, Outcome
from quiver.errors import (
    BundleUnavailableError,
    CapacityError,
    CorruptionError,
    DirectoryInUseError,
    InvalidBundleError,
)
from quiver.observe import Observer, Value
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.store.format.names import DEAD_LETTER_DIR, SEGMENTS_DIR, check_subscriber_id
from quiver.store.limits.capacity import AloneCapacity, OwnCap
from quiver.store.limits.disk_budget import DiskShare
from quiver.store.opening import open_store
from quiver.store.reading.listing import find_segments
from quiver.store.reading.log_tail import sealed_and_logged
from quiver.store.reading.read import StoreReader
from quiver.store.store import Store
from quiver.store.subscribers.progress_store import SubscriberFile, find_subscribers, load_progress
from quiver.store.subscribers.state import SegmentRef, SubscriberState

__all__ = [
    "DEAD_LETTER_SCHEMA",
    "SUBSCRIBER_ID",
    "DeadLetter",
    "DeadLetters",
    "OpenDeadLetters",
    "ReplayedDeadLetter",
    "count_dead_letters",
    "dead_letters_root",
    "exporters_with_dead_letters",
    "open_dead_letters",
    "read_dead_letters",
    "replay_dead_letters",
]

SUBSCRIBER_ID = "letters"
"""The only subscriber of such a store. It resolves a dead letter that was replayed or dropped."""

_FIELDS = (
    pa.field("segment", pa.uint64(), nullable=False),
    pa.field("index", pa.uint32(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("attempts", pa.uint32(), nullable=False),
    pa.field("first_failed_at_ns", pa.int64(), nullable=False),
    pa.field("given_up_at_ns", pa.int64(), nullable=False),
    pa.field("ingested_at_ns", pa.int64(), nullable=True),
)
DEAD_LETTER_SCHEMA = pa.schema(
    [*_FIELDS, pa.field("is_refused", pa.bool_(), nullable=False)], metadata={"quiver.dead_letter": "2"}
)
_SCHEMAS = (DEAD_LETTER_SCHEMA, pa.schema(_FIELDS, metadata={"quiver.dead_letter": "1"}))
"""Version 1 has no `is_refused`."""

REASON_CHARS_MAX = 2000

DEAD_LETTER_SETTINGS = Settings(segment_open_s_max=1.0, delete_grace_s=0.0, maintain_interval_s=0.5)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    A bundle that an exporter could not deliver.

    Attributes:
        ref: the position of the original in the store that the exporter reads.
        reason: why it was not delivered.
        attempts: the number of failed attempts.
        first_failed_at_ns: when the first of them failed, by the wall clock.
        given_up_at_ns: when it became a dead letter.
        ingested_at_ns: when the original was ingested; None if unknown.
        bundle: the original; empty if it was no longer readable.
        is_refused: the destination refused the data, so the dead letter is only replayed manually. True for dead
            letters of version 1, which do not record it.
    """

    ref: BundleRef
    reason: str
    attempts: int
    first_failed_at_ns: int
    given_up_at_ns: int
    ingested_at_ns: int | None
    bundle: Bundle
    is_refused: bool = True


@dataclass(frozen=True, slots=True)
class _Found:
    """A dead letter and its position in its store. The position is not final before it is sealed."""

    letter: DeadLetter
    place: BundleRef


def dead_letters_root(root: str, subscriber_id: str) -> str:
    """
    Return the directory of an exporter's dead letters, in the store at *root*.

    Raises:
        UsageError: not a valid subscriber id.
    """
    check_subscriber_id(subscriber_id)
    return f"{root}/{DEAD_LETTER_DIR}/{subscriber_id}"


class DeadLetters:
    """
    The dead letters of one exporter. Thread-safe. The first dead letter opens the store.

    Args:
        root: the directory of the store that the bundles come from.
        subscriber_id: the exporter.
        settings: of the store of dead letters.
        fs: the file system.
        clock: timestamps dead letters.
        adapter: the slot table.
        background: run the store's threads; without them the caller calls `maintain`.
        observer: receives the count of dead letters dropped by the cap or their age.
        share: the share of a disk budget that includes the dead letters.

    Raises:
        UsageError: not a valid subscriber id.
    """

    def __init__(
        self,
        root: str,
        subscriber_id: str,
        *,
        settings: Settings = DEAD_LETTER_SETTINGS,
        fs: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        adapter: Adapter = OTAP,
        background: bool = True,
        observer: Observer | None = None,
        share: DiskShare | None = None,
    ) -> None:
        self.path = dead_letters_root(root, subscriber_id)
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._adapter = adapter
        self._background = background
        self._observer = None if observer is None else _DeadLetterObserver(observer, subscriber_id)
        self._share = share
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._known: set[BundleRef] = set()

    def add(
        self,
        ref: BundleRef,
        bundle: Bundle | None,
        *,
        reason: str,
        attempts: int = 1,
        first_failed_at_ns: int = 0,
        is_refused: bool = True,
    ) -> bool:
        """
        Add a bundle. Durable on return. Return False if it is already a dead letter.

        Args:
            ref: the position of the bundle.
            bundle: its content; None if it cannot be read.
            reason: why it was not delivered.
            attempts: the number of failed attempts.
            first_failed_at_ns: when the first of them failed; 0: now.
            is_refused: the destination refused the data, so it is only replayed manually.

        Raises:
            InvalidBundleError: the bundle uses every slot, or is larger than the cap.
            CapacityError: the dead letters have reached their cap. Nothing was added.
            TransientError: the disk is full, or another process has the dead letters open. Nothing was added.
            QuiverError: the store of dead letters failed.
            OSError: the disk failed.
        """
        with self._lock:
            store = self._opened()
            if ref in self._known:
                return False
            now_ns = self._clock.now_ns()
            row = {
                "segment": ref.segment,
                "index": ref.index,
                "reason": reason[:REASON_CHARS_MAX],
                "attempts": attempts,
                "first_failed_at_ns": first_failed_at_ns or now_ns,
                "given_up_at_ns": now_ns,
                "ingested_at_ns": None if bundle is None else bundle.ingested_at_ns,
                "is_refused": is_refused,
            }
            slots = {} if bundle is None else dict(bundle.batches)
            free = next((slot for slot in range(SLOT_MAX, -1, -1) if slot not in slots), None)
            if free is None:
                raise InvalidBundleError(
                    f"bundle {ref} uses all {SLOT_MAX + 1} slots: none is left for the reason of a dead letter"
                )
            slots[free] = pa.RecordBatch.from_pylist([row], schema=DEAD_LETTER_SCHEMA)
            try:
                store.ingest(Bundle(slots, adapter=self._adapter), durable=True)
            except CapacityError as full:
                what = full.what.replace("retention.size_cap", "dead_letters.size_cap")
                raise CapacityError(f"the dead letters in {self.path}: {what}") from full
            self._known.add(ref)
        return True

    @contextlib.contextmanager
    def open_for_removal(self) -> Iterator[OpenDeadLetters | None]:
        """
        Open the dead letters for dropping, in the process that adds them; yield None if there are none.

        Like `open_dead_letters`, which is for other processes.

        Raises:
            DirectoryInUseError: a command has them open for dropping, or another process for adding.
            QuiverError: the store of dead letters failed.
            OSError: the disk failed.
        """
        if not self._fs.exists(f"{self.path}/{SEGMENTS_DIR}"):
            yield None
            return
        with self._lock:
            # The position of a dead letter is final only when it is sealed.
            self._opened().seal()
        with _box(self._fs, self.path, self._adapter) as box:
            yield box

    def _opened(self) -> Store:
        if self._store is None:
            cap = OwnCap(self._settings.size_cap_bytes, self._share, self.path)
            store = open_store(
                self.path,
                self._settings,
                fs=self._fs,
                clock=self._clock,
                observer=self._observer,
                adapter=self._adapter,
                background=self._background,
                capacity=AloneCapacity(cap),
            )
            try:
                # A store without subscribers may delete its data.
                store.register(SUBSCRIBER_ID, start="earliest")
                store.activate()
                self._known = {found.letter.ref for found in _all_dead_letters(self._fs, self.path, self._adapter)}
            except BaseException:
                store.close()
                raise
            if self._share is not None:
                self._share.attach(store)
            self._store = store
        return self._store

    def close(self) -> None:
        """
        Seal the open segment and close the store. Idempotent; the next dead letter opens it again.

        Raises:
            StoreFailedError: the disk failed; the dead letters that were added are safe.
        """
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            try:
                with contextlib.suppress(OSError):  # if sealing fails, the dead letters are still in the log
                    store.seal()
            finally:
                store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _DeadLetterObserver:
    """Passes on all events of a store of dead letters, and of its counts only the dropped dead letters."""

    def __init__(self, observer: Observer, exporter: str) -> None:
        self._observer = observer
        self._exporter = exporter

    def count(self, name: str, amount: int = 1, **attributes: Value) -> None:
        if name == "quiver.subscriber.dropped_bundles_total":
            reason = attributes.get("reason")
            self._observer.count(
                "quiver.exporter.dead_letters_dropped_total", amount, exporter=self._exporter, reason=reason
            )

    def record(self, name: str, value: float, **attributes: Value) -> None:
        """Discard latencies: they would be mixed with those of the buffer."""

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        self._observer.event(name, level=level, **attributes)


# ── for commands, while the exporter runs ──────────────────────────────────────────────────────────


def exporters_with_dead_letters(fs: FileSystem, root: str) -> list[str]:
    """Return the sorted exporters of the store at *root* that have a store of dead letters, which may be empty."""
    directory = f"{root}/{DEAD_LETTER_DIR}"
    names = fs.list_dir(directory) if fs.exists(directory) else []
    return sorted(name for name in names if fs.exists(f"{directory}/{name}/{SEGMENTS_DIR}"))


def read_dead_letters(
    fs: FileSystem,
    root: str,
    subscriber_id: str,
    *,
    adapter: Adapter = OTAP,
    problems: list[CorruptionError] | None = None,
) -> list[DeadLetter]:
    """
    Return the dead letters of an exporter that were neither replayed nor dropped, oldest first, without duplicates.

    Takes no lock: safe while the exporter runs.

    Args:
        fs: the file system.
        root: the store that the bundles came from.
        subscriber_id: the exporter.
        adapter: the slot table.
        problems: damage is appended here; dead letters in damaged segments are not returned.

    Raises:
        UsageError: not a valid subscriber id.
        OSError: they cannot be read.
    """
    path = dead_letters_root(root, subscriber_id)
    return _each_once(_all_dead_letters(fs, path, adapter, [] if problems is None else problems))


def count_dead_letters(fs: FileSystem, root: str, subscriber_id: str) -> int:
    """
    Return how many dead letters were neither replayed nor dropped, without reading sealed segments.

    Takes no lock. Damaged dead letters count, too.

    Raises:
        UsageError: not a valid subscriber id.
        OSError: they cannot be read.
    """
    path = dead_letters_root(root, subscriber_id)
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        return 0
    infos, logged = sealed_and_logged(fs, path)
    state = _state_of_dead_letters(fs, path, [])
    return logged + sum(state.unresolved(SegmentRef.of(info)).bit_count() for info in infos)


def _state_of_dead_letters(fs: FileSystem, path: str, problems: list[CorruptionError]) -> SubscriberState:
    try:
        progress = load_progress(fs, path, SUBSCRIBER_ID) if SUBSCRIBER_ID in find_subscribers(fs, path) else None
    except CorruptionError as damage:
        # It is unknown which dead letters were replayed or dropped, so all of them are shown.
        problems.append(damage)
        progress = None
    return SubscriberState() if progress is None else SubscriberState.from_progress(progress)


def _each_once(found: Iterable[_Found]) -> list[DeadLetter]:
    known: dict[BundleRef, DeadLetter] = {}
    for one in found:
        known.setdefault(one.letter.ref, one.letter)
    return list(known.values())


def _all_dead_letters(
    fs: FileSystem, path: str, adapter: Adapter, problems: list[CorruptionError] | None = None
) -> Iterator[_Found]:
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        return
    reader = StoreReader(path, fs=fs, adapter=adapter)
    if problems is not None:
        reader.problems = problems
    state = _state_of_dead_letters(fs, path, reader.problems)
    for place, bundle in reader.bundles():
        if state.is_resolved(place):
            continue
        letter = _letter_of(bundle, adapter)
        if letter is not None:
            yield _Found(letter, place)


def _letter_of(bundle: Bundle, adapter: Adapter) -> DeadLetter | None:
    slots = dict(bundle.batches)
    for slot in reversed(bundle.slots):
        if any(slots[slot].schema.equals(schema, check_metadata=True) for schema in _SCHEMAS):
            (row,) = slots.pop(slot).to_pylist()
            ref = BundleRef(row.pop("segment"), row.pop("index"))
            original = Bundle.of_read(slots, row["ingested_at_ns"], adapter)
            return DeadLetter(ref=ref, bundle=original, **row)
    return None


class OpenDeadLetters:
    """
    The dead letters of one exporter, open for dropping. Created by `open_dead_letters`.

    No other process can drop any until it is closed.
    """

    def __init__(self, file: SubscriberFile, found: Sequence[_Found], counts: Mapping[int, int], path: str) -> None:
        self._file = file
        self._found = found
        self._counts = counts
        self._path = path

    def letters(self) -> list[DeadLetter]:
        """Return the dead letters that existed at opening, oldest first, without duplicates."""
        return _each_once(self._found)

    def sealed(self) -> list[DeadLetter]:
        """Return those that can be dropped. The others are not sealed yet."""
        return _each_once(one for one in self._found if one.place.index < self._counts.get(one.place.segment, 0))

    def drop(self, refs: Collection[BundleRef] | None = None) -> int:
        """
        Drop the dead letters *refs*, or all that existed at opening, durably. Return how many were dropped.

        Raises:
            BundleUnavailableError: one of them is not sealed yet: try again in a second. The others are dropped.
            OSError: the disk failed.
        """
        chosen = [one for one in self._found if refs is None or one.letter.ref in refs]
        sealed = [one for one in chosen if one.place.index < self._counts.get(one.place.segment, 0)]
        dropped = set()
        for one in sealed:
            if self._file.state.resolve(one.place, self._counts[one.place.segment]):
                dropped.add(one.letter.ref)
        self._file.save()
        if len(sealed) < len(chosen):
            raise BundleUnavailableError(
                f"not sealed yet: {counted(len(chosen) - len(sealed), 'dead letter')} in {self._path}; try again in a "
                "second"
            )
        return len(dropped)


@contextlib.contextmanager
def open_dead_letters(
    fs: FileSystem, root: str, subscriber_id: str, *, adapter: Adapter = OTAP
) -> Iterator[OpenDeadLetters | None]:
    """
    Open an exporter's dead letters for dropping; yield None if it has none. Safe while the exporter runs.

    Disk space is freed on exit, or later by the exporter if that has the store open.

    Raises:
        DirectoryInUseError: another command has them open.
        OSError: they cannot be read.
    """
    path = dead_letters_root(root, subscriber_id)
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        yield None
        return
    with contextlib.ExitStack() as opened:
        try:
            store = opened.enter_context(
                open_store(path, DEAD_LETTER_SETTINGS, fs=fs, adapter=adapter, background=False)
            )
        except DirectoryInUseError:
            pass  # the exporter has it open, and seals and deletes by itself
        else:
            store.register(SUBSCRIBER_ID, start="earliest")
            store.activate()
            # The position of a dead letter is final only when it is sealed.
            store.seal()
            opened.callback(store.maintain)
        yield opened.enter_context(_box(fs, path, adapter))


@contextlib.contextmanager
def _box(fs: FileSystem, path: str, adapter: Adapter) -> Iterator[OpenDeadLetters]:
    with SubscriberFile(fs, path, SUBSCRIBER_ID) as file:
        found = list(_all_dead_letters(fs, path, adapter))
        counts = {info.seq: info.bundle_count for info in find_segments(fs, path).infos}
        file.know([SegmentRef(seq, count) for seq, count in sorted(counts.items())])
        yield OpenDeadLetters(file, found, counts, path)


@dataclass(frozen=True, slots=True)
class ReplayedDeadLetter:
    """The outcome of replaying one dead letter, which is dropped if it was delivered."""

    letter: DeadLetter
    outcome: Outcome


def replay_dead_letters(
    box: OpenDeadLetters, letters: Iterable[DeadLetter], deliver: Callable[[DeadLetter], Outcome]
) -> Iterator[ReplayedDeadLetter]:
    """
    Deliver *letters* again, one by one. A delivered one is dropped, durably, before the next is sent.

    After a crash in between, one dead letter was delivered but not dropped, and is delivered again.

    Raises:
        BundleUnavailableError: one was delivered but is not sealed yet: drop it in a second.
        OSError: the disk failed.
    """
    for letter in letters:
        outcome = deliver(letter)
        if isinstance(outcome, Delivered):
            box.drop({letter.ref})
        yield ReplayedDeadLetter(letter, outcome)
