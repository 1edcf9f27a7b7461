"""
Recovery of a slot when it is opened: find the surviving frames, in order, and how far they were confirmed.

The steps run in this order. A crash in any of them is safe, because each can run again:

1. read every segment; refuse files of a newer version before anything is changed
2. remove empty files: spares, segments whose creation was interrupted, and unfinished copies
3. remove confirmed segments: a crash may have kept the file of a trimmed segment, but not that of the next one
4. refuse a gap
5. truncate the tail of the newest segment; if intact frames follow invalid bytes, keep a copy and these frames
6. import the state of a newer client: its symbols stay, its manifest and its own watermark are removed
7. sync everything that was found: it may have been visible but not durable
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from quiver.errors import CorruptionError, InvariantError, UnsupportedFormatError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.prealloc import zero_fill
from quiver.primitives.scan import Damage, Frame, NeedMore, is_zero
from quiver.qwp.format.names import (
    MANIFEST_NAME,
    SYMBOLS_NAME,
    WATERMARK_NAME,
    generation_of,
    is_segment_name,
    is_unfinished_name,
)
from quiver.qwp.format.newer import MANIFEST_MAGIC, decode_dual_record, decode_symbol_file
from quiver.qwp.format.segment import (
    FRAME_HEAD,
    MANIFEST_FLAG,
    SEGMENT_HEADER,
    SegmentScan,
    frames_after,
    scan_segment,
)
from quiver.qwp.format.watermark import WATERMARK, WATERMARK_MAGIC, decode_watermark
from quiver.qwp.slots.segment_files import Segment
from quiver.qwp.wire.decoder import SymbolDelta, SymbolDictionary, decode_symbol_delta
from quiver.qwp.wire.message import MESSAGE_HEADER, MESSAGE_MAGIC, Flags

__all__ = ["RecoveredSlot", "Scanned", "read_watermark", "recover_slot", "scan_file", "scan_slot"]

_SEGMENT_BYTES_MAX = 4 << 30
_SMALL_FILE_BYTES_MAX = 1 << 20
_SYMBOLS_BYTES_MAX = 512 << 20
_FLAGS_OFFSET = 5
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Scanned:
    """
    One segment file as found. `scan` is None if nothing was ever written to it. `refers_back` means that one of its
    frames needs symbols of earlier ones, which only newer clients write. `is_headless` means that the header is
    missing, but other data is there.
    """

    path: str
    size_bytes: int
    scan: SegmentScan | None
    refers_back: bool = False
    is_headless: bool = False

    @property
    def count(self) -> int:
        """The number of intact frames."""
        return len(self.scan.payloads) if self.scan is not None else 0

    @property
    def base(self) -> int:
        """The sequence number of its first frame."""
        return self.scan.header.base if self.scan is not None else 0

    @property
    def is_used(self) -> bool:
        """Whether a frame was ever written to it, completely or not."""
        return self.scan is not None and (self.count > 0 or self.scan.torn or self.scan.later is not None)

    @property
    def has_hole(self) -> bool:
        """Whether intact frames follow invalid bytes."""
        return self.scan is not None and self.scan.later is not None

    @property
    def next_fsn(self) -> int:
        """The sequence number after its last frame."""
        return self.base + self.count


@dataclass(slots=True)
class RecoveredSlot:
    """
    The recovered state, open for writing: `segments` in order, none of them empty.

    `symbols` are those that frames of a newer client refer to without containing them; empty in a slot of ours.
    """

    segments: list[Segment]
    confirmed: int
    next_fsn: int
    next_generation: int
    symbols: Sequence[str]
    bytes_cut: int


def scan_slot(fs: FileSystem, directory: str) -> list[Scanned]:
    """
    Read every segment in *directory* without changing anything, in the order of their names.

    Raises:
        UnsupportedFormatError: a segment has another version or unknown flags.
        CorruptionError: a file is not a segment.
        OSError: a file cannot be read.
    """
    found = []
    for name in fs.list_dir(directory):
        if is_segment_name(name):
            path = f"{directory}/{name}"
            found.append(scan_file(fs, path))
    return found


def scan_file(fs: FileSystem, path: str) -> Scanned:
    """
    Read the segment at *path* without changing it.

    Raises:
        UnsupportedFormatError: the segment has another version or unknown flags.
        CorruptionError: the file is not a segment.
        OSError: the file cannot be read.
    """
    file = fs.open_read(path)
    try:
        size = file.size()
        if size > _SEGMENT_BYTES_MAX:
            raise CorruptionError(path, 0, f"{size} bytes: the maximum size of a segment is {_SEGMENT_BYTES_MAX}")
        view = memoryview(file.pread(size, 0))
    finally:
        file.close()
    answer = scan_segment(view)
    if isinstance(answer, Frame):
        refers_back = any(_refers_back(view[start:end]) for start, end in answer.value.payloads)
        return Scanned(path, size, answer.value, refers_back)
    if is_zero(view[: SEGMENT_HEADER.size]):
        # The crash came before the header was written. Or a power loss removed the header but not the frames after
        # it, which have no numbers without it. That requires an unsynced segment (durability `memory`).
        return Scanned(path, size, None, is_headless=not is_zero(view))
    if isinstance(answer, NeedMore):
        raise CorruptionError(path, len(view), f"truncated inside its header: {answer.missing} bytes are missing")
    if "unsupported" in answer.reason:
        raise UnsupportedFormatError(path, answer.offset, f"{answer.reason}; use the client that wrote it")
    raise CorruptionError(path, answer.offset, answer.reason)


def recover_slot(fs: FileSystem, directory: str, *, observer: Observer) -> RecoveredSlot:
    """
    Bring the slot *directory*, whose lock is held, into the state that a writer needs. The module lists the steps.

    Raises:
        UnsupportedFormatError: a newer version wrote a file. Nothing was changed.
        CorruptionError: frames or symbols are missing. Nothing was deleted.
        OSError: a disk error.
    """
    found = scan_slot(fs, directory)
    head = _manifest_head(fs, directory)
    watermark = read_watermark(fs, directory)
    generations = [number for one in found if (number := generation_of(one.path.rpartition("/")[2])) is not None]
    filled = sorted((one for one in found if one.is_used), key=lambda one: one.base)
    while filled and not filled[-1].count and not filled[-1].has_hole:
        filled.pop()  # torn at its first frame, and nothing follows
    # Without any frame, the spares still show which numbers were used.
    next_fsn = filled[-1].next_fsn if filled else max((one.base for one in found), default=0)
    if watermark >= next_fsn:
        watermark = -1  # higher than any frame ever written, so it does not belong to these frames
    # The next segment's base determines how far a segment reached: frames after damage cannot be counted.
    done = max(watermark + 1, head)
    kept = [one for one, after in itertools.pairwise(filled) if after.base > done] + filled[-1:]
    for before, after in itertools.pairwise(kept):
        if before.next_fsn != after.base:
            raise CorruptionError(
                after.path,
                8,
                f"frames {before.next_fsn} to {after.base - 1} are missing between {before.path} and this segment; "
                "move the files on one side of the gap elsewhere to continue without them",
            )
    symbols = _symbols_of(fs, directory, kept)
    kept_paths = {one.path for one in kept}
    removed = [one for one in found if one.path not in kept_paths]
    for one in removed:
        if one.is_headless or one.has_hole:
            _keep_copy(fs, directory, one, observer)
    invariant(
        all(not one.count or one.base <= done for one in removed),
        "recovery removes only segments whose frames are confirmed",
    )
    unfinished = [f"{directory}/{name}" for name in fs.list_dir(directory) if is_unfinished_name(name)]
    remove_durably(fs, unfinished + [one.path for one in removed])
    cut = _cut_tail(fs, directory, kept[-1], observer) if kept else 0
    if cut and kept[-1].has_hole:
        kept[-1] = scan_file(fs, kept[-1].path)
        next_fsn = kept[-1].next_fsn
    _import_newer(fs, directory, kept)
    segments = [_open(fs, one) for one in kept]
    fs.sync_dir(directory)
    confirmed = max(kept[0].base - 1 if kept else next_fsn - 1, watermark)
    return RecoveredSlot(segments, confirmed, next_fsn, max(generations, default=-1) + 1, symbols, cut)


def _manifest_head(fs: FileSystem, directory: str) -> int:
    path = f"{directory}/{MANIFEST_NAME}"
    if not fs.exists(path):
        return 0
    answer = decode_dual_record(memoryview(fs.read_all(path, size_max=_SMALL_FILE_BYTES_MAX)), MANIFEST_MAGIC)
    if isinstance(answer, Frame):
        return answer.value.first
    if isinstance(answer, Damage) and "unsupported" in answer.reason:
        raise UnsupportedFormatError(path, answer.offset, f"{answer.reason}; use the client that wrote it")
    return 0  # the segments contain the same information


def read_watermark(fs: FileSystem, directory: str) -> int:
    """Return the last confirmed number from the watermark in *directory*, or -1 if there is none."""
    try:
        data = memoryview(fs.read_all(f"{directory}/{WATERMARK_NAME}", size_max=_SMALL_FILE_BYTES_MAX))
    except FileNotFoundError:
        return -1
    if len(data) <= WATERMARK.size:
        answer = decode_watermark(data)
        return answer.value if isinstance(answer, Frame) else -1
    newer = decode_dual_record(data, WATERMARK_MAGIC)
    return newer.value.first if isinstance(newer, Frame) else -1


def _refers_back(message: memoryview) -> bool:
    # The id of the first symbol follows the header: one zero byte in every self-contained frame.
    return len(message) > MESSAGE_HEADER.size and bool(
        message[:4] == MESSAGE_MAGIC and message[5] & Flags.DELTA_SYMBOLS and message[MESSAGE_HEADER.size]
    )


def _symbols_of(fs: FileSystem, directory: str, kept: Sequence[Scanned]) -> Sequence[str]:
    """Return the symbols that frames refer to without containing them, from the side file and the frames."""
    if not any(one.refers_back for one in kept):
        return ()
    dictionary = SymbolDictionary()
    with suppress(FileNotFoundError):
        data = fs.read_all(f"{directory}/{SYMBOLS_NAME}", size_max=_SYMBOLS_BYTES_MAX)
        answer = decode_symbol_file(memoryview(data))
        if isinstance(answer, Frame):
            dictionary.accept(0, answer.value)
    for one in kept:
        for offset, delta in _deltas(fs, one):
            if delta.start > len(dictionary.entries):
                reason = f"a frame needs symbol {delta.start - 1}, which {SYMBOLS_NAME} does not have"
                raise CorruptionError(one.path, offset, reason)
            # Only new ids: our own frames, which come last, count from 0 and are self-contained.
            dictionary.entries.extend(delta.symbols[len(dictionary.entries) - delta.start :])
    return dictionary.entries


def _deltas(fs: FileSystem, one: Scanned) -> Iterator[tuple[int, SymbolDelta]]:
    file = fs.open_read(one.path)
    try:
        view = memoryview(file.pread(one.size_bytes, 0))
    finally:
        file.close()
    for start, end in one.scan.payloads if one.scan is not None else ():
        answer = decode_symbol_delta(view[start:end])
        if isinstance(answer, Frame):
            yield start, answer.value


def _keep_copy(fs: FileSystem, directory: str, one: Scanned, observer: Observer) -> None:
    file = fs.open_read(one.path)
    try:
        data = file.pread(one.size_bytes, 0)
    finally:
        file.close()
    copy = keep_damaged(fs, directory, one.path.rpartition("/")[2], data)
    observer.count("quiver.qwp.damaged_segments_total")
    observer.event("qwp.segment_damaged", level=logging.ERROR, path=one.path, copy=copy)


def _cut_tail(fs: FileSystem, directory: str, newest: Scanned, observer: Observer) -> int:
    """
    Zero everything after the last intact frame of the newest segment. Return how many of these bytes were not zero.

    Intact frames after a hole are moved to the start of the hole: they were appended and are unconfirmed. The number
    of missing frames before them is unknown, so they get the next numbers.
    """
    scan = newest.scan
    if scan is None or (not scan.torn and scan.later is None):
        return 0
    if scan.later is not None:
        _keep_copy(fs, directory, newest, observer)
        kept = _without_hole(fs, newest, scan.tail)
        if kept is not None:
            replace_file(fs, newest.path, kept, mode=_MODE)
            return newest.size_bytes - scan.tail
    file = fs.open_write(newest.path)
    try:
        zero_fill(file, scan.tail, newest.size_bytes - scan.tail)
    finally:
        file.close()
    torn = newest.size_bytes - scan.tail
    observer.count("quiver.qwp.torn_tails_total")
    observer.event("qwp.torn_tail", level=logging.WARNING, path=newest.path, offset=scan.tail, frames=newest.count)
    return torn


def _without_hole(fs: FileSystem, newest: Scanned, tail: int) -> bytes | None:
    """Return the segment with the hole removed, or None if a later frame needs symbols that may be lost."""
    file = fs.open_read(newest.path)
    try:
        view = memoryview(file.pread(newest.size_bytes, 0))
    finally:
        file.close()
    later = frames_after(view, tail)
    if any(_refers_back(view[start:end]) for start, end in later):
        return None
    parts = [view[:tail], *(view[start - FRAME_HEAD.size : end] for start, end in later)]
    return b"".join(parts).ljust(newest.size_bytes, b"\0")


def _import_newer(fs: FileSystem, directory: str, kept: Sequence[Scanned]) -> None:
    # The flag means that the manifest lists the valid segments. Write a manifest with all kept segments. After a crash
    # in between, the old manifest's first segment is still right, because nothing was removed before it.
    for one in kept:
        if one.scan is not None and one.scan.header.flags & MANIFEST_FLAG:
            file = fs.open_write(one.path)
            try:
                file.pwrite(b"\0", _FLAGS_OFFSET)
                file.sync_data()
            finally:
                file.close()
    foreign = [f"{directory}/{MANIFEST_NAME}"]
    with suppress(FileNotFoundError):
        if fs.stat(f"{directory}/{WATERMARK_NAME}").size_bytes > WATERMARK.size:
            foreign.append(f"{directory}/{WATERMARK_NAME}")
    present = [path for path in foreign if fs.exists(path)]
    if present:
        remove_durably(fs, present)


def _open(fs: FileSystem, one: Scanned) -> Segment:
    if one.scan is None:
        raise InvariantError(f"recovery keeps only segments with a header, not {one.path}")
    file = fs.open_write(one.path)
    try:
        file.sync_data()
    except OSError:
        file.close()
        raise
    header = dataclasses.replace(one.scan.header, flags=0)
    segment = Segment(file, one.size_bytes, header, one.scan.payloads)
    segment.unsynced = False
    return segment
