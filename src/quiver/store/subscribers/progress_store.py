"""
Progress files on disk: read, replace, own.

A progress file is replaced as a unit, by rename, so a reader in any process sees the old state or the new one. Only
the holder of the lock ``quiver.sub.<id>.lock`` may replace it: a `SubscriberFile`, in the process of the store or in
another one such as a Spark driver. It needs only the directory, not an open store.

If backups are enabled, ``quiver.sub.<id>.bak`` is the previous version of the file. Everything that it has resolved
was resolved, so continuing from it repeats bundles and skips none. Three steps guarantee that: a rewind replaces the
backup before the file, a new subscriber removes the backup of an older one with the same id, and removing a subscriber
removes its backup.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from quiver.bundle import BundleRef
from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    InvariantError,
    UnknownSubscriberError,
    UnsupportedFormatError,
)
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.primitives.disk.lock import hold
from quiver.primitives.small_file import checked_value, read_bounded
from quiver.settings import DamagePolicy, Profile
from quiver.store.format.drop_ledger import DroppedSegment, DropReason
from quiver.store.format.names import (
    QUARANTINE_DIR,
    check_subscriber_id,
    parse_progress_name,
    progress_backup_name,
    progress_name,
    report_name,
    retry_set_name,
    skip_ledger_name,
    subscriber_lock_name,
)
from quiver.store.format.progress import Progress, decode_progress, encode_progress, progress_checksum
from quiver.store.subscribers.start import Start, start_segment
from quiver.store.subscribers.state import SEGMENT_SEQ_MAX, SegmentRef, Segments, SubscriberState

__all__ = [
    "PROGRESS_BYTES_MAX",
    "Recreated",
    "SubscriberFile",
    "backup_path",
    "create_if_missing",
    "delete",
    "find_subscribers",
    "load_progress",
    "lock_subscriber",
    "profile_in_use",
    "progress_path",
    "recreate_damaged",
    "save_progress",
    "save_rewound",
]

PROGRESS_BYTES_MAX = 256 * 1024 * 1024
"""More than 30,000 of the largest entries; a larger file counts as damaged and is not read."""


def progress_path(root: str, subscriber_id: str) -> str:
    """
    Return the path of a subscriber's progress file.

    Raises:
        UsageError: not a valid subscriber id.
    """
    return f"{root}/{progress_name(subscriber_id)}"


def backup_path(root: str, subscriber_id: str) -> str:
    """
    Return the path of the previous generation of a subscriber's progress file.

    Raises:
        UsageError: not a valid subscriber id.
    """
    return f"{root}/{progress_backup_name(subscriber_id)}"


def find_subscribers(fs: FileSystem, root: str) -> list[str]:
    """Return the ids of all subscribers that have a progress file in *root*, sorted."""
    return sorted(found for name in fs.list_dir(root) if (found := parse_progress_name(name)) is not None)


def _read(fs: FileSystem, path: str) -> bytes:
    return read_bounded(fs, path, PROGRESS_BYTES_MAX)


def _decode(path: str, data: bytes) -> Progress:
    try:
        progress = checked_value(decode_progress(memoryview(data)), path, len(data))
    except CorruptionError as error:
        # A valid checksum means that the version is not damaged: the contents must not be thrown away.
        if "unsupported version" in error.reason and progress_checksum(memoryview(data)) is not None:
            raise UnsupportedFormatError(path, error.offset, error.reason) from None
        raise
    if max(progress.oldest_incomplete, max(progress.entries, default=0)) > SEGMENT_SEQ_MAX:
        raise CorruptionError(path, 14, f"names a segment above {SEGMENT_SEQ_MAX}")
    return progress


def load_progress(fs: FileSystem, root: str, subscriber_id: str) -> Progress | None:
    """
    Return the progress in the file of *subscriber_id*, or None if the file does not exist. Takes no lock.

    Raises:
        CorruptionError: the file is damaged; the progress is unknown.
        UnsupportedFormatError: a newer version wrote it.
        UsageError: not a valid subscriber id.
    """
    path = progress_path(root, subscriber_id)
    try:
        data = _read(fs, path)
    except FileNotFoundError:
        return None
    return _decode(path, data)


def save_progress(
    fs: FileSystem,
    root: str,
    subscriber_id: str,
    progress: Progress,
    *,
    profile: Profile,
    previous: Progress | None = None,
) -> None:
    """
    Replace the progress file of *subscriber_id*. Atomic, and durable on return. The caller must own the subscriber.

    *previous*, the current content of the file, becomes the backup first; None leaves the backup unchanged.

    Raises:
        OSError: the disk refused; the file has the old content or the new one.
    """
    if previous is not None:
        replace_file(fs, backup_path(root, subscriber_id), encode_progress(previous, profile=profile))
    replace_file(fs, progress_path(root, subscriber_id), encode_progress(progress, profile=profile))


def save_rewound(
    fs: FileSystem, root: str, subscriber_id: str, progress: Progress, *, profile: Profile, keep_backup: bool = False
) -> None:
    """
    Replace the progress file by one with fewer resolved bundles. Durable on return.

    A backup, even one from a time when backups were enabled, would undo the rewind if it were restored: it is replaced
    first. The caller must own the subscriber.

    Raises:
        OSError: the disk refused; the file has the old content or the new one.
    """
    keep_backup = keep_backup or fs.exists(backup_path(root, subscriber_id))
    save_progress(fs, root, subscriber_id, progress, profile=profile, previous=progress if keep_backup else None)


def profile_in_use(fs: FileSystem, root: str, *, default: Profile = "spec") -> Profile:
    """Return the format profile of the progress files in *root*; *default* if there are none."""
    for subscriber_id in find_subscribers(fs, root):
        try:
            checksum = progress_checksum(memoryview(_read(fs, progress_path(root, subscriber_id))))
        except (FileNotFoundError, CorruptionError):
            continue
        if checksum is not None:
            return "otap" if checksum == "crc32" else "spec"
    return default


def create_if_missing(
    fs: FileSystem, root: str, subscriber_id: str, *, start: Start, segments: Segments, profile: Profile
) -> bool:
    """
    Create the progress file of a new subscriber; return whether this call created it. Durable on return either way.

    *segments* are the sealed segments that exist; see `start_segment` for *start*.

    Raises:
        UsageError: *subscriber_id* or *start* is invalid.
        DirectoryInUseError: another process is creating it.
    """
    path = progress_path(root, subscriber_id)
    first = start_segment(start, segments)
    if fs.exists(path):
        return False
    try:
        lock = lock_subscriber(fs, root, subscriber_id)
    except DirectoryInUseError:
        # The holder of the lock created the file before anything else.
        if fs.exists(path):
            return False
        raise
    try:
        if fs.exists(path):
            return False
        # A crash may have interrupted the removal of an earlier subscriber with this id, and left its backup.
        remove_durably(fs, [backup_path(root, subscriber_id)])
        progress = SubscriberState(first).to_progress(segments, profile=profile, over_gaps=False)
        save_progress(fs, root, subscriber_id, progress, profile=profile)
    finally:
        lock.release()
    return True


@dataclass(frozen=True, slots=True)
class Recreated:
    """
    How a damaged progress file was replaced.

    Attributes:
        progress: the content of the new file.
        start: its origin: `earliest`, `latest` or `backup`.
        copy: the path of the copy of the damaged bytes; None if they were too large to copy.
    """

    progress: Progress
    start: str
    copy: str | None


def recreate_damaged(
    fs: FileSystem,
    root: str,
    subscriber_id: str,
    *,
    profile: Profile,
    policy: DamagePolicy = "restart_earliest",
    next_seq: int = 0,
) -> Recreated:
    """
    Replace a damaged progress file according to *policy*. The caller must own the subscriber.

    ==================  =======================================================================================
    `restart_earliest`  nothing is resolved: everything that still exists is delivered again, nothing is skipped
    `restart_latest`    everything below *next_seq* is resolved: the subscriber loses what was pending there
    `backup`            the content of the backup; like `restart_earliest` if that is missing or damaged, too
    ==================  =======================================================================================

    The damaged bytes are copied to quarantine, durably, before the file is replaced. Repeating the call after a crash
    makes no second copy.

    Callers handle the policy `fail` themselves.

    Raises:
        UnsupportedFormatError: a newer version wrote the file, and it is intact: it is left unchanged.
        OSError: the disk refused; call again.
    """
    path = progress_path(root, subscriber_id)
    copy: str | None = None
    try:
        data = _read(fs, path)
    except CorruptionError:
        data = None
    if data is not None:
        try:
            _decode(path, data)
        except UnsupportedFormatError:
            raise
        except CorruptionError:
            pass
        copy = keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", progress_name(subscriber_id), data)
    progress, start = Progress(0, {}), "earliest"
    if policy == "restart_latest":
        progress, start = Progress(next_seq, {}), "latest"
    elif policy == "backup":
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            kept = backup_path(root, subscriber_id)
            progress, start = _decode(kept, _read(fs, kept)), "backup"
    save_progress(fs, root, subscriber_id, progress, profile=profile)
    return Recreated(progress, start, copy)


def delete(fs: FileSystem, root: str, subscriber_id: str) -> None:
    """Remove the files of *subscriber_id*, durably. The caller must hold its lock and release it afterwards."""
    # The lock file is last: until then no other process can create the progress file again.
    lock = f"{root}/{subscriber_lock_name(subscriber_id)}"
    others = [f"{root}/{name(subscriber_id)}" for name in (retry_set_name, report_name, skip_ledger_name)]
    remove_durably(fs, [backup_path(root, subscriber_id), progress_path(root, subscriber_id), *others, lock])


def lock_subscriber(fs: FileSystem, root: str, subscriber_id: str) -> Lock:
    """
    Take the lock that makes its holder the owner of *subscriber_id*.

    Raises:
        DirectoryInUseError: another process, or another object of this one, owns the subscriber.
        UsageError: not a valid subscriber id.
    """
    return hold(fs, f"{root}/{subscriber_lock_name(subscriber_id)}", owner=f"subscriber {subscriber_id}")


class SubscriberFile:
    """
    Exclusive ownership of one subscriber's progress. `acquire` takes the lock.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
        profile: the file format; None keeps that of the file.
        keep_backup: keep the previous version of the file at each replacement.

    Raises:
        UsageError: not a valid subscriber id.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        subscriber_id: str,
        *,
        profile: Profile | None = None,
        keep_backup: bool = False,
    ) -> None:
        check_subscriber_id(subscriber_id)
        self.subscriber_id = subscriber_id
        self.path = progress_path(root, subscriber_id)
        self.state = SubscriberState()
        """The resolved bundles. Valid after `acquire`; changes are durable after `save`."""
        self.written: Progress | None = None
        """The content of the file on disk: the last progress loaded or saved."""
        self._fs = fs
        self._root = root
        self._profile = profile
        self._keep_backup = keep_backup
        self._segments: Segments | None = None
        self._lock: Lock | None = None

    @property
    def is_owned(self) -> bool:
        """True while this object holds the lock."""
        return self._lock is not None

    def acquire(self) -> None:
        """
        Take the lock and load the progress. Does nothing if it is already held.

        Raises:
            DirectoryInUseError: another process, or another object of this one, owns the subscriber.
            UnknownSubscriberError: its progress file does not exist.
            CorruptionError: the progress file is damaged. The lock is not kept.
            UnsupportedFormatError: a newer version wrote it. The lock is not kept.
        """
        if self._lock is not None:
            return
        lock = lock_subscriber(self._fs, self._root, self.subscriber_id)
        try:
            data = _read(self._fs, self.path)
            progress = _decode(self.path, data)
            if self._profile is None:
                self._profile = "otap" if progress_checksum(memoryview(data)) == "crc32" else "spec"
        except FileNotFoundError as error:
            lock.release()
            raise UnknownSubscriberError(f"there is no subscriber {self.subscriber_id!r} in {self._root}") from error
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self.written = progress
        self.state = SubscriberState.from_progress(progress)

    def recreate(self, policy: DamagePolicy = "restart_earliest", *, next_seq: int = 0) -> Recreated:
        """
        After `acquire` reported damage: apply *policy*, and own the file; see `recreate_damaged`.

        Raises:
            DirectoryInUseError: another process owns the subscriber.
            UnsupportedFormatError: a newer version wrote the file, and it is intact; nothing is owned.
            OSError: the disk refused; nothing is owned.
        """
        lock = lock_subscriber(self._fs, self._root, self.subscriber_id)
        try:
            made = recreate_damaged(
                self._fs,
                self._root,
                self.subscriber_id,
                profile=self._profile or "spec",
                policy=policy,
                next_seq=next_seq,
            )
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self.written = made.progress
        self.state = SubscriberState.from_progress(made.progress)
        return made

    def know(self, segments: Iterable[SegmentRef]) -> None:
        """Set the sealed segments that exist. Entries that do not match a segment's bundle count are cleared."""
        known = Segments(segments)
        for segment in known:
            self.state.reconcile(segment)
        self._segments = known

    def _known(self) -> Segments:
        # Without them a partly resolved segment and a deleted one could not be distinguished.
        if self._segments is None:
            raise InvariantError("the segments must be known before progress is read or written")
        return self._segments

    def position(self, *, retries: Collection[BundleRef] = ()) -> BundleRef:
        """
        Return the next bundle that an in-order reader must read: everything before it is resolved or in *retries*.

        Raises:
            InvariantError: `know` was not called.
        """
        return self.state.position(self._known(), retries=retries)

    def ack_through(self, segment: int, index: int, *, retries: Collection[BundleRef] = ()) -> bool:
        """
        Resolve everything strictly before bundle *index* of *segment* except *retries*; return whether that changed
        anything.

        An earlier position is not an error: resolved bundles stay resolved. Durable after `save`. The position is not
        checked: one beyond the newest segment resolves segments that do not exist yet.

        Raises:
            InvariantError: `know` was not called.
        """
        position = BundleRef(segment, index)
        segments = self._known()
        if self.state.acked_through(position, segments, retries=retries):
            return False
        self.state.resolve_through(position, segments, retries=retries)
        return True

    def fold_drops(self, entries: Iterable[DroppedSegment]) -> dict[DropReason, int]:
        """Resolve the segments that policy dropped; return the bundles lost, by reason. Durable after `save`."""
        lost: Counter[DropReason] = Counter()
        for entry in entries:
            lost[entry.reason] += self.state.resolve_all(SegmentRef(entry.seq, entry.bundle_count))
        return {reason: bundles for reason, bundles in lost.items() if bundles}

    def save(self) -> bool:
        """
        Write the state to disk if it changed, durable on return; return whether it was written.

        Raises:
            InvariantError: it is not owned, or `know` was not called.
            OSError: the disk refused; the state is kept and can be saved again.
        """
        invariant(self._lock is not None, f"only the owner of subscriber {self.subscriber_id!r} may write its progress")
        # Only over known numbers: a segment that this process missed must not count as resolved.
        self.state.advance(self._known(), over_gaps=False)
        progress = self.state.to_progress(self._known(), profile=self._profile or "spec", over_gaps=False)
        return self.put(progress)

    def put(self, progress: Progress, *, is_rewound: bool = False) -> bool:
        """
        Write *progress*, durable on return; return False if the file has it already.

        Args:
            progress: the new content, which the owner made from its own state.
            is_rewound: something that is resolved in the file is pending in *progress*.

        Raises:
            InvariantError: the position would move back without a rewind.
            OSError: the disk refused; the file has the old content or the new one.
        """
        if progress == self.written:
            return False
        profile: Profile = self._profile or "spec"
        # `otap` writes 0 when nothing is incomplete.
        invariant(
            is_rewound
            or profile == "otap"
            or self.written is None
            or progress.oldest_incomplete >= self.written.oldest_incomplete,
            f"the progress of subscriber {self.subscriber_id!r} must not move back without a rewind",
        )
        if is_rewound:
            save_rewound(
                self._fs, self._root, self.subscriber_id, progress, profile=profile, keep_backup=self._keep_backup
            )
        else:
            previous = self.written if self._keep_backup else None
            save_progress(self._fs, self._root, self.subscriber_id, progress, profile=profile, previous=previous)
        self.written = progress
        return True

    def release(self) -> None:
        """Release the lock without saving. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
