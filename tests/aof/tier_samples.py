"""Realistic rows of the manifest log, and a disk for the object tier."""

from __future__ import annotations

from quiver.aof.format.segment_file import SegmentFooter, SegmentHeader
from quiver.aof.format.tier_entry import TierEntry
from quiver.testing.crashfs import CrashFileSystem

COLD = "/cold"


def cold_disk() -> CrashFileSystem:
    """Return a disk with the directory of the object tier."""
    fs = CrashFileSystem()
    fs.make_dirs(COLD)
    return fs


def entry_of(number: int, **changes) -> TierEntry:
    """A segment of one record, compressed."""
    header = SegmentHeader(number, number * 10, number * 1000, 65_536, 5, 6, 7)
    footer = SegmentFooter(number, number * 10, 1, number * 1000 + 100, number << 32 | 64, 8, 9, 10, 7, 11)
    values = {
        "warm_name": f"w{number}", "warm_bytes": 50, "warm_crc64": 2**63 + number, "has_warm": True,
        "residency": "staged_for_tier0", "remote": None,
    }  # fmt: skip
    return TierEntry(header, footer, **{**values, **changes})
