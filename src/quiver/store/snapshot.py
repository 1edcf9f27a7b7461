"""
A whole store copied beside its live writer, and brought back: what `quiver snapshot` and `quiver restore` do.

What was accepted before `snapshot` was called is in the copy, or had been resolved by every subscriber by the time
the copy was finished. The writer goes on meanwhile, so files are taken in this order::

    1  the log: the active file up to its last whole entry, then the retired ones
    2  the cursor                 it stays below what 1 has, or all below it is sealed
    3  segments                   all that the cursor covers are there, or deleted: then everybody had them
    4  the drop ledgers           what is not in 3 because a policy gave it up is in them, or in 5
    5  progress                   says resolved of all that was deleted before 3 came to it
    6  the floor                  above every number that 3 and 5 speak of

A bundle sealed between 1 and 3 is in both; sequence numbers tell recovery so. Progress may speak of a segment that
was sealed after 3: such a claim is taken back, since its bundles are in 1 and get another number.

The copy is made under another name and gets its own last: what bears the name is whole. Sealed segments and retired
log files never change, so they are linked where the file system can, and a snapshot costs no room at first.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from quiver.errors import Damaged, WrongUse
from quiver.primitives.atomic import remove_durably, replace_file
from quiver.primitives.checksum import crc32
from quiver.primitives.copying import checksum_of, copy_file, link_or_copy
from quiver.primitives.files import FileSystem
from quiver.primitives.scan import Frame
from quiver.settings import Profile
from quiver.store.check import SMALL_FILE_BYTES_MAX, check_store
from quiver.store.cold_files import ColdFiles
from quiver.store.format.cores import EVICTED
from quiver.store.format.cursor import decode_cursor, encode_cursor
from quiver.store.format.floor import decode_floor, encode_floor
from quiver.store.format.names import (
    AUDIT_PREVIOUS,
    AUDIT_TRAIL,
    CURSOR_NAME,
    DROP_LEDGER,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    WAL_ACTIVE,
    WAL_DIR,
    parse_segment_name,
    parse_wal_rotated_name,
    progress_name,
    retry_set_name,
)
from quiver.store.format.progress import Progress, decode_progress, encode_progress, progress_checksum
from quiver.store.format.snapshot_list import (
    SNAPSHOT_LIST,
    SNAPSHOT_LIST_BYTES_MAX,
    Snapshot,
    SnapshotFile,
    decode_snapshot_list,
    encode_snapshot_list,
)
from quiver.store.instances import instance_roots
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.missing import without_missing
from quiver.store.subscribers.progress_store import find_subscribers
from quiver.store.subscribers.state import SubscriberState
from quiver.store.wal.replay import FILE_BYTES_MAX
from quiver.store.wal.scan import WalFileScan, scan_wal_file

__all__ = ["Copied", "check_snapshot", "restore", "snapshot"]

PARTIAL_SUFFIX = ".partial"
"""A directory of this name is a copy that was not finished; the next one takes it over."""

_ATTEMPTS = 3
"""What looks like damage in the active file may be a write seen half done: it is read again this often."""


@dataclass(slots=True)
class Copied:
    """
    What a snapshot, or a restored store, consists of.
    """

    path: str
    files: int = 0
    size_bytes: int = 0
    linked_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """What was damaged already and was copied as it is."""


def snapshot(fs: FileSystem, root: str, target: str, *, now_ns: int) -> Copied:
    """
    Copy the store at *root*, or all its cores, to the new directory *target*. Durable and whole on return.

    Raises:
        WrongUse: *root* is no store, or *target* exists or lies within it.
        OSError: the disk refused; there is no *target*.
    """
    roots = instance_roots(fs, root)
    partial = _begin(fs, root, target)
    done = Copied(target)
    files: list[SnapshotFile] = []
    for one in roots:
        below = posixpath.relpath(one, root)
        copy = _Copy(fs, one, partial if below == "." else f"{partial}/{below}", done)
        copy.run()
        files += [
            SnapshotFile(f"{below}/{file.path}" if below != "." else file.path, file.size_bytes, file.crc32)
            for file in copy.files
        ]
    listed = Snapshot(now_ns, _identity(fs, roots[0]), tuple(files))
    replace_file(fs, f"{partial}/{SNAPSHOT_LIST}", encode_snapshot_list(listed))
    _finish(fs, partial, target)
    done.files = len(files)
    done.size_bytes = sum(file.size_bytes for file in files)
    return done


def check_snapshot(fs: FileSystem, source: str) -> tuple[Snapshot, list[Damaged]]:
    """
    Read every file of the snapshot at *source* to its last byte; return its list, and what is not as it was copied.

    Raises:
        WrongUse: there is no finished snapshot.
        Damaged: its list is not what was written.
        OSError: a file cannot be read.
    """
    path = f"{source}/{SNAPSHOT_LIST}"
    try:
        data = fs.read_all(path, size_max=SNAPSHOT_LIST_BYTES_MAX)
    except FileNotFoundError:
        raise WrongUse(f"{source} is not a finished snapshot: it has no {SNAPSHOT_LIST}") from None
    answer = decode_snapshot_list(memoryview(data))
    if not isinstance(answer, Frame):
        offset, reason = getattr(answer, "offset", len(data)), getattr(answer, "reason", "the list is cut short")
        raise Damaged(path, offset, reason)
    problems: list[Damaged] = []
    for file in answer.value.files:
        try:
            _check_file(fs, f"{source}/{file.path}", file)
        except Damaged as damage:
            problems.append(damage)
    return answer.value, problems


def restore(fs: FileSystem, source: str, target: str, *, identity: str | None, damaged_too: bool = False) -> Copied:
    """
    Make the new directory *target* from the snapshot at *source*. Durable, checked and whole on return.

    Args:
        fs: the file system.
        source: what `snapshot` made; it stays as it is.
        target: must not exist.
        identity: a UUID that the restored store is known by, or of which each core gets one of its own; None: as the
            one that the snapshot was taken of. Two stores with one identity mislead Spark's checkpoints: keep it only
            when the other is gone and nothing read it since.
        damaged_too: restore also when files are damaged or missing, as they are; the store sets them aside when it
            is opened.

    Raises:
        WrongUse: no finished snapshot, or *target* exists.
        Damaged: a file of the snapshot is not what was copied. There is no *target*.
        OSError: the disk refused; there is no *target*.
    """
    listed, problems = check_snapshot(fs, source)
    if problems and not damaged_too:
        raise problems[0]
    partial = _begin(fs, source, target)
    done = Copied(target, len(listed.files), sum(file.size_bytes for file in listed.files))
    done.notes += [str(problem) for problem in problems]
    roots: dict[str, None] = {}
    for file in listed.files:
        if not fs.exists(f"{source}/{file.path}"):
            continue
        into = f"{partial}/{file.path}"
        name = posixpath.basename(into)
        if name == STORE_ID:
            roots.setdefault(posixpath.dirname(into))
        fs.make_dirs(posixpath.dirname(into))
        if _never_changes(name):
            linked = link_or_copy(fs, f"{source}/{file.path}", into, mode=0o440)
            done.linked_bytes += file.size_bytes if linked else 0
        else:
            copy_file(fs, f"{source}/{file.path}", into)
    for root in roots if identity is not None else ():
        # Cores have the same places in them: whoever exports several at once tells their bundles apart by this.
        below = posixpath.relpath(root, partial)
        own = identity if below == "." else str(uuid.uuid5(uuid.UUID(identity), below))
        replace_file(fs, f"{root}/{STORE_ID}", f"{own}\n".encode())
    for root in instance_roots(fs, partial):
        done.notes += [
            f"{finding.path}: {finding.reason}" for finding in check_store(fs, root).findings if finding.damaged
        ]
    _finish(fs, partial, target)
    return done


def _check_file(fs: FileSystem, path: str, file: SnapshotFile) -> None:
    try:
        if file.crc32 is None:
            size, crc = fs.stat(path).size_bytes, None
        else:
            size, crc = checksum_of(fs, path)
    except FileNotFoundError:
        raise Damaged(path, 0, "the snapshot lists this file, and it is not there") from None
    if size != file.size_bytes or crc != file.crc32:
        raise Damaged(path, 0, f"not what was copied: {size} bytes, {file.size_bytes} were written")
    if file.crc32 is None:
        reader = SegmentReader.open(fs, path)
        reader.verify()
        reader.close()


def _never_changes(name: str) -> bool:
    return parse_segment_name(name) is not None or parse_wal_rotated_name(name) is not None


def _identity(fs: FileSystem, root: str) -> str:
    try:
        return fs.read_all(f"{root}/{STORE_ID}", size_max=1024).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def _begin(fs: FileSystem, source: str, target: str) -> str:
    """
    Return the empty directory in which *target* is made.
    """
    if fs.exists(target):
        # Killed between its rename and its sync, an earlier call left a name that loss of power would take back.
        fs.sync_dir(posixpath.dirname(target) or ".")
        raise WrongUse(f"{target} exists; name a new directory")
    if f"{posixpath.normpath(target)}/".startswith(f"{posixpath.normpath(source)}/"):
        raise WrongUse(f"{target} lies within {source}; name a directory beside it")
    partial = target + PARTIAL_SUFFIX
    for path in list(_files_below(fs, partial)) if fs.exists(partial) else ():
        remove_durably(fs, [path])
    fs.make_dirs(partial)
    return partial


def _files_below(fs: FileSystem, directory: str) -> Iterator[str]:
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        try:
            fs.list_dir(path)
        except NotADirectoryError:
            yield path
        else:
            yield from _files_below(fs, path)


def _finish(fs: FileSystem, partial: str, target: str) -> None:
    """
    Make all names in *partial* durable, then give it its own.
    """
    for directory in {posixpath.dirname(path) for path in _files_below(fs, partial)}:
        fs.sync_dir(directory)
    fs.rename(partial, target)
    fs.sync_dir(posixpath.dirname(target) or ".")


class _Copy:
    """
    One instance on its way: see the module's own text for the order and why.
    """

    def __init__(self, fs: FileSystem, root: str, into: str, done: Copied) -> None:
        self._fs = fs
        self._cold = ColdFiles(fs)
        self._root = root
        self._into = into
        self._done = done
        self.files: list[SnapshotFile] = []
        self._next_seq: int | None = None
        """Above every segment that step 3 saw; None when it saw none."""
        self._floor = 0
        self._end = 0
        """The log position behind everything that was copied."""

    def run(self) -> None:
        for directory in (WAL_DIR, SEGMENTS_DIR):
            self._fs.make_dirs(f"{self._into}/{directory}")
        self._log()
        cursor = self._cursor()
        self._segments()
        if cursor is not None:
            # Not beyond what is here: it may have passed segments that are deleted by now.
            self._write(f"{WAL_DIR}/{CURSOR_NAME}", encode_cursor(min(cursor, self._end)))
        for name in (DROP_LEDGER, EVICTED, AUDIT_TRAIL, AUDIT_PREVIOUS):
            self._small(name)
        for subscriber in find_subscribers(self._fs, self._root):
            self._progress(progress_name(subscriber))
            # After the progress: whatever that leaves out for it stands here, or is delivered by now.
            self._small(retry_set_name(subscriber))
        self._write_floor()
        self._small(STORE_ID)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._fs.read_all(f"{self._root}/{name}", size_max=SMALL_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        replace_file(self._fs, f"{self._into}/{name}", data)
        self.files.append(SnapshotFile(name, len(data), crc32(data)))

    def _small(self, name: str) -> None:
        data = self._read(name)
        if data is not None:
            self._write(name, data)

    # 1.

    def _log(self) -> None:
        active = self._active()
        starts: list[int] = []
        directory = f"{self._root}/{WAL_DIR}"
        for name in self._fs.list_dir(directory) if self._fs.exists(directory) else []:
            if parse_wal_rotated_name(name) is None:
                continue
            path, into = f"{directory}/{name}", f"{self._into}/{WAL_DIR}/{name}"
            try:
                linked = link_or_copy(self._fs, path, into)
            except FileNotFoundError:
                continue  # purged meanwhile: segments hold all of it
            size, crc = checksum_of(self._fs, into)
            self._done.linked_bytes += size if linked else 0
            self.files.append(SnapshotFile(f"{WAL_DIR}/{name}", size, crc))
            scan = self._scan(into)
            self._note(scan)
            if scan.header is not None and scan.header_sound:
                starts.append(scan.header.position_start)
                self._end = max(self._end, scan.position_end)
        if active is None:
            return
        data, scan = active
        if scan.header is None or (scan.header_sound and any(start >= scan.header.position_start for start in starts)):
            return  # empty; or retired since it was read: it is among the others, or gone because it is not needed
        self._note(scan)
        self._end = max(self._end, scan.position_end)
        self._write(f"{WAL_DIR}/{WAL_ACTIVE}", data[: scan.tail_offset])

    def _active(self) -> tuple[bytes, WalFileScan] | None:
        best: tuple[bytes, WalFileScan] | None = None
        path = f"{self._root}/{WAL_DIR}/{WAL_ACTIVE}"
        for _ in range(_ATTEMPTS):
            try:
                data = self._fs.read_all(path, size_max=FILE_BYTES_MAX)
            except FileNotFoundError:
                continue  # between the two renames of a rotation
            scan = scan_wal_file(memoryview(data), path)
            if best is None or len(scan.damage) < len(best[1].damage):
                best = data, scan
            if not scan.damage:
                break
        return best

    def _scan(self, path: str) -> WalFileScan:
        return scan_wal_file(memoryview(self._fs.read_all(path, size_max=FILE_BYTES_MAX)), path)

    def _note(self, scan: WalFileScan) -> None:
        self._done.notes += [f"{damage.path} at byte {damage.offset}: {damage.reason}" for damage in scan.damage]

    # 2. and 3.

    def _cursor(self) -> int | None:
        data = self._read(f"{WAL_DIR}/{CURSOR_NAME}")
        answer = None if data is None else decode_cursor(memoryview(data))
        return answer.value if isinstance(answer, Frame) else None

    def _segments(self) -> None:
        directory = f"{self._root}/{SEGMENTS_DIR}"
        names = self._cold.list_dir(directory) if self._fs.exists(directory) else []
        seqs = {name: seq for name in names if (seq := parse_segment_name(name)) is not None}
        if seqs:
            self._next_seq = self._floor = max(seqs.values()) + 1
        for name in seqs:
            path = f"{self._into}/{SEGMENTS_DIR}/{name}"
            try:
                linked = link_or_copy(self._fs, f"{directory}/{name}", path, mode=0o440)
            except FileNotFoundError:
                # Finished by everybody, or given up by policy: step 4 or 5 says so. Or only the object tier has it.
                if not self._from_tier(directory, name, path):
                    continue
                linked = False
            size = self._fs.stat(path).size_bytes
            self._done.linked_bytes += size if linked else 0
            try:
                reader = SegmentReader.open(self._fs, path)
                self._end = max(self._end, reader.info.wal_position_end or 0)
                reader.close()
            except Damaged as damage:
                # Nothing of it could be restored, and the snapshot would be refused for it.
                known = Damaged(f"{directory}/{name}", damage.offset, damage.reason)  # where the operator finds it
                self._done.notes.append(f"left out: {known}")
                self._fs.remove(path)
                continue
            self.files.append(SnapshotFile(f"{SEGMENTS_DIR}/{name}", size, None))

    def _from_tier(self, directory: str, name: str, path: str) -> bool:
        """
        Copy a segment that only the object tier has: a snapshot stands alone. False when it is gone there, too.
        """
        try:
            data = self._cold.map_read(f"{directory}/{name}").view()
        except FileNotFoundError:
            return False
        except Damaged as damage:
            self._done.notes.append(f"left out: {damage}")
            return False
        replace_file(self._fs, path, data, mode=0o440)
        return True

    # 5. and 6.

    def _progress(self, name: str) -> None:
        data = self._read(name)
        if data is None:
            return
        view = memoryview(data)
        answer = decode_progress(view)
        if not isinstance(answer, Frame):
            self._done.notes.append(f"{self._root}/{name} is damaged")
            self._write(name, data)
            return
        progress = answer.value
        self._floor = max(self._floor, SubscriberState.from_progress(progress).named_max + 1)
        taken_back = without_missing(self._fs, self._into, _within(progress, self._next_seq))
        if taken_back != progress:
            profile: Profile = "otap" if progress_checksum(view) == "crc32" else "spec"
            data = encode_progress(taken_back, profile=profile)
        self._write(name, data)

    def _write_floor(self) -> None:
        name = f"{SEGMENTS_DIR}/{SEGMENT_FLOOR}"
        data = self._read(name)
        answer = None if data is None else decode_floor(memoryview(data))
        if isinstance(answer, Frame):
            self._floor = max(self._floor, answer.value)
        with contextlib.suppress(FileNotFoundError):
            found = (parse_segment_name(one) for one in self._cold.list_dir(f"{self._root}/{SEGMENTS_DIR}"))
            self._floor = max([self._floor, *(seq + 1 for seq in found if seq is not None)])
        self._write(name, encode_floor(self._floor))


def _within(progress: Progress, next_seq: int | None) -> Progress:
    """
    Return *progress* without what it says of segments from *next_seq* on.
    """
    if next_seq is None:
        return progress
    entries = {seq: entry for seq, entry in progress.entries.items() if seq < next_seq}
    return Progress(min(progress.oldest_incomplete, next_seq), entries)
