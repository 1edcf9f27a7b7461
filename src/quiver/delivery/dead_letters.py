"""
Dead letters: the bundles an exporter gave up, each with the reason, in a store of the exporter's own.

It lies in ``dead-letter/<exporter>/`` of the store that the bundles came from, and is a store like that one: readable
with `quiver.read`, `quiver inspect` and Spark while the exporter runs. A letter is the bundle as it was, with one more
slot that says why it is here (`LETTER_SCHEMA`)::

    1  the letter is logged and synced      only then
    2  the original is acknowledged         killed in between: the original is tried once more, and may come here again

A letter is known by where the original lay (`DeadLetter.ref`): one that came twice is listed, replayed and dropped
once.
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
    "LETTERS",
    "LETTER_SCHEMA",
    "DeadLetter",
    "DeadLetters",
    "LetterBox",
    "Replayed",
    "count_letters",
    "exporters_with_letters",
    "letters_root",
    "open_letters",
    "read_letters",
    "replay_letters",
]

LETTERS = "letters"
"""The one subscriber of such a store: what it has resolved was replayed or dropped by a person."""

_FIELDS = (
    pa.field("segment", pa.uint64(), nullable=False),
    pa.field("index", pa.uint32(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("attempts", pa.uint32(), nullable=False),
    pa.field("first_failed_at_ns", pa.int64(), nullable=False),
    pa.field("given_up_at_ns", pa.int64(), nullable=False),
    pa.field("ingested_at_ns", pa.int64(), nullable=True),
)
LETTER_SCHEMA = pa.schema(
    [*_FIELDS, pa.field("is_refused", pa.bool_(), nullable=False)], metadata={"quiver.dead_letter": "2"}
)
_SCHEMAS = (LETTER_SCHEMA, pa.schema(_FIELDS, metadata={"quiver.dead_letter": "1"}))
"""The first version did not say whether the data were refused."""

REASON_CHARS_MAX = 2000

LETTER_SETTINGS = Settings(segment_open_s_max=1.0, delete_grace_s=0.0, maintain_interval_s=0.5)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    One bundle that was given up.

    Attributes:
        ref: where the original lay, in the store that the exporter reads.
        reason: why it was given up.
        attempts: how many failed.
        first_failed_at_ns: when the first of them did, on the wall clock.
        given_up_at_ns: when it came here.
        ingested_at_ns: when the original was ingested; None when that is not known.
        bundle: the original; empty when it could not be read any more.
        is_refused: its data were refused, so that only a person knows whether to replay it. So is a letter of an
            earlier version, which did not say.
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
    """A letter and where it lies in the store of letters. The place of one that is not sealed yet is not final."""

    letter: DeadLetter
    place: BundleRef


def letters_root(root: str, subscriber_id: str) -> str:
    """
    Return the directory of an exporter's dead letters, in the store at *root*.

    Raises:
        UsageError: not a valid subscriber id.
    """
    check_subscriber_id(subscriber_id)
    return f"{root}/{DEAD_LETTER_DIR}/{subscriber_id}"


class DeadLetters:
    """
    Where one exporter puts what it gives up. Thread-safe. The store is opened with the first letter.

    Args:
        root: the directory of the store that the bundles come from.
        subscriber_id: the exporter.
        settings: of the store of letters.
        files: the file system.
        clock: stamps letters.
        adapter: the slot table.
        background: run the store's threads; without them the caller drives `maintain`.
        observer: takes the count of letters that the settings dropped.
        share: of a budget that the letters are under, too.

    Raises:
        UsageError: not a valid subscriber id.
    """

    def __init__(
        self,
        root: str,
        subscriber_id: str,
        *,
        settings: Settings = LETTER_SETTINGS,
        files: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        adapter: Adapter = OTAP,
        background: bool = True,
        observer: Observer | None = None,
        share: DiskShare | None = None,
    ) -> None:
        self.path = letters_root(root, subscriber_id)
        self._settings = settings
        self._files = files
        self._clock = clock
        self._adapter = adapter
        self._background = background
        self._observer = None if observer is None else _LetterObserver(observer, subscriber_id)
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
        Keep a bundle that was given up; durable on return. False when it is here already.

        Args:
            ref: where it lies.
            bundle: its content; None when it cannot be read.
            reason: why it was given up.
            attempts: how many failed.
            first_failed_at_ns: when the first of them did; 0: just now.
            is_refused: its data were refused: nobody but a person replays it.

        Raises:
            InvalidBundleError: it uses every slot there is, or is larger than the cap.
            CapacityError: the letters are at their cap. Nothing was kept.
            TransientError: there is no room, or somebody else has the letters open. Nothing was kept.
            QuiverError: the store of letters failed.
            OSError: the disk refused.
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
                    f"bundle {ref} uses all {SLOT_MAX + 1} slots: there is none left for the letter"
                )
            slots[free] = pa.RecordBatch.from_pylist([row], schema=LETTER_SCHEMA)
            try:
                store.ingest(Bundle(slots, adapter=self._adapter), durable=True)
            except CapacityError as full:
                what = full.what.replace("retention.size_cap", "dead_letters.size_cap")
                raise CapacityError(f"the dead letters in {self.path}: {what}") from full
            self._known.add(ref)
        return True

    @contextlib.contextmanager
    def opened_for_dropping(self) -> Iterator[LetterBox | None]:
        """
        Open the letters for dropping, as `open_letters` does, in the process that adds them; None when there are none.

        Raises:
            DirectoryInUseError: a command has them open for dropping, or another process for adding.
            QuiverError: the store of letters failed.
            OSError: the disk refused.
        """
        if not self._files.exists(f"{self.path}/{SEGMENTS_DIR}"):
            yield None
            return
        with self._lock:
            # What was logged last has no place of its own before it is sealed.
            self._opened().flush()
        with _box(self._files, self.path, self._adapter) as box:
            yield box

    def _opened(self) -> Store:
        if self._store is None:
            cap = OwnCap(self._settings.size_cap_bytes, self._share, self.path)
            store = open_store(
                self.path,
                self._settings,
                files=self._files,
                clock=self._clock,
                observer=self._observer,
                adapter=self._adapter,
                background=self._background,
                capacity=AloneCapacity(cap),
            )
            try:
                # A store without subscribers may delete what nobody waits for.
                store.register(LETTERS, start="earliest")
                store.activate()
                self._known = {found.letter.ref for found in _all_letters(self._files, self.path, self._adapter)}
            except BaseException:
                store.close()
                raise
            if self._share is not None:
                self._share.attach(store)
            self._store = store
        return self._store

    def close(self) -> None:
        """
        Seal what is open, and let go. Idempotent; the next letter opens it again.

        Raises:
            StoreFailedError: the disk failed; what was added is safe.
        """
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            try:
                with contextlib.suppress(OSError):  # what cannot be sealed is in the log
                    store.flush()
            finally:
                store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LetterObserver:
    """Of what a store of letters counts, the letters that its cap or their age dropped; all of its events."""

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
        """Take nothing: its latencies would be taken for those of the buffer."""

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        self._observer.event(name, level=level, **attributes)


# ── for people, beside the exporter ──────────────────────────────────────────────────────────────────


def exporters_with_letters(fs: FileSystem, root: str) -> list[str]:
    """Return the exporters of the store at *root* that have a store of letters, sorted; it may be empty."""
    directory = f"{root}/{DEAD_LETTER_DIR}"
    names = fs.list_dir(directory) if fs.exists(directory) else []
    return sorted(name for name in names if fs.exists(f"{directory}/{name}/{SEGMENTS_DIR}"))


def read_letters(
    fs: FileSystem,
    root: str,
    subscriber_id: str,
    *,
    adapter: Adapter = OTAP,
    problems: list[CorruptionError] | None = None,
) -> list[DeadLetter]:
    """
    Return the letters of an exporter that were neither replayed nor dropped, the oldest first, each once.

    Takes no lock: it works beside the exporter.

    Args:
        fs: the file system.
        root: the store that the bundles came from.
        subscriber_id: the exporter.
        adapter: the slot table.
        problems: where damage is reported; letters in damaged segments are not among those returned.

    Raises:
        UsageError: not a valid subscriber id.
        OSError: they cannot be read.
    """
    path = letters_root(root, subscriber_id)
    return _each_once(_all_letters(fs, path, adapter, [] if problems is None else problems))


def count_letters(fs: FileSystem, root: str, subscriber_id: str) -> int:
    """
    Return how many letters of an exporter were neither replayed nor dropped, without reading those that are sealed.

    Takes no lock. What is damaged counts, too: it was given up.

    Raises:
        UsageError: not a valid subscriber id.
        OSError: they cannot be read.
    """
    path = letters_root(root, subscriber_id)
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        return 0
    infos, logged = sealed_and_logged(fs, path)
    state = _state_of_letters(fs, path, [])
    return logged + sum(state.unresolved(SegmentRef.of(info)).bit_count() for info in infos)


def _state_of_letters(fs: FileSystem, path: str, problems: list[CorruptionError]) -> SubscriberState:
    try:
        progress = load_progress(fs, path, LETTERS) if LETTERS in find_subscribers(fs, path) else None
    except CorruptionError as damage:
        # Which letters were replayed or dropped is not known: all of them are shown.
        problems.append(damage)
        progress = None
    return SubscriberState() if progress is None else SubscriberState.from_progress(progress)


def _each_once(found: Iterable[_Found]) -> list[DeadLetter]:
    known: dict[BundleRef, DeadLetter] = {}
    for one in found:
        known.setdefault(one.letter.ref, one.letter)
    return list(known.values())


def _all_letters(
    fs: FileSystem, path: str, adapter: Adapter, problems: list[CorruptionError] | None = None
) -> Iterator[_Found]:
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        return
    reader = StoreReader(path, fs=fs, adapter=adapter)
    if problems is not None:
        reader.problems = problems
    state = _state_of_letters(fs, path, reader.problems)
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


class LetterBox:
    """The letters of one exporter, open for dropping: nobody else drops any meanwhile. Made by `open_letters`."""

    def __init__(self, file: SubscriberFile, found: Sequence[_Found], counts: Mapping[int, int], path: str) -> None:
        self._file = file
        self._found = found
        self._counts = counts
        self._path = path

    def letters(self) -> list[DeadLetter]:
        """Return the letters that there were when it was opened, the oldest first, each once."""
        return _each_once(self._found)

    def sealed_letters(self) -> list[DeadLetter]:
        """Return those of them that can be dropped: the others are still being written."""
        return _each_once(one for one in self._found if one.place.index < self._counts.get(one.place.segment, 0))

    def drop(self, refs: Collection[BundleRef] | None = None) -> int:
        """
        Drop letters for good, durably: those of *refs*, or all there were. Return how many went.

        Raises:
            BundleUnavailableError: one of them is still being written: try again in a second. The others are gone.
            OSError: the disk refused.
        """
        chosen = [one for one in self._found if refs is None or one.letter.ref in refs]
        sealed = [one for one in chosen if one.place.index < self._counts.get(one.place.segment, 0)]
        gone = set()
        for one in sealed:
            if self._file.state.resolve(one.place, self._counts[one.place.segment]):
                gone.add(one.letter.ref)
        self._file.save()
        if len(sealed) < len(chosen):
            raise BundleUnavailableError(
                f"{len(chosen) - len(sealed)} letters in {self._path} are being written: try again"
            )
        return len(gone)


@contextlib.contextmanager
def open_letters(
    fs: FileSystem, root: str, subscriber_id: str, *, adapter: Adapter = OTAP
) -> Iterator[LetterBox | None]:
    """
    Open an exporter's letters for dropping; None when it has none. Works beside the exporter.

    The disk is freed at the end when nobody else has them open, and otherwise by who has.

    Raises:
        DirectoryInUseError: another command is at it.
        OSError: they cannot be read.
    """
    path = letters_root(root, subscriber_id)
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        yield None
        return
    with contextlib.ExitStack() as opened:
        try:
            store = opened.enter_context(open_store(path, LETTER_SETTINGS, files=fs, adapter=adapter, background=False))
        except DirectoryInUseError:
            pass  # the exporter's, which seals and deletes by itself
        else:
            store.register(LETTERS, start="earliest")
            store.activate()
            # What was logged last has no place of its own before it is sealed.
            store.flush()
            opened.callback(store.maintain)
        yield opened.enter_context(_box(fs, path, adapter))


@contextlib.contextmanager
def _box(fs: FileSystem, path: str, adapter: Adapter) -> Iterator[LetterBox]:
    with SubscriberFile(fs, path, LETTERS) as file:
        found = list(_all_letters(fs, path, adapter))
        counts = {info.seq: info.bundle_count for info in find_segments(fs, path).infos}
        file.know([SegmentRef(seq, count) for seq, count in sorted(counts.items())])
        yield LetterBox(file, found, counts, path)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one letter: the outcome says whether it is delivered, and gone from the letters, or why not."""

    letter: DeadLetter
    outcome: Outcome


def replay_letters(
    box: LetterBox, letters: Iterable[DeadLetter], deliver: Callable[[DeadLetter], Outcome]
) -> Iterator[Replayed]:
    """
    Deliver *letters* again, one after the other; each that is delivered is dropped, durably, before the next.

    Killed in between, one letter is delivered and still here: it is delivered once more.

    Raises:
        BundleUnavailableError: one was delivered and is still being written: drop it in a second.
        OSError: the disk refused.
    """
    for letter in letters:
        outcome = deliver(letter)
        if isinstance(outcome, Delivered):
            box.drop({letter.ref})
        yield Replayed(letter, outcome)
