"""
What a slot's directory holds when it is opened: the frames that survived, in order, and how far they were confirmed.

In this order, and each step may be crashed and run again:

1. read every segment; refuse what a newer version wrote, before anything is touched
2. drop what is empty: spares, and files whose making was interrupted; also copies that were not finished
3. drop what is confirmed: a crash may have kept the file of a trimmed segment, and not that of the next one
4. refuse a gap
5. cut the tail of the newest segment; when whole frames lie behind what is no frame, keep a copy, and the frames
6. take over what a newer client left: symbols stay, its manifest and its other watermark go
7. make durable what was found: it may have been visible only
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from quiver.errors import CorruptionError, UnsupportedFormatError
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
    frames_behind,
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
    One segment file as it was found. `scan` is None for one in which nothing was ever written; `refers_back` says that
    one of its frames needs symbols of earlier ones, as only newer clients write them; `is_headless` that the header is
    gone and something else is there.
    """

    path: str
    size_bytes: int
    scan: SegmentScan | None
    refers_back: bool = False
    is_headless: bool = False

    @property
    def count(self) -> int:
        """Whole frames in it."""
        return len(self.scan.payloads) if self.scan is not None else 0

    @property
    def base(self) -> int:
        """The sequence number of its first frame."""
        return self.scan.header.base if self.scan is not None else 0

    @property
    def is_used(self) -> bool:
        """Say whether a frame was ever written to it, whole or not."""
        return self.scan is not None and (self.count > 0 or self.scan.torn or self.scan.later is not None)

    @property
    def has_hole(self) -> bool:
        """Say whether whole frames lie behind bytes that are none."""
        return self.scan is not None and self.scan.later is not None

    @property
    def next_fsn(self) -> int:
        """The sequence number behind its last frame."""
        return self.base + self.count


@dataclass(slots=True)
class RecoveredSlot:
    """
    What was found, opened for writing: `segments` in order, none of them empty.

    `symbols` are those that a newer client's frames refer to without bringing them; empty in a slot of ours.
    """

    segments: list[Segment]
    confirmed: int
    next_fsn: int
    next_generation: int
    symbols: Sequence[str]
    bytes_cut: int


def scan_slot(fs: FileSystem, directory: str) -> list[Scanned]:
    """
    Read every segment in *directory*, touching nothing; in the order of their names.

    Raises:
        UnsupportedFormatError: a segment of another version, or with unknown flags.
        CorruptionError: a file that is no segment.
        OSError: one cannot be read.
    """
    found = []
    for name in fs.list_dir(directory):
        if is_segment_name(name):
            path = f"{directory}/{name}"
            found.append(scan_file(fs, path))
    return found


def scan_file(fs: FileSystem, path: str) -> Scanned:
    """
    Read the segment at *path*, touching nothing.

    Raises:
        UnsupportedFormatError: a segment of another version, or with unknown flags.
        CorruptionError: it is no segment.
        OSError: it cannot be read.
    """
    file = fs.open_read(path)
    try:
        size = file.size()
        if size > _SEGMENT_BYTES_MAX:
            raise CorruptionError(path, 0, f"{size} bytes: no segment is larger than {_SEGMENT_BYTES_MAX}")
        view = memoryview(file.pread(size, 0))
    finally:
        file.close()
    answer = scan_segment(view)
    if isinstance(answer, Frame):
        refers_back = any(_refers_back(view[start:end]) for start, end in answer.value.payloads)
        return Scanned(path, size, answer.value, refers_back)
    if is_zero(view[: SEGMENT_HEADER.size]):
        # Made, and the crash came before its header; or a power loss took the header and left frames behind it, which
        # have no numbers without it. That needs a segment that was not synced (durability `memory`).
        return Scanned(path, size, None, is_headless=not is_zero(view))
    if isinstance(answer, NeedMore):
        raise CorruptionError(path, len(view), f"cut inside its header: {answer.missing} bytes are missing")
    if "unsupported" in answer.reason:
        raise UnsupportedFormatError(path, answer.offset, f"{answer.reason}; use the client that wrote it")
    raise CorruptionError(path, answer.offset, answer.reason)


def recover_slot(fs: FileSystem, directory: str, *, observer: Observer) -> RecoveredSlot:
    """
    Bring the slot *directory*, whose lock is held, into the state that a writer needs. See the module for the steps.

    Raises:
        UnsupportedFormatError: something a newer version wrote. Nothing was touched.
        CorruptionError: a gap between two segments, or symbols that are gone. Nothing was deleted.
        OSError: the disk refused.
    """
    found = scan_slot(fs, directory)
    head = _manifest_head(fs, directory)
    watermark = read_watermark(fs, directory)
    generations = [number for one in found if (number := generation_of(one.path.rpartition("/")[2])) is not None]
    filled = sorted((one for one in found if one.is_used), key=lambda one: one.base)
    while filled and not filled[-1].count and not filled[-1].has_hole:
        filled.pop()  # torn at its first frame, and nothing follows
    # Without any frame the spares still tell how far numbers were given out.
    next_fsn = filled[-1].next_fsn if filled else max((one.base for one in found), default=0)
    if watermark >= next_fsn:
        watermark = -1  # higher than any frame that was ever written: not the watermark of these frames
    # How far a segment reached is what the next one says: behind damage its own frames cannot be counted.
    done = max(watermark + 1, head)
    kept = [one for one, after in itertools.pairwise(filled) if after.base > done] + filled[-1:]
    for before, after in itertools.pairwise(kept):
        if before.next_fsn != after.base:
            raise CorruptionError(
                after.path,
                8,
                f"frames {before.next_fsn} to {after.base - 1} are missing between {before.path} and this segment; "
                "move the files of one side elsewhere to go on without them",
            )
    symbols = _symbols_of(fs, directory, kept)
    kept_paths = {one.path for one in kept}
    for one in found:
        if one.path not in kept_paths and (one.is_headless or one.has_hole):
            _keep_copy(fs, directory, one, observer)
    unfinished = [f"{directory}/{name}" for name in fs.list_dir(directory) if is_unfinished_name(name)]
    remove_durably(fs, unfinished + [one.path for one in found if one.path not in kept_paths])
    cut = _cut_tail(fs, directory, kept[-1], observer) if kept else 0
    if cut and kept[-1].has_hole:
        kept[-1] = scan_file(fs, kept[-1].path)
        next_fsn = kept[-1].next_fsn
    _take_over(fs, directory, kept)
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
    return 0  # what it would say can be seen from the segments


def read_watermark(fs: FileSystem, directory: str) -> int:
    """Return the last number that is confirmed, as the watermark in *directory* says; -1 when it says none."""
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
    # Behind the header stands the first symbol's id: one byte, zero, in every frame that is complete in itself.
    return len(message) > MESSAGE_HEADER.size and bool(
        message[:4] == MESSAGE_MAGIC and message[5] & Flags.DELTA_SYMBOLS and message[MESSAGE_HEADER.size]
    )


def _symbols_of(fs: FileSystem, directory: str, kept: Sequence[Scanned]) -> Sequence[str]:
    """
    Return the symbols that frames refer to without bringing them, from the side file and from the frames
    themselves.
    """
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
                reason = f"a frame needs symbol {delta.start - 1}, and {SYMBOLS_NAME} does not have it"
                raise CorruptionError(one.path, offset, reason)
            # Only what goes beyond: frames of ours, which come last, count from 0 and mean nothing to the others.
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
    Zero what stands behind the last whole frame of the newest segment; return how many bytes of it were not.

    Whole frames behind a hole are moved to its beginning: they were appended, and nobody has confirmed them. How many
    are missing before them nothing tells, so they get the numbers that come next.
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
    """
    Return the segment with its later frames behind the others; None when one of them needs symbols that may be
    lost.
    """
    file = fs.open_read(newest.path)
    try:
        view = memoryview(file.pread(newest.size_bytes, 0))
    finally:
        file.close()
    later = frames_behind(view, tail)
    if any(_refers_back(view[start:end]) for start, end in later):
        return None
    parts = [view[:tail], *(view[start - FRAME_HEAD.size : end] for start, end in later)]
    return b"".join(parts).ljust(newest.size_bytes, b"\0")


def _take_over(fs: FileSystem, directory: str, kept: Sequence[Scanned]) -> None:
    # The flag says that only the manifest tells which segments count. They are written down here: all that are kept. A
    # crash in between leaves a manifest whose first segment is still right, because nothing was removed before it.
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
        raise CorruptionError(one.path, 0, "a segment without a header")
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
