"""
A damaged or lost cold list made anew from the objects: their names, their checksums, and what their ends say.

Each object is read whole, so an entry of the new list says `verified` and means it. What is not what its name says is
listed as damaged, and the next pass of the tier puts it aside. A segment that was finished, and whose object was about
to go, is back: as finished as it was, by everybody's progress, so it goes again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from quiver.errors import CorruptionError
from quiver.objects.port import ObjectTier
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.files import ColdFiles, ColdListing, object_problem
from quiver.store.cold.location import location_from_list, object_key
from quiver.store.cold.register import ColdRegister, cold_segment
from quiver.store.format.cold_list import COLD_LIST_BYTES_MAX, ColdSegment, parse_object_name
from quiver.store.format.names import COLD_LIST, QUARANTINE_DIR, segment_name
from quiver.store.segment.tail import read_info

__all__ = ["list_tier", "rebuild_cold_list"]

_NOWHERE = "objects"
"""No directory of a store: a path in it is never that of a local file."""


class _Shown(ColdFiles):
    """One object as a file, by an entry that is in no list yet."""

    def __init__(self, fs: FileSystem, listing: ColdListing, tier: ObjectTier) -> None:
        super().__init__(fs, open_tier=lambda _: tier)
        self._shown = listing

    def _listing(self, directory: str) -> ColdListing | None:  # noqa: ARG002
        return self._shown


def rebuild_cold_list(
    fs: FileSystem, root: str, directory: str, location: Mapping[str, Any], tier: ObjectTier, damage: CorruptionError
) -> ColdRegister:
    """
    Replace the damaged or lost list in *directory* by what the objects say. Durable on return; damaged bytes are kept.

    Args:
        fs: the file system.
        root: of the store; damaged bytes are kept below it.
        directory: where the segments are, and the list.
        location: where the objects are to be.
        tier: the objects.
        damage: what is wrong with the list.

    Raises:
        CorruptionError: *damage*, when there is no object there: then it was another place, and nothing was changed.
        ObjectsUnavailableError: nobody answers; nothing was changed.
        OSError: the disk says so.
    """
    found = list_tier(fs, location, tier)
    if not found:
        raise damage
    path = f"{directory}/{COLD_LIST}"
    with contextlib.suppress(FileNotFoundError):  # lost, not damaged
        keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", COLD_LIST, fs.read_all(path, size_max=COLD_LIST_BYTES_MAX))
    register = ColdRegister(fs, directory, location)
    register.replace_all(found)
    return register


def list_tier(fs: FileSystem, location: Mapping[str, Any], tier: ObjectTier) -> list[ColdSegment]:
    """
    Return an entry for each segment that has an object, ascending, after reading all objects.

    Args:
        fs: any file system.
        location: where the objects are, as a list has it.
        tier: the objects.

    Raises:
        ObjectsUnavailableError: nobody answers.
    """
    where, folder = location_from_list(location)
    found: dict[int, ColdSegment] = {}
    for one in tier.list_below(f"{folder}/segments/"):
        name = parse_object_name(one.key.rpartition("/")[2])
        if name is None:
            continue
        seq, checksum = name
        entry = ColdSegment(seq, one.size_bytes, checksum, 0, None, None, None, "sent")
        known = found.get(seq)
        if one.key == object_key(folder, entry) and (known is None or known.state != "verified"):
            shown = _Shown(fs, ColdListing(where, folder, {seq: entry}), tier)
            found[seq] = _entry_of(shown, tier, one.key, entry)
    return _each_once(found[seq] for seq in sorted(found))


def _each_once(entries: Iterable[ColdSegment]) -> list[ColdSegment]:
    """Return *entries*, of which those are damaged that are the same segment under another number."""
    contents: set[tuple[int, int]] = set()
    kept = []
    for entry in entries:
        content = (entry.size_bytes, entry.crc32)
        if entry.state == "verified" and content in contents:
            entry = dataclasses.replace(entry, state="damaged")  # noqa: PLW2901
        contents.add(content)
        kept.append(entry)
    return kept


def _entry_of(shown: FileSystem, tier: ObjectTier, key: str, entry: ColdSegment) -> ColdSegment:
    if object_problem(tier, key, entry) is not None:
        return dataclasses.replace(entry, state="damaged")
    try:
        info = read_info(shown, f"{_NOWHERE}/{segment_name(entry.seq)}")
    except CorruptionError:
        return dataclasses.replace(entry, state="damaged")
    return cold_segment(info, entry.crc32, "verified")
