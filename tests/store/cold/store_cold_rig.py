"""A store on the crash file system with an object tier, numbered bundles, and readers for both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa

import store_rig
from quiver.bundle import Bundle
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.settings import Settings
from quiver.store.format.cold_list import ColdList, decode_cold_list
from quiver.store.format.names import parse_segment_name
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import FaultObjects

ROOT = "/buffer"
COLD = "/cold"
LIST = f"{ROOT}/segments/quiver.cold"
WHERE = ObjectLocation.from_url(COLD)
SETTINGS = Settings(
    segment_bytes_max=2_000,
    wal_rotate_bytes=2_500,
    wal_bytes_max=40_000,
    wal_files_max=8,
    delete_grace_s=0.0,
    cold_objects=WHERE,
)


class Rig:
    """One disk, one clock, and one tier that can be made to fail; the store can be opened on them repeatedly."""

    def __init__(self, fs: FileSystem | None = None, **settings: object) -> None:
        self.fs = fs or CrashFileSystem()
        self.clock = ManualClock()
        self.observer = InMemoryObserver()
        self.tier = FaultObjects(DirectoryObjects(self.fs, COLD, clock=self.clock), clock=self.clock)
        self.settings = replace(SETTINGS, **settings)
        self.taken = 0

    def open(self, **settings: object) -> Store:
        chosen = replace(self.settings, **settings)
        return open_store(
            ROOT,
            chosen,
            fs=self.fs,
            clock=self.clock,
            observer=self.observer,
            background=False,
            objects=self.tier if chosen.cold_objects is not None else None,
        )

    def fill(self, store: Store, segments: int, *, each: int = 3) -> None:
        """Seal this many segments with this many bundles each, numbered consecutively."""
        for _ in range(segments):
            for _ in range(each):
                store.ingest(bundle_of(self.taken), durable=True)
                self.taken += 1
            store.seal()

    def local(self) -> list[int]:
        """The numbers of the segment files on the disk."""
        found = (parse_segment_name(name) for name in self.fs.list_dir(f"{ROOT}/segments"))
        return sorted(seq for seq in found if seq is not None)

    def objects(self) -> list[int]:
        """The numbers of the segments that have objects."""
        return [int(key.rpartition("/")[2][:16]) for key in self.names() if "/segments/" in key]

    def names(self) -> list[str]:
        """All keys."""
        return [info.key for info in self.tier.list_below("stores")]


def bundle_of(number: int) -> Bundle:
    """A bundle that contains its number."""
    slots = {30: pa.record_batch({"n": pa.array([number, number]), "text": pa.array(["x" * 20, f"row {number}"])})}
    return Bundle(slots)


def number_of(bundle: Bundle) -> int:
    """The number of a bundle, after checking that it is unchanged."""
    number = bundle[30]["n"][0].as_py()
    assert bundle == bundle_of(number), "a bundle came back changed"
    return number


def listed(fs: FileSystem) -> dict[int, str]:
    """Segment → state, according to the list on disk."""
    if not fs.exists(LIST):
        return {}
    answer = decode_cold_list(memoryview(fs.read_all(LIST, size_max=1 << 20)))
    assert isinstance(answer, Frame)
    assert isinstance(answer.value, ColdList)
    return {entry.seq: entry.state for entry in answer.value.entries}


def seen(fs: FileSystem) -> list[int]:
    """The numbers that a reader sees while the store is open."""
    reader = read(ROOT, fs=fs)
    found = [number_of(bundle) for _, bundle in reader.bundles()]
    assert not reader.problems, reader.problems
    return found


drain = partial(store_rig.drain, number_of=number_of)
