"""`quiver.open`: one store in a directory, or one for each core of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import overload

from quiver.bundle import OTAP, Adapter
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, SettingsError, UsageError
from quiver.lazy_names import renamed_keyword
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason
from quiver.primitives.forked import refuse_in_children
from quiver.settings import Settings
from quiver.store.cores.capacity import SharedCapacity
from quiver.store.cores.claims import Evictor
from quiver.store.cores.instances import find_cores
from quiver.store.cores.store import MultiCoreStore, OpenCore
from quiver.store.format.cores import CORE_MAX, core_directory
from quiver.store.format.names import SEGMENTS_DIR, WAL_DIR
from quiver.store.limits.capacity import AloneCapacity, OwnCap
from quiver.store.limits.disk_budget import DiskShare
from quiver.store.opening import open_store
from quiver.store.reading.check import refuse_snapshot
from quiver.store.store import Store
from quiver.store.subscribers.progress_store import create_if_missing, find_subscribers
from quiver.store.subscribers.state import Segments

__all__ = ["open_path"]


@overload
def open_path(
    path: str | os.PathLike[str],
    settings: Settings | None = ...,
    *,
    cores: None = ...,
    fs: FileSystem = ...,
    clock: Clock = ...,
    observer: Observer | None = ...,
    adapter: Adapter = ...,
    background: bool = ...,
    share: DiskShare | None = ...,
) -> Store: ...


@overload
def open_path(
    path: str | os.PathLike[str],
    settings: Settings | None = ...,
    *,
    cores: int,
    core: int | None = ...,
    share_cap: bool = ...,
    fs: FileSystem = ...,
    clock: Clock = ...,
    observer: Observer | None = ...,
    adapter: Adapter = ...,
    background: bool = ...,
    share: DiskShare | None = ...,
) -> MultiCoreStore: ...


@renamed_keyword("files", "fs")
def open_path(
    path: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    cores: int | None = None,
    core: int | None = None,
    share_cap: bool = True,
    fs: FileSystem = REAL_FILES,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
    adapter: Adapter = OTAP,
    background: bool = True,
    share: DiskShare | None = None,
) -> Store | MultiCoreStore:
    """
    Create or recover the store in directory *path*: one store, or with *cores* one for each core.

    On return everything that was durable is back: sealed segments, logged bundles, every subscriber's progress.

    Args:
        path: the directory; created with its parents if missing.
        settings: the settings of the store. `retention.size_cap` covers all cores together; every other limit applies
            to each core.
        cores: how many stores share the directory, each with its own log; None for a single store. The number may
            differ from last time: the bundles of removed cores are delivered, too.
        core: open only this one, 0 to *cores* - 1; other processes open the others.
        share_cap: let a core use what the others do not use. False divides the cap evenly.
        fs: the file system.
        clock: the clock.
        observer: receives counts and events; None keeps them in memory and logs events to the `quiver` logger.
        adapter: the slot table.
        background: run the flush and maintenance threads; without them the caller calls `maintain()`.
        share: the share in a budget over several directories that includes this one.

    Raises:
        DirectoryInUseError: another process, or this one, has it open.
        UnsupportedFormatError: it was written by a newer version or under another adapter.
        SettingsError: the size cap is too small for so many cores.
        UsageError: *cores* or *core* is out of range, or the directory has cores and the call does not, or vice versa.
    """
    root = directory_name(path)
    settings = _checked(settings)
    observer = observer or InMemoryObserver()
    found = find_cores(fs, root) if fs.exists(root) else []
    if cores is None:
        if core is not None:
            raise UsageError(f"core={core} also needs cores: how many cores share the directory")
        if found:
            raise UsageError(f"{root} has {len(found)} cores; open it with cores={max(found) + 1}, or another number")
        return _Place(root, settings, 1, True, fs, clock, observer, adapter, background, share).open_single()
    _check_cores(fs, root, cores, core)
    one = _settings_of_one(settings, cores, len({*found, *range(cores)}), share_cap=share_cap)
    # make_dirs makes each missing level durable, so no core's directory can be lost after its segments were written.
    fs.make_dirs(root)
    place = _Place(root, one, cores, core is None, fs, clock, observer, adapter, background, share)
    store = MultiCoreStore(
        root,
        settings,
        cores=cores,
        core=core,
        open_core=place.open_shared if share_cap else place.open_alone,
        fs=fs,
        clock=clock,
        observer=observer,
        adapter=adapter,
        background=background,
    )
    refuse_in_children(store, f"the store {root}")
    return store


def _checked(settings: Settings | None) -> Settings:
    if settings is None:
        return Settings()
    if not isinstance(settings, Settings):
        raise UsageError(f"settings is a {type(settings).__name__}: write quiver.Settings.from_mapping({{…}})")
    return settings


@dataclass(frozen=True, slots=True)
class _Place:
    """
    A directory of cores, and how the store of each is opened. *settings* are those of one core; *has_all* means that
    this process has all of them.
    """

    root: str
    settings: Settings
    cores: int
    has_all: bool
    fs: FileSystem
    clock: Clock
    observer: Observer
    adapter: Adapter
    background: bool
    share: DiskShare | None

    def open_single(self) -> Store:
        """Open the one store of a directory without cores."""
        cap = OwnCap(self.settings.size_cap_bytes, self.share, self.root)
        store = open_store(
            self.root,
            self.settings,
            fs=self.fs,
            clock=self.clock,
            observer=self.observer,
            adapter=self.adapter,
            background=self.background,
            capacity=AloneCapacity(cap),
        )
        if self.share is not None:
            self.share.attach(store)
        return store

    def open_alone(self, core: int) -> OpenCore:
        """Open a core that has an even share of the cap, without coordination."""
        return OpenCore(core, self._open_store(core, None))

    def open_shared(self, core: int) -> OpenCore:
        """Open a core under the shared cap."""
        evictor = Evictor(self.fs, self.root, core, clock=self.clock, observer=self.observer)
        capacity = self._capacity(core, evictor)
        store = self._open_store(core, capacity)
        try:
            capacity.attach(store.internals.claimed_bytes)
            if self.share is not None:
                self.share.attach(store)
        except BaseException as error:
            store.close()
            if isinstance(error, NO_FILE_ERRORS):
                raise CorruptionError(error.filename or store.path, 0, no_file_reason(error)) from error
            raise
        return OpenCore(core, store, capacity, evictor)

    def _open_store(self, core: int, capacity: SharedCapacity | None) -> Store:
        directory = f"{self.root}/{core_directory(core)}"
        # With a process per core, each may have subscribers that no other has: no core waits for those of another.
        if self.has_all and not self.fs.exists(f"{directory}/{WAL_DIR}"):
            self._await_known(directory)
        return open_store(
            directory,
            self.settings,
            fs=self.fs,
            clock=self.clock,
            observer=self.observer,
            adapter=self.adapter,
            background=self.background,
            capacity=capacity,
        )

    def _await_known(self, directory: str) -> None:
        """
        Create progress for every subscriber of the other cores in a new core, at its start. Durable on return.

        Otherwise a subscriber whose program returns late would miss what the others had finished by then. This comes
        before the log is created: a crash leaves a core that is still new.
        """
        others = (f"{self.root}/{core_directory(other)}" for other in find_cores(self.fs, self.root))
        known = sorted({name for other in others for name in find_subscribers(self.fs, other)})
        if not known:
            return
        self.fs.make_dirs(directory)
        nothing = Segments((), next_seq=0)
        for name in known:
            create_if_missing(
                self.fs, directory, name, start="earliest", segments=nothing, profile=self.settings.format_profile
            )

    def _capacity(self, core: int, evictor: Evictor) -> SharedCapacity:
        settings = self.settings
        cap = settings.size_cap_bytes

        def evict(bytes_wanted: int) -> dict[int, int]:
            """
            Free finished segments; under `drop_oldest` also unfinished ones, from cores that have more than an even
            share.
            """
            others = [other for other in find_cores(self.fs, self.root) if other != core]
            greedy: list[int] = []
            if settings.size_cap_policy == "drop_oldest" and cap is not None:
                even = cap // self.cores
                if capacity.used_bytes() < even:
                    greedy = [other for other in others if capacity.bytes_of(other) > even]
            return evictor.evict(others, bytes_wanted, drop_from=greedy)

        capacity = SharedCapacity(
            self.fs,
            self.root,
            core,
            cap=OwnCap(cap, self.share, self.root),
            # A core that only waits to be drained accepts no bundles, and claims nothing beyond its size.
            segment_bytes=settings.segment_bytes_max if core < self.cores else 0,
            clock=self.clock,
            evict=evict,
        )
        return capacity


def _check_cores(fs: FileSystem, root: str, cores: int, core: int | None) -> None:
    if not isinstance(cores, int) or not 1 <= cores <= CORE_MAX + 1:
        raise UsageError(f"cores={cores!r} is not 1 to {CORE_MAX + 1}")
    if core is not None and not (isinstance(core, int) and 0 <= core < cores):
        raise UsageError(f"core={core!r} is not 0 to {cores - 1}")
    refuse_snapshot(fs, root)
    if fs.exists(f"{root}/{WAL_DIR}") or fs.exists(f"{root}/{SEGMENTS_DIR}"):
        raise UsageError(
            f"{root} has a single store. To continue with cores, close it and move everything in it into "
            f"{root}/{core_directory(0)}/; its data then belongs to core 0"
        )


def _settings_of_one(settings: Settings, cores: int, directories: int, *, share_cap: bool) -> Settings:
    """Return the settings of one core, with an even part of the cap unless it is shared. Each part must be usable."""
    cap = settings.size_cap_bytes
    if cap is None:
        return settings
    try:
        replace(settings, size_cap_bytes=cap // cores)
        divided = replace(settings, size_cap_bytes=cap // directories)
    except SettingsError as error:
        raise SettingsError(
            f"retention.size_cap ({cap} bytes) over {directories} cores leaves each {cap // directories} bytes: {error}"
        ) from error
    return settings if share_cap else divided
