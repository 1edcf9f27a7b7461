"""
Progress files on disk: read, replace, own.

A progress file is replaced whole, by rename, so a reader in any process sees the old state or the new one.
Who may replace it is settled by the lock ``quiver.sub.<id>.lock``: a `SubscriberFile` holds it, in the process of
the store or in another one (a Spark driver). It needs no store, only the directory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from quiver.bundle import BundleRef
from quiver.errors import Damaged, DirectoryInUse, SubscriberUnknown, WrongUse
from quiver.primitives.atomic import remove_durably, replace_file
from quiver.primitives.checksum import crc32
from quiver.primitives.files import FileSystem, Lock
from quiver.primitives.lock import hold
from quiver.primitives.scan import Frame, NeedMore
from quiver.settings import Profile
from quiver.store.format.names import (
    QUARANTINE_DIR,
    check_subscriber_id,
    parse_progress_name,
    progress_name,
    subscriber_lock_name,
)
from quiver.store.format.progress import Progress, decode_progress, encode_progress, progress_checksum
from quiver.store.subscribers.state import SEGMENT_SEQ_MAX, SegmentRef, Segments, Start, SubscriberState, start_segment

__all__ = [
    "PROGRESS_BYTES_MAX",
    "SubscriberFile",
    "create_if_missing",
    "delete",
    "find_subscribers",
    "load_progress",
    "lock_subscriber",
    "profile_in_use",
    "progress_path",
    "recreate_damaged",
    "save_progress",
]

PROGRESS_BYTES_MAX = 256 * 1024 * 1024
"""More than 30,000 of the largest entries; a larger file is taken for damaged rather than read."""


def progress_path(root: str, subscriber_id: str) -> str:
    """
    Return the path of a subscriber's progress file.

    Raises:
        WrongUse: not a valid subscriber id.
    """
    return f"{root}/{progress_name(subscriber_id)}"


def find_subscribers(fs: FileSystem, root: str) -> list[str]:
    """
    Return the ids of all subscribers that have a progress file in *root*, sorted.
    """
    found = (parse_progress_name(name) for name in fs.list_dir(root))
    return sorted(subscriber_id for subscriber_id in found if subscriber_id is not None)


def _read(fs: FileSystem, path: str) -> bytes:
    try:
        return fs.read_all(path, size_max=PROGRESS_BYTES_MAX)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise Damaged(path, PROGRESS_BYTES_MAX, "a progress file is never this large") from error
        raise


def _decode(path: str, data: bytes) -> Progress:
    answer = decode_progress(memoryview(data))
    if isinstance(answer, NeedMore):
        raise Damaged(path, len(data), f"the file is cut short by at least {answer.missing} bytes")
    if not isinstance(answer, Frame):
        raise Damaged(path, answer.offset, answer.reason)
    progress = answer.value
    if max(progress.oldest_incomplete, max(progress.entries, default=0)) > SEGMENT_SEQ_MAX:
        raise Damaged(path, 14, f"names a segment above {SEGMENT_SEQ_MAX}")
    return progress


def load_progress(fs: FileSystem, root: str, subscriber_id: str) -> Progress | None:
    """
    Return what the progress file of *subscriber_id* says; None when there is no such file. Takes no lock.

    Raises:
        Damaged: the file is not what was written; what it said is unknown.
        WrongUse: not a valid subscriber id.
    """
    path = progress_path(root, subscriber_id)
    try:
        data = _read(fs, path)
    except FileNotFoundError:
        return None
    return _decode(path, data)


def save_progress(fs: FileSystem, root: str, subscriber_id: str, progress: Progress, *, profile: Profile) -> None:
    """
    Replace the progress file of *subscriber_id*. Atomic, and durable on return. The caller owns the subscriber.

    Raises:
        OSError: the disk refused; the file says what it said before, or what it should now.
    """
    replace_file(fs, progress_path(root, subscriber_id), encode_progress(progress, profile=profile))


def profile_in_use(fs: FileSystem, root: str, *, default: Profile = "spec") -> Profile:
    """
    Return the format profile the progress files of *root* are written in; *default* when there is none to tell.
    """
    for subscriber_id in find_subscribers(fs, root):
        try:
            checksum = progress_checksum(memoryview(_read(fs, progress_path(root, subscriber_id))))
        except (FileNotFoundError, Damaged):
            continue
        if checksum is not None:
            return "otap" if checksum == "crc32" else "spec"
    return default


def create_if_missing(
    fs: FileSystem, root: str, subscriber_id: str, *, start: Start, segments: Segments, profile: Profile
) -> bool:
    """
    Give a new subscriber its progress file; True when this call made it. Durable on return either way.

    *segments* are the sealed segments that exist now; see `start_segment` for *start*.

    Raises:
        WrongUse: not a valid id, or *start* names nothing.
        DirectoryInUse: another process is creating it at this moment.
    """
    path = progress_path(root, subscriber_id)
    first = start_segment(start, segments)
    if fs.exists(path):
        return False
    try:
        lock = lock_subscriber(fs, root, subscriber_id)
    except DirectoryInUse:
        # Whoever holds it made the file before it did anything else.
        if fs.exists(path):
            return False
        raise
    try:
        if fs.exists(path):
            return False
        progress = SubscriberState(first).to_progress(segments, profile=profile, over_gaps=False)
        save_progress(fs, root, subscriber_id, progress, profile=profile)
    finally:
        lock.release()
    return True


def recreate_damaged(fs: FileSystem, root: str, subscriber_id: str, *, profile: Profile) -> str | None:
    """
    Replace a damaged progress file by one that says nothing is resolved; return the path of the kept copy.

    Everything that still exists is delivered again, because what was resolved is unknown; nothing is skipped.
    The copy is durable before the file is replaced. Doing it again after a crash makes no second copy. The
    caller owns the subscriber. None when the file is larger than anything that could be copied.
    """
    path = progress_path(root, subscriber_id)
    copy: str | None = None
    try:
        data = _read(fs, path)
    except Damaged:
        data = None
    if data is not None:
        copy = f"{root}/{QUARANTINE_DIR}/{progress_name(subscriber_id)}.{crc32(data):08x}.damaged"
        if not fs.exists(copy):
            fs.make_dirs(f"{root}/{QUARANTINE_DIR}")
            replace_file(fs, copy, data)
    save_progress(fs, root, subscriber_id, Progress(0, {}), profile=profile)
    return copy


def delete(fs: FileSystem, root: str, subscriber_id: str) -> None:
    """
    Remove the files of *subscriber_id*, durably. The caller holds its lock and releases it afterwards.
    """
    # The lock's own file last: until then nobody else can make the progress file anew.
    remove_durably(fs, [progress_path(root, subscriber_id), f"{root}/{subscriber_lock_name(subscriber_id)}"])


def lock_subscriber(fs: FileSystem, root: str, subscriber_id: str) -> Lock:
    """
    Take the lock that makes its holder the owner of *subscriber_id*.

    Raises:
        DirectoryInUse: another process, or another object of this one, owns the subscriber.
        WrongUse: not a valid subscriber id.
    """
    return hold(fs, f"{root}/{subscriber_lock_name(subscriber_id)}", owner=f"subscriber {subscriber_id}")


class SubscriberFile:
    """
    Exclusive ownership of one subscriber's progress. The lock is taken by `acquire`, not by making the object.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber_id: 1 to 64 of ``A-Za-z0-9_-``.
        profile: None keeps the one the file is written in.

    Raises:
        WrongUse: not a valid subscriber id.
    """

    def __init__(self, fs: FileSystem, root: str, subscriber_id: str, *, profile: Profile | None = None) -> None:
        check_subscriber_id(subscriber_id)
        self.subscriber_id = subscriber_id
        self.path = progress_path(root, subscriber_id)
        self.state = SubscriberState()
        """What is resolved. Valid once acquired; changes are durable after `save`."""
        self.written: Progress | None = None
        """What the file on disk says: the last progress loaded or saved."""
        self._fs = fs
        self._root = root
        self._profile = profile
        self._segments: Segments | None = None
        self._lock: Lock | None = None

    @property
    def is_owned(self) -> bool:
        """
        True while this object holds the lock.
        """
        return self._lock is not None

    def acquire(self) -> None:
        """
        Take the lock and load the progress. Does nothing when it is held already.

        Raises:
            DirectoryInUse: another process, or another object of this one, owns the subscriber.
            SubscriberUnknown: there is no progress file.
            Damaged: the progress file is not what was written. The lock is not kept.
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
            raise SubscriberUnknown(f"there is no subscriber {self.subscriber_id!r} in {self._root}") from error
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self.written = progress
        self.state = SubscriberState.from_progress(progress)

    def recreate(self) -> str | None:
        """
        After `acquire` reported damage: keep a copy, begin again with nothing resolved, and own it.

        Returns:
            The path of the copy; see `recreate_damaged`.

        Raises:
            DirectoryInUse: another process owns the subscriber.
            OSError: the disk refused; nothing is owned.
        """
        lock = lock_subscriber(self._fs, self._root, self.subscriber_id)
        try:
            copy = recreate_damaged(self._fs, self._root, self.subscriber_id, profile=self._profile or "spec")
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self.written = Progress(0, {})
        self.state = SubscriberState()
        return copy

    def know(self, segments: Iterable[SegmentRef]) -> None:
        """
        Say which sealed segments there are now. Entries that do not fit a segment's size are set to nothing.
        """
        known = Segments(segments)
        for segment in known:
            self.state.reconcile(segment)
        self._segments = known

    def _known(self) -> Segments:
        # Without them a partly resolved segment could not be told from one that is gone.
        if self._segments is None:
            raise WrongUse("say which segments there are first: know(segments)")
        return self._segments

    def position(self) -> BundleRef:
        """
        Return the next bundle an in-order reader must read: everything before it is resolved.

        Raises:
            WrongUse: `know` was not called.
        """
        return self.state.position(self._known())

    def ack_through(self, segment: int, index: int) -> bool:
        """
        Resolve everything strictly before bundle *index* of *segment*; True when that changed anything.

        Going back is not an error: what is resolved stays so. Durable after `save`. A position is believed:
        behind the newest segment it says that the ones to come are resolved.

        Raises:
            WrongUse: `know` was not called.
        """
        position = BundleRef(segment, index)
        segments = self._known()
        if self.state.acked_through(position, segments):
            return False
        self.state.resolve_through(position, segments)
        return True

    def save(self) -> bool:
        """
        Write the state to disk if it says more than the file; durable on return. True when it was written.

        Raises:
            WrongUse: it is not owned, or `know` was not called.
            OSError: the disk refused; the state is kept and can be saved again.
        """
        if self._lock is None:
            raise WrongUse(f"subscriber {self.subscriber_id!r} is not owned: acquire() first")
        profile: Profile = self._profile or "spec"
        # Only over numbers that are known: a segment this process overlooked must not count as resolved.
        self.state.advance(self._known(), over_gaps=False)
        progress = self.state.to_progress(self._known(), profile=profile, over_gaps=False)
        if progress == self.written:
            return False
        save_progress(self._fs, self._root, self.subscriber_id, progress, profile=profile)
        self.written = progress
        return True

    def release(self) -> None:
        """
        Let go of the subscriber, without saving. Idempotent.
        """
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
