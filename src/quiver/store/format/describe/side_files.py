"""
Describe the small files next to log and segments: ledgers, claims, lists, audit trails, locks, quarantined copies.

Called by `describe`, and bytes only, too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from quiver.primitives.file_kinds import LIST_BYTES_MAX, LOG_BYTES_MAX, FileKind
from quiver.primitives.findings import Description, Problem
from quiver.primitives.scan import Answer, Frame
from quiver.store.format.audit import AuditRecord, decode_audit
from quiver.store.format.cold_list import COLD_MAGIC, decode_cold_list
from quiver.store.format.cores import CLAIM_MAGIC, CORE_CLAIM, EVICTED, decode_claim
from quiver.store.format.describe.fleet_objects import FLEET_KINDS
from quiver.store.format.drop_ledger import DROP_MAGIC, decode_drop_ledger
from quiver.store.format.early_progress import EARLY_MAGIC, decode_early_progress
from quiver.store.format.exporter_report import decode_report
from quiver.store.format.fleet.acks import ACKS_MAGIC
from quiver.store.format.fleet.offsets import OFFSETS_MAGIC
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import (
    AUDIT_PREVIOUS,
    AUDIT_TRAIL,
    COLD_LIST,
    COLD_MARK,
    DROP_LEDGER,
    EARLY_PROGRESS,
    RESERVE,
    SEGMENTS_DIR,
    STORE_ID,
    parse_report_name,
    parse_retry_set_name,
    parse_skip_ledger_name,
)
from quiver.store.format.retry_set import RETRY_MAGIC, decode_retry_set
from quiver.store.format.room import (
    CAP_MAGIC,
    CAP_NOTE,
    ROOM_WANTED,
    WANTED_MAGIC,
    decode_cap_note,
    decode_room_wanted,
)
from quiver.store.format.sink_commit import COMMIT_PREFIX, decode_commit, parse_commit_name
from quiver.store.format.snapshot_list import SNAPSHOT_LIST, SNAPSHOT_PREFIX, decode_snapshot_list

__all__ = ["SIDE_KINDS", "side_kind_by_head", "side_kind_by_name"]

_NAMES = {
    DROP_LEDGER: "drop ledger",
    EARLY_PROGRESS: "early progress",
    COLD_LIST: "cold list",
    COLD_MARK: "cold mark",
    EVICTED: "drop ledger",
    CORE_CLAIM: "claim",
    CAP_NOTE: "size cap",
    ROOM_WANTED: "room wanted",
    SNAPSHOT_LIST: "snapshot list",
    AUDIT_TRAIL: "audit trail",
    AUDIT_PREVIOUS: "audit trail",
    STORE_ID: "identity",
    RESERVE: "reserve",
}
_KEPT_SUFFIXES = (".damaged", ".arrows")
_NOTE_BYTES_MAX = 4096
_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_HEAD_BYTES = 100


def side_kind_by_head(head: bytes) -> str | None:
    """Return the kind that the first bytes of a file identify; None if they do not."""
    by_magic = {
        DROP_MAGIC: "drop ledger",
        EARLY_MAGIC: "early progress",
        CLAIM_MAGIC: "claim",
        RETRY_MAGIC: "retry set",
        COLD_MAGIC: "cold list",
        CAP_MAGIC: "size cap",
        WANTED_MAGIC: "room wanted",
        ACKS_MAGIC: "fleet positions",
        OFFSETS_MAGIC: "fleet batch",
    }
    if head.startswith(SNAPSHOT_PREFIX):
        return "snapshot list"
    if head.startswith(COMMIT_PREFIX):
        return "sink commit"
    if head.startswith(_SQLITE_MAGIC):
        return "receiver database"
    return by_magic.get(head[: len(DROP_MAGIC)])


def side_kind_by_name(base: str) -> str | None:
    """Return the kind that a file's name, without its directory, identifies; None if it does not."""
    if base in _NAMES:
        return _NAMES[base]
    if base.startswith("quiver.") and base.endswith(".lock"):
        return "lock"
    if parse_retry_set_name(base) is not None:
        return "retry set"
    if parse_report_name(base) is not None:
        return "exporter report"
    if parse_skip_ledger_name(base) is not None:
        return "drop ledger"
    if parse_commit_name(base) is not None:
        return "sink commit"
    return "kept copy" if base.endswith(_KEPT_SUFFIXES) else None


def _describe_drops(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    entries = to.accept(decode_drop_ledger(view))
    if entries is None:
        return
    to.fields = {"segments": len(entries), "bundles": sum(entry.bundle_count for entry in entries)}
    to.tables["dropped"] = [
        {
            "segment": entry.seq,
            "bundles": entry.bundle_count,
            "size_bytes": entry.size_bytes,
            "reason": entry.reason,
            "dropped_at_ns": entry.dropped_at_ns,
            "wal_position_end": entry.wal_position_end,
        }
        for entry in entries[:rows_max]
    ]


def _describe_early(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    found = to.accept(decode_early_progress(view))
    if found is None:
        return
    to.fields = {"segments": len(found.segments), "entries": len(found.resolved)}
    to.tables["unsealed"] = [
        {"segment": one.seq, "wal_position": one.wal_position, "sequence": one.sequence}
        for one in found.segments[:rows_max]
    ]
    to.tables["resolved"] = [
        {"subscriber": subscriber, "segment": seq, "bundles": bundle_count, "resolved": bitmap.bit_count()}
        for (subscriber, seq), (bundle_count, bitmap) in islice(found.resolved.items(), rows_max)
    ]


def _describe_cold(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    found = to.accept(decode_cold_list(view))
    if found is None:
        return
    verified = [entry for entry in found.entries if entry.state == "verified"]
    to.fields = {
        "location": dict(found.location),
        "segments": len(found.entries),
        "verified": len(verified),
        "verified_bytes": sum(entry.size_bytes for entry in verified),
    }
    to.tables["cold"] = [
        {
            "segment": entry.seq,
            "state": entry.state,
            "bundles": entry.bundle_count,
            "size_bytes": entry.size_bytes,
            "crc32": f"{entry.crc32:08x}",
        }
        for entry in found.entries[:rows_max]
    ]


def _describe_retries(to: Description, view: memoryview, rows_max: int) -> None:
    to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
    entries = to.accept(decode_retry_set(view))
    if entries is None:
        return
    to.fields = {"bundles": len(entries)}
    to.tables["waiting"] = [
        {
            "bundle": str(entry.ref),
            "attempts": entry.attempts,
            "first_failed_at_ns": entry.first_failed_at_ns,
            "next_try_at_ns": entry.next_try_at_ns,
            "halted": entry.is_halted,
            "reason": entry.reason,
        }
        for entry in entries[:rows_max]
    ]


def _describe_number(
    key: str, decode: Callable[[memoryview], Answer[int]]
) -> Callable[[Description, memoryview, int], None]:
    def describe(to: Description, view: memoryview, _rows_max: int) -> None:
        to.version = int.from_bytes(view[8:10], "little") if len(view) >= 10 else None
        answer = decode(view)
        value = to.accept(answer)
        if isinstance(answer, Frame):
            to.fields = {"size": answer.end, key: value}

    return describe


def _describe_snapshot(to: Description, view: memoryview, rows_max: int) -> None:
    found = to.accept(decode_snapshot_list(view))
    if found is None:
        return
    to.version = 1
    to.fields = {
        "taken_at_ns": found.taken_at_ns,
        "store": found.store,
        "files": len(found.files),
        "size_bytes": sum(file.size_bytes for file in found.files),
    }
    to.tables["files"] = [
        {"path": file.path, "size_bytes": file.size_bytes, "crc32": file.crc32} for file in found.files[:rows_max]
    ]


def _describe_commit(to: Description, view: memoryview, rows_max: int) -> None:
    found = to.accept(decode_commit(view))
    if found is not None:
        to.version = 1
        to.fields = {"writer": found.writer, "batch": found.batch, "parts": len(found.parts)}
        to.tables["parts"] = [{"part": part} for part in found.parts[:rows_max]]


def _describe_audit(to: Description, view: memoryview, rows_max: int) -> None:
    last: list[AuditRecord] = []
    records = lines = offset = 0
    for line in bytes(view).split(b"\n"):
        found = list(decode_audit(line))
        records += len(found)
        lines += bool(line)
        if line and not found:
            to.problems.append(Problem(offset, "incomplete line, or not an outcome: it is skipped", "warning"))
        offset += len(line) + 1
        last = [*last, *found][-rows_max:] if rows_max else []
    to.fields = {"lines": lines, "records": records}
    to.tables["last outcomes"] = [
        {
            "at_ns": record.at_ns,
            "subscriber": record.subscriber,
            "segment": record.segment,
            "bundles": [f"{first}-{end}" for first, end in record.bundles],
            "outcome": record.outcome,
            "why": record.why,
        }
        for record in last
    ]


def _describe_report(to: Description, view: memoryview, _rows_max: int) -> None:
    report = to.accept(decode_report(view))
    if report is not None:
        to.version = 1
        to.fields = {"last_success_at_ns": report.last_success_at_ns, "is_failing": report.is_failing}
        failure = report.last_failure
        if failure is not None:
            to.fields |= {
                "failure_type": failure.type,
                "failure_message": failure.message,
                "failure_at_ns": failure.at_ns,
            }


def _describe_identity(to: Description, view: memoryview, _rows_max: int) -> None:
    text = to.accept(decode_identity(view))
    if text is not None:
        to.fields = {"store": text}


def _describe_lock(to: Description, view: memoryview, _rows_max: int) -> None:
    # The contents are for human readers; only the kernel knows whether the lock is held.
    to.fields = {"last_holder": bytes(view[:_NOTE_BYTES_MAX]).decode("utf-8", "replace").strip()}


def _describe_room(to: Description, _view: memoryview, _rows_max: int) -> None:
    to.fields = {"meaning": "reserved disk space, freed when the disk is full"}


def _describe_mark(to: Description, _view: memoryview, _rows_max: int) -> None:
    to.fields = {"meaning": f"{SEGMENTS_DIR}/{COLD_LIST} exists; if it is missing, it was lost"}


def _describe_kept(to: Description, _view: memoryview, _rows_max: int) -> None:
    if to.name.endswith(".arrows"):
        to.fields = {"meaning": "rows recovered from a damaged segment, not verified: an Arrow stream"}
    else:
        to.fields = {"meaning": "a copy of damaged bytes"}


def _describe_database(to: Description, view: memoryview, _rows_max: int) -> None:
    """Describe the receivers' database of requests and clients. SQLite reads it; its header shows this much without."""
    if len(view) < _SQLITE_HEAD_BYTES:
        to.problems.append(
            Problem(len(view), f"cut short: at least {_SQLITE_HEAD_BYTES - len(view)} bytes are missing")
        )
        return
    to.version = int.from_bytes(view[60:64], "big")
    to.fields = {"page_size": int.from_bytes(view[16:18], "big"), "pages": int.from_bytes(view[28:32], "big")}


SIDE_KINDS: dict[str, FileKind] = {
    "drop ledger": FileKind(_describe_drops, LIST_BYTES_MAX),
    "early progress": FileKind(_describe_early, LIST_BYTES_MAX),
    "cold list": FileKind(_describe_cold, LIST_BYTES_MAX),
    "cold mark": FileKind(_describe_mark),
    "retry set": FileKind(_describe_retries, LIST_BYTES_MAX),
    "exporter report": FileKind(_describe_report),
    "claim": FileKind(_describe_number("claim_bytes", decode_claim)),
    "size cap": FileKind(_describe_number("cap_bytes", decode_cap_note)),
    "room wanted": FileKind(_describe_number("wanted_bytes", decode_room_wanted)),
    "sink commit": FileKind(_describe_commit, LIST_BYTES_MAX),
    "snapshot list": FileKind(_describe_snapshot, LIST_BYTES_MAX),
    "audit trail": FileKind(_describe_audit, LOG_BYTES_MAX),
    "identity": FileKind(_describe_identity),
    "reserve": FileKind(_describe_room),
    "lock": FileKind(_describe_lock),
    "kept copy": FileKind(_describe_kept, LOG_BYTES_MAX),
    "receiver database": FileKind(_describe_database),
    **FLEET_KINDS,
}
