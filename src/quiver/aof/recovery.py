"""
Recovery of a log when it is opened, in five steps. Recovering twice equals recovering once.

1. `load_pointer`: read which segment was sealed last. A pointer that contradicts the segments is ignored.
2. `settle_names`: remove leftovers, give a spare that was written to its final name, and make the names durable.
3. `inspect`: read the header and footer of each segment; read the rest of a file only if they are not sufficient.
4. `settle_sealed`, `settle_unsealed`: accept a segment with a valid footer as it is. Quarantine one whose header is
   damaged and cannot be rebuilt. Cut an unsealed one after its last complete record, rewrite and sync it; seal all but
   the newest, in which the log continues. A segment with damage in its durable part is not cut but sealed as it is, and
   readers skip the damage.
5. `set_next_place`: place the next segment after everything that was durable, even if it is lost: no id is used twice.

The content of a file never makes the opening fail: an empty, short, headerless or foreign file is removed if it holds
nothing, otherwise quarantined or left alone. Only a failing disk makes it fail.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from quiver.aof.append.segment import Segment
from quiver.aof.damage import header_of_sealed, header_of_unsealed, scan_past_damage
from quiver.aof.format.durability import DURABILITY_BYTES_MAX, ScanMark, decode_durability
from quiver.aof.format.names import (
    ARCHIVE,
    DURABILITY,
    POINTER_NAME,
    QUARANTINE,
    SEGMENTS,
    SegmentName,
    durability_name,
    parse_archive_name,
    parse_segment_name,
    parse_spare_name,
)
from quiver.aof.format.record import RecordScan, checksum_of_bytes, continue_scan, join_record_id
from quiver.aof.format.sealed_pointer import (
    POINTER_BYTES,
    SealedPointer,
    decode_pointer,
    encode_pointer,
    pointer_problem,
)
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    SegmentFooter,
    SegmentHeader,
    agrees_with,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
)
from quiver.aof.reading.catalog import SealedSegment
from quiver.aof.recovered import RecoveredLog
from quiver.clock import Clock
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, replace_file
from quiver.primitives.disk.copying import copy_file
from quiver.primitives.disk.disk_full import is_full_disk
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.disk.prealloc import reserve_blocks
from quiver.primitives.scan import Frame, is_zero

__all__ = ["recover"]

_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class _FoundSegment:
    """
    A segment file: its header, its footer if there is a valid one, and whether that footer is trusted. The records are
    scanned at most once, on demand.
    """

    path: str
    name: SegmentName
    header: SegmentHeader
    footer: SegmentFooter | None
    size_bytes: int
    trusted: bool
    records: RecordScan | None = None


def recover(
    fs: FileSystem, root: str, *, stream_id: int, clock: Clock, observer: Observer, now_s: float
) -> RecoveredLog:
    """
    Recover the log in *root* and return its state. A crash meanwhile does not change the result of the next recovery.

    Raises:
        OSError: the disk failed, or has no space for a footer.
    """
    work = _Recovery(fs, root, stream_id, clock, observer)
    work.load_pointer()
    work.settle_names()
    unsealed = [found for found in work.inspect() if not work.settle_sealed(found)]
    for found in work.without_holes(unsealed):
        work.settle_unsealed(found, is_last=found is unsealed[-1] and work.is_newest(found), now_s=now_s)
    work.set_next_place()
    return work.result


class _Recovery:
    def __init__(self, fs: FileSystem, root: str, stream_id: int, clock: Clock, observer: Observer) -> None:
        self._fs = fs
        self._segments = f"{root}/{SEGMENTS}"
        self._quarantine = f"{root}/{QUARANTINE}"
        self._archive = f"{root}/{ARCHIVE}"
        self._snapshot = f"{root}/{DURABILITY}/{durability_name(stream_id)}"
        self._clock = clock
        self._observer = observer
        self._highest_id = -1
        self._loaded: SealedPointer | None = None
        self._durable: dict[int, int] = {}
        self._marks: dict[int, ScanMark] = {}
        self._headers: dict[int, SegmentHeader] = {}
        self.result = RecoveredLog()

    def _report(self, event: str, path: str, reason: str) -> None:
        self._observer.count("aof_recovery_findings_total", kind=event)
        self._observer.event(f"aof.recovery.{event}", level=logging.WARNING, path=path, reason=reason)

    # ---- 1

    def load_pointer(self) -> None:
        path = f"{self._segments}/{POINTER_NAME}"
        if self._fs.exists(path):
            answer = decode_pointer(memoryview(self._first_bytes(path, POINTER_BYTES)))
            problem = self._pointer_problem(answer.value) if isinstance(answer, Frame) else "damaged or short"
            if isinstance(answer, Frame) and problem is None:
                self.result.pointer = self._loaded = answer.value
                self._highest_id = answer.value.segment_id
                self.result.coordinator_watermark = answer.value.coordinator_watermark
            else:
                self._report("pointer", path, f"{problem}; its values are derived from the segments")
        if self._fs.exists(self._snapshot):
            snapshot = decode_durability(memoryview(self._first_bytes(self._snapshot, DURABILITY_BYTES_MAX)))
            if isinstance(snapshot, Frame):
                self._durable = {one.segment_id: one.durable_bytes for one in snapshot.value}
                self._marks = {one.segment_id: one.mark for one in snapshot.value if one.mark is not None}

    def _pointer_problem(self, pointer: SealedPointer) -> str | None:
        names = [one for one in map(parse_segment_name, self._fs.list_dir(self._segments)) if one is not None]
        named = next((one for one in names if one.segment_id == pointer.segment_id), None)
        footer = None if named is None else self._footer_of(f"{self._segments}/{named}")
        return pointer_problem(pointer, {one.segment_id: one.base_offset for one in names}, footer)

    def _footer_of(self, path: str) -> SegmentFooter | None:
        header = self._header(path)
        if not isinstance(header, SegmentHeader):
            return None
        size = self._fs.stat(path).size_bytes
        return self._footer(path, header, size) or self._footer(path, dataclasses.replace(header, max_size=size), size)

    # ---- 2

    def settle_names(self) -> None:
        removed: list[str] = []
        archived = self._archived()
        self._note_quarantined_ids()
        for name in self._fs.list_dir(self._segments):
            path = f"{self._segments}/{name}"
            parsed = parse_segment_name(name)
            if parsed is not None and archived.get(parsed.segment_id) == self._fs.stat(path).inode:
                removed.append(path)  # archived before the crash; only the new name was certainly on the disk
            elif name.endswith(TEMPORARY_SUFFIX):
                removed.append(path)
            elif parse_spare_name(name) is not None:
                answer = self._header(path)
                if not isinstance(answer, SegmentHeader):
                    removed.append(path)  # never written to, or its records were lost in a power loss
                    continue
                proper = SegmentName(answer.segment_index, answer.base_offset, answer.created_at)
                self._fs.rename(path, f"{self._segments}/{proper}")
        # Even if nothing was found: an earlier run may have been killed between a rename and its sync.
        remove_durably(self._fs, removed)
        self._fs.sync_dir(self._segments)

    def _archived(self) -> dict[int, int]:
        """Return the inode of each archived segment."""
        inodes: dict[int, int] = {}
        for name in self._fs.list_dir(self._archive):
            parsed = parse_archive_name(name)
            if parsed is not None:
                inodes[parsed[0]] = self._fs.stat(f"{self._archive}/{name}").inode
                self._highest_id = max(self._highest_id, parsed[0])
        return inodes

    def _note_quarantined_ids(self) -> None:
        # Their record ids were used; for the newest id the quarantine may be the only evidence.
        if self._fs.exists(self._quarantine):
            for name in self._fs.list_dir(self._quarantine):
                parsed = parse_segment_name(name.rpartition(".")[0])
                self._highest_id = max(self._highest_id, parsed.segment_id if parsed is not None else -1)

    def _first_bytes(self, path: str, size: int) -> bytes:
        file = self._fs.open_read(path)
        try:
            return file.pread(size, 0)
        finally:
            file.close()

    def _header(self, path: str) -> SegmentHeader | str:
        head = self._first_bytes(path, HEADER_BYTES)
        answer = decode_header(memoryview(head))
        if isinstance(answer, Frame):
            return answer.value
        return "the file is too short" if len(head) < HEADER_BYTES else getattr(answer, "reason", "too short")

    # ---- 3

    def inspect(self) -> list[_FoundSegment]:
        found: list[_FoundSegment] = []
        without_header: list[tuple[SegmentName, str]] = []
        for name in self._fs.list_dir(self._segments):
            parsed = parse_segment_name(name)
            if parsed is None:
                continue
            self._highest_id = max(self._highest_id, parsed.segment_id)
            path = f"{self._segments}/{name}"
            header = self._header(path)
            if isinstance(header, SegmentHeader) and (header.segment_index, header.base_offset) != (
                parsed.segment_id & 0xFFFF_FFFF,
                parsed.base_offset,
            ):
                header = "its header belongs to another segment than its name"
            if isinstance(header, str):
                without_header.append((parsed, header))
            else:
                found.append(self._found(path, parsed, header))
        for parsed, reason in sorted(without_header):
            path = f"{self._segments}/{parsed}"
            rebuilt = self._rebuilt(path, parsed, reason, found)
            if rebuilt is None:
                self._discard_or_quarantine(path, reason)
            else:
                found.append(self._found(path, parsed, rebuilt))
        found = self._each_id_once(found)
        self._headers = {one.name.segment_id: one.header for one in found}
        return found

    def _found(self, path: str, name: SegmentName, header: SegmentHeader) -> _FoundSegment:
        size = self._fs.stat(path).size_bytes
        header = self._with_size(path, header, size)
        footer = self._footer(path, header, size)
        pointer = self.result.pointer
        trusted = footer is not None and pointer is not None and name.segment_id <= pointer.segment_id
        return _FoundSegment(path, name, header, footer, size, trusted)

    def _each_id_once(self, found: list[_FoundSegment]) -> list[_FoundSegment]:
        # Of two files with one id, readers more likely know the sealed one. One without records gave its id to the
        # next segment and a crash prevented its removal: the acknowledged records are in the other.
        kept: dict[int, _FoundSegment] = {}
        for one in sorted(found, key=lambda one: (one.footer is None, one.name)):
            unwanted, other = one, kept.setdefault(one.name.segment_id, one)
            if other is one:
                continue
            if other.footer is None and not self._scan(other).record_count:
                unwanted, kept[one.name.segment_id] = other, one
            self._discard_or_quarantine(unwanted.path, f"segment {one.name.segment_id} exists twice")
        found = sorted(kept.values(), key=lambda one: one.name)
        # A segment is sealed durably before the next one is, so a later footer proves that it is, as the pointer does.
        newest = max((one.name for one in found if one.footer is not None), default=None)
        for one in found:
            one.trusted |= one.footer is not None and one.name != newest
        return found

    def _with_size(self, path: str, header: SegmentHeader, size: int) -> SegmentHeader:
        # The header has no checksum. If it contradicts the length of the file, a matching footer decides. Without a
        # footer the file may have been truncated; it never grows.
        actual = dataclasses.replace(header, max_size=size)
        if size == header.max_size or self._footer(path, header, size) is not None:
            return header
        if size < header.max_size and self._footer(path, actual, size) is None:
            return header
        self._report("header", path, f"the header has {header.max_size} bytes, the file {size}")
        return actual

    def _footer(self, path: str, header: SegmentHeader, size: int) -> SegmentFooter | None:
        if not HEADER_BYTES + FOOTER_BYTES < header.max_size <= size:
            return None
        file = self._fs.open_read(path)
        try:
            answer = decode_footer(memoryview(file.pread(FOOTER_BYTES, header.max_size - FOOTER_BYTES)))
        finally:
            file.close()
        if not isinstance(answer, Frame) or agrees_with(answer.value, header) is not None:
            return None
        return answer.value

    def _rebuilt(self, path: str, name: SegmentName, reason: str, found: list[_FoundSegment]) -> SegmentHeader | None:
        """Rebuild and rewrite the damaged header of a segment; return None if its values are unknown."""
        size = self._fs.stat(path).size_bytes
        if not HEADER_BYTES + FOOTER_BYTES < size <= SEGMENT_BYTES_MAX:
            return None
        view = self._fs.map_read(path).view()
        header = header_of_sealed(view, name)
        if header is None:
            before = max((one for one in found if one.name < name), default=None, key=lambda one: one.name)
            end, count, ext_id = (0, 0, 0) if before is None else (*self._end_of(before), before.header.ext_id)
            if name.base_offset == end:
                header = header_of_unsealed(view, name, base_record_count=count, ext_id=ext_id)
        if header is None:
            return None
        self._report(
            "header", path, f"{reason}; it was rebuilt from the name, the records and the neighbouring segments"
        )
        file = self._fs.open_write(path)
        try:
            file.pwrite(encode_header(header), 0)
            file.sync_data()
        finally:
            file.close()
        return header

    def _end_of(self, found: _FoundSegment) -> tuple[int, int]:
        """Return base offset and base record count of the segment that follows."""
        header, footer = found.header, found.footer
        if footer is not None:
            return footer.durable_bytes + FOOTER_BYTES, header.base_record_count + footer.record_count
        records = self._scan(found)
        return header.base_offset + records.end + FOOTER_BYTES, header.base_record_count + records.record_count

    def _discard_or_quarantine(self, path: str, reason: str) -> None:
        """Remove a file that holds only zeros; quarantine any other."""
        if is_zero(self._fs.map_read(path).view()):
            name, pointer = parse_segment_name(path.rpartition("/")[2]), self.result.pointer
            if name is not None and pointer is not None and name.segment_id <= pointer.segment_id:
                self._report("damaged", path, f"{reason}; it was sealed, and all of it is lost")
            remove_durably(self._fs, [path])
            return
        self._report("quarantined", path, reason)
        self._fs.make_dirs(self._quarantine)
        target = self._free_name(path)
        self._fs.rename(path, target)
        self._fs.sync_dir(self._quarantine)
        self._fs.sync_dir(self._segments)
        self.result.quarantined.append(target)

    def _keep_copy(self, path: str, reason: str) -> None:
        self._report("damaged", path, reason)
        self._fs.make_dirs(self._quarantine)
        target = self._free_name(path)
        copy_file(self._fs, path, target)
        self._fs.sync_dir(self._quarantine)
        self.result.quarantined.append(target)

    def _free_name(self, path: str) -> str:
        name = path.rpartition("/")[2]
        number = 0
        while self._fs.exists(f"{self._quarantine}/{name}.{number}"):
            number += 1
        return f"{self._quarantine}/{name}.{number}"

    # ---- 4

    def settle_sealed(self, found: _FoundSegment) -> bool:
        """Accept a segment as sealed if its footer is valid; return False if its records must decide."""
        footer = found.footer
        if footer is None:
            return False
        if not found.trusted:
            records = self._scan(found)
            last = join_record_id(found.header.segment_index, records.last_offset)
            end = footer.durable_bytes - found.header.base_offset
            facts = (records.end, records.record_count, last, records.checksum)
            if facts != (end, footer.record_count, footer.last_record_id, footer.checksum):
                return False
            # It was sealed, but the pointer does not cover it: it is unknown whether its last sync succeeded.
            self._rewrite_from(found, end)
        self._add_sealed(found.path, found.header, footer)
        return True

    def _scan(self, found: _FoundSegment) -> RecordScan:
        if found.records is None:
            view = self._fs.map_read(found.path).view()
            limit = min(len(view), found.header.max_size - FOOTER_BYTES)
            found.records = self._scan_after_mark(found, view, limit)
        return found.records

    def _scan_after_mark(self, found: _FoundSegment, view: memoryview, limit: int) -> RecordScan:
        """
        Scan the records, but only those after the mark of the last snapshot if the bytes before it are unchanged.

        One checksum over many records is compared much faster than one for each. If it differs, each is compared.
        """
        known = RecordScan(HEADER_BYTES, HEADER_BYTES)
        end = self._durable.get(found.name.segment_id, 0)
        mark = self._marks.get(found.name.segment_id)
        is_usable = mark is not None and HEADER_BYTES <= mark.last_offset < end <= limit
        if mark is not None and is_usable and checksum_of_bytes(view, HEADER_BYTES, end) == mark.bytes_crc64:
            known = RecordScan(end, mark.last_offset, mark.record_count, mark.last_timestamp, mark.crc64)
        return continue_scan(known, view, max(limit, HEADER_BYTES))

    def _rewrite_from(self, found: _FoundSegment, end: int) -> None:
        """Rewrite and sync a segment from the offset up to which it is known to be durable."""
        file = self._fs.open_write(found.path)
        try:
            _rewrite(file, min(self._durable.get(found.name.segment_id, 0), end), end)
            _rewrite(file, found.header.max_size - FOOTER_BYTES, found.header.max_size)
            file.sync_data()
        finally:
            file.close()

    def _add_sealed(self, path: str, header: SegmentHeader, footer: SegmentFooter) -> None:
        result = self.result
        result.sealed.append(SealedSegment(path, header, footer))
        result.sealed.sort(key=lambda one: one.segment_id)
        result.coordinator_watermark = max(result.coordinator_watermark, footer.coordinator_watermark)
        result.last_timestamp = max(result.last_timestamp, footer.last_timestamp)
        result.ext_id = result.sealed[-1].header.ext_id
        pointer = result.pointer
        if pointer is None or header.segment_index > pointer.segment_id:
            pointer = SealedPointer(header.segment_index, result.coordinator_watermark, footer.durable_bytes)
            replace_file(self._fs, f"{self._segments}/{POINTER_NAME}", encode_pointer(pointer))
            result.pointer = pointer

    def without_holes(self, unsealed: list[_FoundSegment]) -> Iterator[_FoundSegment]:
        """
        Yield the segments that follow the one before them without a gap; quarantine the others.

        Unsynced records may survive a power loss although earlier ones do not. If a segment was synced, everything
        before it was synced first: if that is missing now, it was damaged, and the segment stays. A segment also stays
        if it begins where the newest sealed segment ended according to the pointer: everything before it was durable.
        """
        counted = self.result.sealed[-1].next_base_record_count if self.result.sealed else 0
        is_known = bool(self.result.sealed) or self.result.pointer is None
        for found in unsealed:
            base = found.header.base_record_count
            if is_known and base > counted and not self._was_durable(found):
                self._discard_or_quarantine(found.path, f"it begins at record {base}, the log ends at record {counted}")
                continue
            counted, is_known = base + self._scan(found).record_count, True
            yield found

    def _was_durable(self, found: _FoundSegment) -> bool:
        if self._durable.get(found.name.segment_id):
            return True
        pointer = self.result.pointer
        if pointer is None or found.name.segment_id > pointer.segment_id + 1:
            return False
        follows = found.header.base_offset == pointer.durable_bytes + FOOTER_BYTES
        return follows or found.name.segment_id <= pointer.segment_id

    def is_newest(self, found: _FoundSegment) -> bool:
        """Return whether no segment follows this one, and no lost durable segment did."""
        others = {one.segment_id for one in self.result.sealed} | self._durable.keys()
        return found.name.segment_id >= max(others, default=-1) and found.footer is None

    def _durable_end(self, found: _FoundSegment) -> int:
        """Return the offset up to which the segment's records were durable; 0 if unknown."""
        header, pointer, segment_id = found.header, self.result.pointer, found.name.segment_id
        end = self._durable.get(segment_id, 0)
        following = self._headers.get(segment_id + 1)
        if found.footer is not None:
            end = found.footer.durable_bytes - header.base_offset
        elif pointer is not None and segment_id == pointer.segment_id:
            end = pointer.durable_bytes - header.base_offset
        elif pointer is not None and segment_id < pointer.segment_id and following is not None:
            end = following.base_offset - FOOTER_BYTES - header.base_offset
        return end if HEADER_BYTES < end <= header.max_size - FOOTER_BYTES else 0

    def _settle_damaged(self, found: _FoundSegment, durable_end: int) -> None:
        """Seal a segment that has lost durable records. It is not cut, so that later records can be read."""
        records, header = self._scan(found), found.header
        reason = records.damage.reason if records.damage else "zeros"
        self._report("damaged", found.path, f"damaged at {records.end}, durable up to {durable_end}: {reason}")
        kept = scan_past_damage(self._fs.map_read(found.path).view(), records, header, durable_end)
        following = self._headers.get(found.name.segment_id + 1)
        if following is not None:  # its header has the count
            kept.record_count = max(kept.record_count, following.base_record_count - header.base_record_count)
        file = self._fs.open_write(found.path)
        try:
            _rewrite(file, min(self._durable.get(found.name.segment_id, 0), kept.end), kept.end)
            footer = self._seal(file, header, kept)
        finally:
            file.close()
        self._add_sealed(found.path, header, footer)

    def settle_unsealed(self, found: _FoundSegment, *, is_last: bool, now_s: float) -> None:
        """Cut a segment after its last complete record. The log continues in the last one; others are sealed."""
        records = self._scan(found)
        pointer = self.result.pointer
        was_durable = self._durable.get(found.name.segment_id, 0)
        was_sealed = pointer is not None and found.name.segment_id <= pointer.segment_id
        durable_end = self._durable_end(found)
        if records.end < durable_end:
            self._settle_damaged(found, durable_end)
            return
        if was_sealed and records.damage is not None:
            reason = records.damage.reason if records.damage else "zeros"
            self._keep_copy(found.path, f"the records end at {records.end}: {reason}")
        self.result.truncated_bytes += self._garbage(found, records)
        # An empty file from another log would count later records from a wrong place.
        is_misplaced = bool(self.result.sealed) and found.header.base_offset < self.result.sealed[-1].next_base_offset
        if not records.record_count and (not is_last or is_misplaced):
            remove_durably(self._fs, [found.path])
            return
        file = self._fs.open_write(found.path)
        try:
            _rewrite(file, min(was_durable, records.end), records.end)
            file.truncate(records.end)
            if is_last and not was_sealed and self._reserved(file, found, records):
                file.sync_data()
                self.result.tail = Segment(file, found.header.max_size)
                self.result.tail.restore(found.header, records, now_s=now_s)
                self.result.ext_id = found.header.ext_id
                self.result.last_timestamp = max(self.result.last_timestamp, records.last_timestamp)
                return
            footer = self._seal(file, found.header, records)
        except OSError:
            file.close()
            raise
        file.close()
        self._add_sealed(found.path, found.header, footer)

    def _garbage(self, found: _FoundSegment, records: RecordScan) -> int:
        return 0 if records.damage is None else max(0, found.size_bytes - records.end)

    def _reserved(self, file: File, found: _FoundSegment, records: RecordScan) -> bool:
        # Truncated and preallocated again, the rest of the file is zero without being read.
        try:
            reserve_blocks(file, records.end, found.header.max_size - records.end, on_unsupported="zeros")
        except OSError as error:
            if not is_full_disk(error) or not records.record_count:
                raise
            return False  # the disk has no space to continue in it: it is sealed, and a later segment follows
        return True

    def _seal(self, file: File, header: SegmentHeader, records: RecordScan) -> SegmentFooter:
        footer = SegmentFooter(
            segment_index=header.segment_index,
            base_record_count=header.base_record_count,
            record_count=records.record_count,
            durable_bytes=header.base_offset + records.end,
            last_record_id=join_record_id(header.segment_index, records.last_offset),
            last_timestamp=records.last_timestamp,
            sealed_at=self._clock.now_ns(),
            checksum=records.checksum,
            ext_id=header.ext_id,
            coordinator_watermark=self.result.coordinator_watermark,
        )
        file.truncate(records.end)
        file.truncate(header.max_size)
        file.sync_data()  # the records before the footer that covers them
        file.pwrite(encode_footer(footer), header.max_size - FOOTER_BYTES)
        file.sync_data()
        return footer

    def set_next_place(self) -> None:
        """Set the id and offsets of the next segment: none is ever used twice."""
        result = self.result
        result.next_segment_id = self._highest_id + 1
        if result.sealed:
            newest = result.sealed[-1]
            result.next_base_offset = newest.next_base_offset
            result.next_base_record_count = newest.next_base_record_count
        if self._loaded is not None:
            # If sealed records are lost, the next segment does not begin in their place: readers see the gap and report
            # the loss.
            result.next_base_offset = max(result.next_base_offset, self._loaded.durable_bytes + FOOTER_BYTES)
        self._skip_lost_segments()

        used = [one.segment_id for one in result.sealed] + ([result.tail.segment_id] if result.tail else [])
        invariant(result.next_segment_id > max(used, default=-1), "recovery never uses a segment id twice")

    def _skip_lost_segments(self) -> None:
        """Skip the place of lost durable segments. The pointer preserves it, because the snapshot does not."""
        result = self.result
        here = {one.segment_id for one in result.sealed} | ({result.tail.segment_id} if result.tail else set())
        sealed_id = -1 if self._loaded is None else self._loaded.segment_id
        for segment_id, end in sorted(self._durable.items()):
            if segment_id > sealed_id and segment_id not in here and end > HEADER_BYTES:
                self._report("damaged", self._segments, f"segment {segment_id} was durable up to {end} and is missing")
                if result.tail is not None:
                    continue  # the log continues after them: readers see the gap
                place = result.next_base_offset + end
                pointer = SealedPointer(segment_id, result.coordinator_watermark, place)
                replace_file(self._fs, f"{self._segments}/{POINTER_NAME}", encode_pointer(pointer))
                result.next_segment_id = max(result.next_segment_id, segment_id + 1)
                result.next_base_offset = place + FOOTER_BYTES


def _rewrite(file: File, start: int, end: int) -> None:
    # After a failed sync the kernel may consider pages clean that the disk never got: reading them back and syncing
    # would show no error. Rewritten pages reach the disk.
    while start < end:
        piece = file.pread(min(_COPY_BYTES, end - start), start)
        if not piece:
            return
        file.pwrite(piece, start)
        start += len(piece)
