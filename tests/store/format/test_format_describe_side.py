"""`describe` on the small files next to log and segments: valid, truncated, corrupted. It never raises."""

import json

import pytest

from quiver.store.format.audit import AuditRecord, encode_audit_record
from quiver.store.format.cores import encode_claim
from quiver.store.format.describe.files import STORE_FILES
from quiver.store.format.drop_ledger import DroppedSegment, encode_drop_ledger
from quiver.store.format.progress import Progress, encode_progress
from quiver.store.format.room import encode_cap_note, encode_room_wanted
from quiver.store.format.snapshot_list import Snapshot, SnapshotFile, encode_snapshot_list

IDENTITY = b"3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11\n"
FILES = {
    "quiver.drops": encode_drop_ledger([DroppedSegment(3, 2, 100, "age", 7), DroppedSegment(9, 4, 0, "size", 8)]),
    "core_0/quiver.evicted": encode_drop_ledger([DroppedSegment(3, 2, 100, "size", 7)]),
    "quiver.core": encode_claim(4096),
    "quiver.cap": encode_cap_note(8192),
    "quiver.wanted": encode_room_wanted(512),
    "quiver.snapshot": encode_snapshot_list(Snapshot(5, "", (SnapshotFile("wal/quiver.wal", 38, 7),))),
    "quiver.audit.jsonl": b"".join(
        encode_audit_record(AuditRecord(at, "s", 1, ((0, 3), (7, 7)), "acked")) for at in range(5)
    ),
    "quiver.id": IDENTITY,
    "quiver.sub.s.bak": encode_progress(Progress(3, {}), profile="spec"),
    "quiver.lock": b"12 quiver store\n",
    "quiver.reserve": b"",
    "quarantine/wal-0000000000000000-3.damaged": b"\0\1\2",
}
KINDS = {
    "quiver.drops": "drop ledger",
    "core_0/quiver.evicted": "drop ledger",
    "quiver.core": "claim",
    "quiver.cap": "size cap",
    "quiver.wanted": "room wanted",
    "quiver.snapshot": "snapshot list",
    "quiver.audit.jsonl": "audit trail",
    "quiver.id": "identity",
    "quiver.sub.s.bak": "progress",
    "quiver.lock": "lock",
    "quiver.reserve": "reserve",
    "quarantine/wal-0000000000000000-3.damaged": "kept copy",
}


def told(name, data, rows_max=100):
    description = STORE_FILES.describe(name, memoryview(data), rows_max=rows_max)
    assert json.loads(json.dumps(description.as_dict())) == description.as_dict()
    assert all(0 <= problem.offset <= max(len(data), 24) for problem in description.problems)
    return description


@pytest.mark.parametrize("name", FILES)
def test_sound_files_are_known(name):
    """They are recognized by name, valid, and have fields to show."""
    description = told(name, FILES[name])
    assert (description.kind, description.is_intact, description.problems) == (KINDS[name], True, [])
    assert description.fields


@pytest.mark.parametrize("name", FILES)
def test_damage_is_an_answer(name):
    """Every prefix and every flipped byte: the same kind, never an exception; a checksum finds it."""
    data = FILES[name]
    covered = name not in {"quiver.audit.jsonl", "quiver.lock", "quiver.reserve"} and "quarantine" not in name
    for size in range(len(data)):
        description = told(name, data[:size])
        # A truncated identity may only lack its line end, which is not damage.
        assert not (covered and description.is_intact) or (name == "quiver.id" and size == len(data) - 1), size
    for offset in range(len(data)):
        flipped = told(name, data[:offset] + bytes([data[offset] ^ 0xC1]) + data[offset + 1 :])
        assert flipped.kind == KINDS[name]
        assert not (covered and flipped.is_intact) or (name == "quiver.id" and offset == len(data) - 1), offset


def test_what_is_in_them():
    """Counts cover the whole file, tables only as many rows as asked for; of a trail, the last."""
    drops = told("quiver.drops", FILES["quiver.drops"], rows_max=1)
    assert drops.fields == {"segments": 2, "bundles": 6}
    assert [(row["segment"], row["reason"], row["wal_position_end"]) for row in drops.tables["dropped"]] == [
        (3, "age", 0)
    ]
    assert told("quiver.core", FILES["quiver.core"]).fields == {"size": 24, "claim_bytes": 4096}
    assert told("quiver.cap", FILES["quiver.cap"]).fields == {"size": 24, "cap_bytes": 8192}
    assert told("quiver.wanted", FILES["quiver.wanted"]).fields == {"size": 24, "wanted_bytes": 512}
    assert told("quiver.snapshot", FILES["quiver.snapshot"]).fields["size_bytes"] == 38
    trail = told("quiver.audit.jsonl", FILES["quiver.audit.jsonl"], rows_max=2)
    assert trail.fields == {"lines": 5, "records": 5}
    assert [row["at_ns"] for row in trail.tables["last outcomes"]] == [3, 4]
    assert trail.tables["last outcomes"][0]["bundles"] == ["0-3", "7-7"]
    assert told("quiver.lock", FILES["quiver.lock"]).fields == {"last_holder": "12 quiver store"}


def test_a_torn_line_of_a_trail_is_no_damage():
    """It is reported with its offset; the other lines count."""
    data = FILES["quiver.audit.jsonl"]
    description = told("quiver.audit.jsonl", data + b'{"at":')
    assert (description.is_intact, description.fields) == (True, {"lines": 6, "records": 5})
    assert [problem.offset for problem in description.problems] == [len(data)]


def test_magic_goes_before_the_name():
    """A copy under any name is still what it is."""
    for name, kind in (("quiver.drops", "drop ledger"), ("quiver.core", "claim"), ("quiver.cap", "size cap")):
        assert told("copy.bin", FILES[name]).kind == kind


def test_the_database_of_a_receiver_is_known():
    """By its head; a part of that is damage."""
    head = bytearray(100)
    head[:16] = b"SQLite format 3\0"
    head[16:18], head[28:32], head[60:64] = (4096).to_bytes(2, "big"), (3).to_bytes(4, "big"), (1).to_bytes(4, "big")
    description = STORE_FILES.describe("quiver.requests", memoryview(bytes(head)))
    assert (description.kind, description.version, description.fields) == (
        "receiver database",
        1,
        {"page_size": 4096, "pages": 3},
    )
    assert description.is_intact
    assert not STORE_FILES.describe("quiver.requests", memoryview(bytes(head[:50]))).is_intact
