"""
Rebuilds a damaged or missing cold list from the objects: their names, their checksums, and their metadata.

Each object is read completely, so `verified` in the new list is true. An object that does not match its name is listed
as damaged, and the next pass of the tier moves it to quarantine. A segment that was finished, but whose object was not
removed yet, is listed again. All subscribers have still finished it, so it is removed again.
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
"""A path outside any store, so that it never refers to a local file."""


class _Shown(ColdFiles):
    """One object as a file, with an entry that is not in a list yet."""

    def __init__(self, fs: FileSystem, listing: ColdListing, tier: ObjectTier) -> None:
        super().__init__(fs, open_tier=lambda _: tier)
        self._shown = listing

    def _listing(self, directory: str) -> ColdListing | None:  # noqa: ARG002
        return self._shown


def rebuild_cold_list(
    fs: FileSystem, root: str, directory: str, location: Mapping[str, Any], tier: ObjectTier, damage: CorruptionError
) -> ColdRegister:
    """
    Replace the damaged or missing list in *directory*. Durable on return; damaged bytes are kept.

    Args:
        fs: the file system.
        root: of the store; damaged bytes are kept below it.
        directory: where the segments and the list are.
        location: of the objects.
        tier: the objects.
        damage: the error from reading the list.

    Raises:
        CorruptionError: *damage*, when there are no objects: then the location is wrong, and nothing was changed.
        ObjectsUnavailableError: the object store does not answer; nothing was changed.
        OSError: the disk reported an error.
    """
    found = list_tier(fs, location, tier)
    if not found:
        raise damage
    path = f"{directory}/{COLD_LIST}"
    with contextlib.suppress(FileNotFoundError):  # it may be missing
        keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", COLD_LIST, fs.read_all(path, size_max=COLD_LIST_BYTES_MAX))
    register = ColdRegister(fs, directory, location)
    register.replace_all(found)
    return register


def list_tier(fs: FileSystem, location: Mapping[str, Any], tier: ObjectTier) -> list[ColdSegment]:
    """
    Return an entry for each segment that has an object, ascending, after reading all objects.

    Args:
        fs: any file system.
        location: of the objects, in the form that a list has.
        tier: the objects.

    Raises:
        ObjectsUnavailableError: the object store does not answer.
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
    """Return *entries*; those with the segment of an earlier one under another number are marked as damaged."""
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
