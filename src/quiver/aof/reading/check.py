"""Verification of a log's directory: its content and its problems. Only reads; safe while a writer has the log open."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import asdict, dataclass
from typing import Any

from quiver.aof.format.names import (
    INCOMING,
    POINTER_NAME,
    QUARANTINE,
    SEGMENTS,
    STATUS_NAME,
    WARM,
    SegmentName,
    object_folder,
    parse_object_key,
    parse_spare_name,
    stream_folder,
)
from quiver.aof.format.record import RecordScan, scan_records
from quiver.aof.format.sealed_pointer import SealedPointer
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SegmentFooter, SegmentHeader
from quiver.aof.format.tier_entry import Residency, TierEntry
from quiver.aof.reading.files import LogFiles, SegmentFile
from quiver.aof.reading.manifest import ReplayedManifest, replay_manifest
from quiver.aof.reading.status import read_status
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.snapshot import TierCounts, TierSnapshot
from quiver.aof.tiers.state import ALL_SEGMENTS, TierState
from quiver.errors import AccessDeniedError, CorruptionError, ObjectsUnavailableError
from quiver.objects import ObjectTier
from quiver.primitives.batch_notes import parse_note_name
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staging import names_in
from quiver.primitives.findings import Finding

__all__ = ["CheckedLog", "CheckedSegment", "check_log_directory"]


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """One segment. `records` is the number that was read, or the count in its footer; None when neither is known."""

    segment_id: int
    path: str
    state: str
    base_record_count: int
    records: int | None
    end: int
    durable: int
    size_bytes: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class CheckedLog:
    """The content of a log's directory, and the findings."""

    name: str
    directory: str
    stream_id: int | None
    pointer: SealedPointer | None
    segments: tuple[CheckedSegment, ...]
    spares: int
    tiers: TierState
    sink_batches: int
    findings: tuple[Finding, ...]

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged and everything that should be read was read."""
        return not self.damaged and not self.unread

    @property
    def damaged(self) -> bool:
        """Whether anything is damaged."""
        return any(finding.damaged for finding in self.findings)

    @property
    def unread(self) -> int:
        """How many segments, or objects of segments, should have been read but were not."""
        return sum(finding.unread for finding in self.findings)

    @property
    def unread_records(self) -> int:
        """How many records should have been read but were not."""
        keys = {finding.path for finding in self.findings if finding.unread}
        return sum(one.records or 0 for one in self.segments if one.path in keys)

    @property
    def records(self) -> int:
        """How many records are known."""
        return sum(one.records or 0 for one in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """Return the content and findings as plain values."""
        here = [one for one in self.segments if one.state not in _AWAY]
        sealed = [one for one in here if one.state == "sealed"]
        tiers = self._tiers()
        return {
            "name": self.name,
            "directory": self.directory,
            "stream_id": self.stream_id,
            "intact": self.is_intact,
            "damaged": self.damaged,
            "unread_segments": self.unread,
            "unread_records": self.unread_records,
            "coordinator_watermark": self.pointer.coordinator_watermark if self.pointer else 0,
            "tier0": {
                "segments": len(here),
                "sealed": len(sealed),
                "total_bytes": sum(one.size_bytes for one in here),
                "records": sum(one.records or 0 for one in here),
                "spares": self.spares,
            },
            "tier1": tiers["tier1"],
            "tier2": tiers["tier2"],
            "queues": {
                "seal": max(0, len(here) - len(sealed) - 1),
                "upload": tiers["queues"]["upload"],
                "delete": tiers["queues"]["delete"],
                "sink": self.sink_batches,
            },
            "segments": [asdict(one) for one in self.segments],
            "findings": [finding.as_dict() for finding in self.findings],
        }

    @property
    def _uploads(self) -> bool:
        # Only the writer has the settings. A writer that uploads has begun to with its first packed segment.
        began = self.tiers.uploads.keys() - {ALL_SEGMENTS}
        return bool(began) or any(one.remote is not None for one in self.tiers.entries.values())

    def _tiers(self) -> dict[str, Any]:
        residency = {one.segment_id: _RESIDENCY[one.state] for one in self.segments if one.state in _RESIDENCY}
        snapshot = TierSnapshot.of(
            residency, self.tiers.entries, resident_bytes=0, deletes=len(self.tiers.deletes), counts=TierCounts(),
            uploads_to=self._uploads,
        )  # fmt: skip
        return snapshot.as_dict()


_AWAY = ("warm", "cold", "missing")
_RESIDENCY: dict[str, Residency] = {
    "sealed": "resident_in_tier0", "warm": "staged_for_tier0", "cold": "uploaded_to_tier2",
    "missing": "needs_recovery",
}  # fmt: skip


def check_log_directory(
    fs: FileSystem, name: str, directory: str, *, read_records: bool, objects: ObjectTier | None = None
) -> CheckedLog:
    """
    Check everything in a log's directory; with *read_records* verify every record as well.

    Args:
        fs: the file system.
        name: the name of the log.
        directory: the directory of the log.
        read_records: whether to read records. Segments that exist only as objects are not read without *objects*.
        objects: the log's object tier; all objects in the manifest are read.

    Raises:
        UsageError: the directory holds no log.
        ObjectsUnavailableError: the object store has no object of this log although it should.
        OSError: the directory cannot be read.
    """
    log = LogFiles(directory, fs=fs)
    findings: list[Finding] = []
    copies = Copies(fs, f"{directory}/{WARM}", objects=None if objects is None else lambda: objects)
    checked = _check_files(fs, log, findings, read_records=read_records)
    here = {one.segment_id for one in checked}
    checked += _check_copies(fs, log, copies, here, findings, read_records=read_records)
    # Reading takes time, and the writer may have retired the oldest segments meanwhile.
    names, tiers = log.names(), log.tiers()
    there = {name.segment_id for name in names} | tiers.entries.keys()
    checked = [one for one in checked if one.segment_id in there]
    checked.sort(key=lambda one: one.segment_id)
    _check_order(log, checked, findings)
    spares = 0
    for listed in fs.list_dir(f"{directory}/{SEGMENTS}"):
        spares += parse_spare_name(listed) is not None
        if listed.endswith(".tmp"):
            findings.append(
                Finding(
                    f"{directory}/{SEGMENTS}/{listed}",
                    0,
                    "left over",
                    "left by an earlier writer; opening the log removes it",
                )
            )
    problem = log.pointer_problem()
    if problem is not None:
        reason = f"ignored: {problem}; the log rewrites it when it seals a segment"
        findings.append(Finding(f"{directory}/{SEGMENTS}/{POINTER_NAME}", 0, "damaged", reason))
    status = read_status(fs, directory)
    if status.problem:  # nothing depends on the status
        findings.append(Finding(f"{directory}/{STATUS_NAME}", 0, "left over", f"ignored: {status.problem}"))
    if fs.exists(f"{directory}/{QUARANTINE}"):
        findings += [
            Finding(f"{directory}/{QUARANTINE}/{listed}", 0, "quarantined", "quarantined by recovery")
            for listed in sorted(fs.list_dir(f"{directory}/{QUARANTINE}"))
        ]
    return CheckedLog(
        name, directory, log.stream_id(), log.pointer(), tuple(checked), spares, tiers,
        _waiting_batches(fs, f"{directory}/{INCOMING}"), tuple(findings),
    )  # fmt: skip


def _waiting_batches(fs: FileSystem, incoming: str) -> int:
    """Count the batches that Spark sinks committed and that are not imported yet."""
    names = [name for writer in names_in(fs, incoming) for name in names_in(fs, f"{incoming}/{writer}")]
    return sum((parse_note_name(name) or (0, ""))[1] == "commit" for name in names)


def _check_files(fs: FileSystem, log: LogFiles, findings: list[Finding], *, read_records: bool) -> list[CheckedSegment]:
    """Check the segments with a file; omit one whose file is removed meanwhile."""
    checked = []
    for one in log.segment_files():
        with contextlib.suppress(FileNotFoundError):
            checked.append(_check_segment(fs, one, findings, read_records=read_records))
    return checked


def _check_copies(
    fs: FileSystem,
    log: LogFiles,
    copies: Copies,
    here: set[int],
    findings: list[Finding],
    *,
    read_records: bool,
) -> list[CheckedSegment]:
    """Check the manifest, and the copies of segments that are not *here*, according to the manifest at that moment."""
    stream_id = log.stream_id()
    if stream_id is None:
        return []
    replayed = replay_manifest(fs, log.directory, stream_id)
    findings += _check_manifest(fs, log, copies, stream_id, replayed)
    pointer = log.pointer()
    checked = []
    for segment_id in sorted(replayed.state.entries.keys() - here):
        if pointer is None or segment_id > pointer.segment_id:
            continue
        entry, current = None, replayed.state.entries.get(segment_id)
        segment: CheckedSegment | None = None
        found: list[Finding] = []
        while current is not None and current != entry:
            entry, segment, found = current, None, []
            with contextlib.suppress(FileNotFoundError):
                segment = _check_copy(copies, log.directory, entry, found, read_records=read_records)
            if segment is None or any(one.damaged for one in found):
                # It may have been retired, or moved to another tier, since the manifest was read.
                current = replay_manifest(fs, log.directory, stream_id).state.entries.get(segment_id)
        if current is not None and segment is not None:
            checked.append(segment)
            findings += found
    if read_records and copies.has_objects:
        # Also check the objects of segments that are on the disk: they may become the only copies.
        rest = {one.segment_id for one in checked if one.state == "cold"}
        for entry in replayed.state.entries.values():
            if entry.remote is not None and entry.segment_id not in rest:
                found = _check_object(copies, entry)
                if any(one.damaged for one in found):  # unless it was retired or uploaded again meanwhile
                    now = replay_manifest(fs, log.directory, stream_id).state.entries
                    found = found if now.get(entry.segment_id) == entry else []
                findings += found
    return checked


def _require_place(copies: Copies, stream_id: int, state: TierState) -> None:
    """
    Check that the object store has an object of this log. Without any it is the wrong place, or is not mounted.

    Raises:
        ObjectsUnavailableError: this log has no object.
    """
    folder = object_folder(stream_id)
    is_expected = any(entry.remote is not None for entry in state.entries.values())
    if is_expected and next(iter(copies.objects_below(f"{folder}/")), None) is None:
        reason = "nothing of this log is there: is it the right place, and is it mounted?"
        raise ObjectsUnavailableError("list", folder, reason)


def _check_manifest(
    fs: FileSystem, log: LogFiles, copies: Copies, stream_id: int, replayed: ReplayedManifest
) -> list[Finding]:
    """Return the problems of the manifest log, and the objects that it does not know."""
    folder = f"{log.directory}/{stream_folder(stream_id)}"
    findings = [Finding(path, 0, "damaged", reason) for path, reason in replayed.damaged.items()]
    if copies.has_objects:
        _require_place(copies, stream_id, replayed.state)
        findings += _unknown_objects(fs, log, copies, stream_id)
    elif not replayed.indexes and fs.exists(folder):
        reason = "the manifest log is missing: use --objects to find segments that exist only as objects"
        findings.append(Finding(folder, 0, "not read", reason))
    return findings


def _unknown_objects(fs: FileSystem, log: LogFiles, copies: Copies, stream_id: int) -> list[Finding]:
    """Return objects that are the only copies of their segments and not in the manifest: readers do not find them."""
    listed = _listed_objects(copies, stream_id)
    # Read after the listing, so that the manifest has all listed uploads.
    state, pointer = replay_manifest(fs, log.directory, stream_id).state, log.pointer()
    known = {name.segment_id for name in log.names()} | {
        one.segment_id for one in state.entries.values() if one.remote or copies.warm_bytes(one) == one.warm_bytes
    }
    newest = -1 if pointer is None else pointer.segment_id
    found = [
        key for key, segment_id in listed.items()
        if segment_id not in known and segment_id <= newest and key not in state.deletes
    ]  # fmt: skip
    if found:  # unless they were deleted meanwhile
        still = _listed_objects(copies, stream_id)
        found = [key for key in found if key in still]
    reason = "the manifest log does not know it: open the log with its objects, or restore it"
    return [Finding(key, 0, "damaged", reason) for key in sorted(found)]


def _listed_objects(copies: Copies, stream_id: int) -> dict[str, int]:
    keys = (info.key for info in copies.objects_below(f"{object_folder(stream_id)}/"))
    return {key: parsed[1] for key in keys if (parsed := parse_object_key(key)) is not None}


def _check_object(copies: Copies, entry: TierEntry) -> list[Finding]:
    """Read the object of a segment; return its problem, or that it was not read."""
    key = entry.remote.object_key if entry.remote is not None else ""
    if not copies.has_objects:
        reason = f"only an object has these {entry.footer.record_count:,} records: use --objects to read it"
        return [Finding(key, 0, "not read", reason)]
    try:
        problem = copies.object_problem(entry)
    except (ObjectsUnavailableError, AccessDeniedError) as error:
        return [Finding(key, 0, "not reached", f"the object store does not answer: {error}")]
    return [] if problem is None else [Finding(key, 0, "damaged", problem)]


def _check_copy(
    copies: Copies, directory: str, entry: TierEntry, findings: list[Finding], *, read_records: bool
) -> CheckedSegment:
    """Check a segment without a file. The object store is accessed only to read records."""
    path = f"{directory}/{WARM}/{entry.warm_name}"
    size = copies.warm_bytes(entry)
    lost = entry.remote is None or entry.residency == "needs_recovery"
    state = "warm" if size == entry.warm_bytes else "missing" if lost else "cold"
    if state == "missing":
        if entry.remote is None:
            findings.append(Finding(path, 0, "damaged", "the only copy of a segment is missing"))
        else:
            reason = "the object of a segment was missing or damaged when it was last fetched"
            findings.append(Finding(entry.remote.object_key, 0, "damaged", reason))
    elif state == "cold" and entry.remote is not None:
        path = entry.remote.object_key
        findings += _check_object(copies, entry) if read_records else ()
    elif read_records:
        try:
            checksum, problem = copies.open_warm(entry).inspect()
            if problem is None and entry.warm_crc64 and checksum != entry.warm_crc64:
                problem = "checksum mismatch in a packed segment"
        except CorruptionError as error:
            problem = error.reason
        if problem is not None:
            findings.append(Finding(path, 0, "damaged", problem))
    return CheckedSegment(
        entry.segment_id, path, state, entry.header.base_record_count, entry.footer.record_count,
        entry.original_bytes, entry.original_bytes, entry.warm_bytes, entry.header.base_offset,
    )  # fmt: skip


def _check_segment(fs: FileSystem, one: SegmentFile, findings: list[Finding], *, read_records: bool) -> CheckedSegment:
    if one.header is None:
        findings.append(Finding(one.path, 0, "damaged", one.problem))
        return CheckedSegment(
            one.name.segment_id, one.path, "damaged", 0, None, 0, 0, one.size_bytes, one.name.base_offset
        )
    if one.problem:
        at = max(0, one.header.max_size - FOOTER_BYTES)
        findings.append(Finding(one.path, at, "damaged", one.problem))
    records = None if one.footer is None else one.footer.record_count
    end = one.durable
    if read_records:
        scan = _scan(fs, one, one.header)
        records, end = scan.record_count, scan.end
        if one.footer is not None:
            _check_sealed(one, one.header, one.footer, scan, findings)
        elif scan.end < one.durable:
            reason = f"the records end here, but {one.durable} bytes were synced"
            findings.append(Finding(one.path, scan.end, "damaged", reason))
        elif scan.damage is not None:
            findings.append(Finding(one.path, scan.damage.offset, "torn tail", scan.damage.reason))
    state = "open" if one.footer is None else "sealed"
    return CheckedSegment(
        one.name.segment_id, one.path, state, one.header.base_record_count, records, end, one.durable, one.size_bytes,
        one.header.base_offset,
    )  # fmt: skip


def _scan(fs: FileSystem, one: SegmentFile, header: SegmentHeader) -> RecordScan:
    limit = min(one.size_bytes, max(header.max_size - FOOTER_BYTES, HEADER_BYTES))
    if one.footer is not None:
        return scan_records(fs.map_read(one.path).view(), HEADER_BYTES, limit)
    # Not mapped: recovery may truncate it meanwhile.
    file = fs.open_read(one.path)
    try:
        data = file.pread(limit, 0)
    finally:
        file.close()
    return scan_records(memoryview(data), HEADER_BYTES, max(HEADER_BYTES, len(data)))


def _check_sealed(
    one: SegmentFile, header: SegmentHeader, footer: SegmentFooter, scan: RecordScan, findings: list[Finding]
) -> None:
    end = footer.durable_bytes - header.base_offset
    if scan.damage is not None and scan.damage.offset < end:
        findings.append(Finding(one.path, scan.damage.offset, "damaged", scan.damage.reason))
    elif (scan.end, scan.record_count, scan.checksum) != (end, footer.record_count, footer.checksum):
        reason = f"{scan.record_count} records end at {scan.end}; the footer has {footer.record_count} and {end}"
        findings.append(Finding(one.path, scan.end, "damaged", reason))


def _check_order(log: LogFiles, checked: list[CheckedSegment], findings: list[Finding]) -> None:
    names: dict[int, SegmentName] = {}
    for name in log.names():
        if name.segment_id in names:
            path = f"{log.directory}/{SEGMENTS}/{name}"
            findings.append(Finding(path, 0, "damaged", f"segment {name.segment_id} exists twice"))
        names[name.segment_id] = name
    intact = [one for one in checked if one.state != "damaged"]
    for one, following in itertools.pairwise(intact):
        if one.state == "open" or one.records is None or one.segment_id == following.segment_id:
            continue
        end = one.base_record_count + one.records
        if following.base_record_count > end:
            missing = f"records {end} to {following.base_record_count - 1} of the log are in no segment"
            findings.append(Finding(following.path, 0, "damaged", missing))
        elif following.base_offset > one.base_offset + one.durable + FOOTER_BYTES:
            missing = f"an unknown number of records after record {end - 1} of the log is in no segment"
            findings.append(Finding(following.path, 0, "damaged", missing))
    pointer = log.pointer()
    if pointer is not None and pointer.segment_id > max(
        [*(one.segment_id for one in log.names()), *log.tiers().entries], default=-1
    ):
        reason = f"segment {pointer.segment_id} was the newest sealed one and is missing"
        findings.append(Finding(f"{log.directory}/{SEGMENTS}", 0, "damaged", reason))
    for segment_id, end in log.lost_segments().items():
        reason = f"segment {segment_id} has no file; its records were durable up to byte {end}"
        findings.append(Finding(f"{log.directory}/{SEGMENTS}", 0, "damaged", reason))
