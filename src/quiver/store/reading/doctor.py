"""
Measurements of the disk below a directory, and their consequences, for `quiver doctor`.

The tests use temporary files in that directory: how long a sync takes, and whether links, locks, mappings and reserved
blocks work. Whether the disk keeps confirmed data when power is lost cannot be tested. That is judged by the kind of
file system and by how quickly it confirms a sync.
"""

from __future__ import annotations

import contextlib
import posixpath
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from quiver.clock import Clock
from quiver.errors import UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.kernel import KERNEL, describe_kernel
from quiver.settings import Settings

__all__ = ["Diagnosis", "Latency", "Remark", "diagnose"]

Rating = Literal["good", "watch", "bad"]

SAMPLES = 40
_BLOCK = bytes(range(256)) * 16
_RESERVE_BYTES = 1024 * 1024
_MOUNTS = "/proc/self/mounts"
_MOUNTS_BYTES_MAX = 16 * 1024 * 1024
_PREFIX = "quiver.doctor."
_SLOW_S = 0.02
_IMPLAUSIBLE_S = 0.00002
"""No device confirms a write this quickly: a cache in front of it does."""
_ROOM_BYTES = 1024**3
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OVER_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs",
    "ceph", "glusterfs", "lustre", "fuse.sshfs",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Latency:
    """The duration of one kind of step, in seconds, over `samples` of them."""

    step: str
    samples: int
    median_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class Remark:
    """One result: the subject of a test, its verdict, and what that means."""

    subject: str
    verdict: Rating
    finding: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """
    The state of the disk below `directory`.

    Attributes:
        directory: the directory that was examined.
        file_system: its kind; None if the system does not report it.
        free_bytes: the bytes that may still be written.
        latencies: how long syncs take.
        remarks: the results of all tests.
        survives: call → (what is lost when the process dies, what is lost with the power).
    """

    directory: str
    file_system: str | None
    free_bytes: int
    latencies: tuple[Latency, ...]
    remarks: tuple[Remark, ...]
    survives: tuple[tuple[str, str, str], ...]

    @property
    def is_fit(self) -> bool:
        """Whether a store can be stored there."""
        return all(remark.verdict != "bad" for remark in self.remarks)

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types."""
        survives = [{"call": call, "process_dies": dies, "power_is_lost": lost} for call, dies, lost in self.survives]
        return asdict(self) | {"is_fit": self.is_fit, "survives": survives}


def diagnose(
    fs: FileSystem,
    directory: str,
    *,
    clock: Clock,
    settings: Settings | None = None,
    samples: int = SAMPLES,
    on_progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """
    Test the disk below *directory*, which an open store may use. All test files are removed.

    Args:
        fs: the file system.
        directory: must exist.
        clock: used for the measurements.
        settings: of the store that is to be stored there; the defaults when None.
        samples: how many syncs to measure.
        on_progress: called with the name of each step.

    Raises:
        UsageError: the directory does not exist.
        OSError: nothing can be written there.
    """
    if not fs.exists(directory):
        raise UsageError(f"{directory}: there is no such directory")
    fs.list_dir(directory)  # raises NotADirectoryError with the name of a file
    kind = _kind_of(fs, directory)
    free = fs.free_bytes(directory)
    with _cleaned(fs, directory):
        latencies = _latencies(fs, directory, clock, samples, on_progress or _ignore)
        remarks = [
            _on_kind(kind),
            _on_sync(latencies[1], kind),
            _on_room(free),
            *_abilities(fs, directory),
            _on_kernel(),
        ]
    is_volatile = kind in _IN_MEMORY
    return Diagnosis(
        directory,
        kind,
        free,
        tuple(latencies),
        tuple(remarks),
        _survives(settings or Settings(), is_volatile=is_volatile),
    )


def _ignore(_where: str) -> None:
    """Ignore progress."""


@contextlib.contextmanager
def _cleaned(fs: FileSystem, directory: str) -> Iterator[None]:
    """Remove every file of a test, also those of an earlier one that was interrupted."""
    try:
        yield
    finally:
        for name in fs.list_dir(directory):
            if name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    fs.remove(f"{directory}/{name}")
        with contextlib.suppress(OSError):
            fs.sync_dir(directory)


def _kind_of(fs: FileSystem, directory: str) -> str | None:
    try:
        listed = fs.read_all(_MOUNTS, size_max=_MOUNTS_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None
    best, kind = "", None
    for line in listed.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        # If several are mounted at one place, the last one is visible.
        if _is_below(directory, mount) and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def _is_below(path: str, mount: str) -> bool:
    return posixpath.isabs(path) and f"{posixpath.normpath(path)}/".startswith(mount.rstrip("/") + "/")


def _latencies(
    fs: FileSystem, directory: str, clock: Clock, samples: int, on_progress: Callable[[str], None]
) -> list[Latency]:
    path, named = f"{directory}/{_PREFIX}sync", f"{directory}/{_PREFIX}name"
    appends: list[float] = []
    rewrites: list[float] = []
    names: list[float] = []
    file = fs.create_or_truncate(path)
    try:
        for what, seconds in (("sync of an appended block", appends), ("sync of an overwritten block", rewrites)):
            for at in range(samples):
                on_progress(what)
                started = clock.monotonic()
                file.pwrite(_BLOCK, at * len(_BLOCK))
                file.sync_data()
                seconds.append(clock.monotonic() - started)
    finally:
        file.close()
    for _ in range(max(samples // 4, 1)):
        on_progress("sync of a name")
        fs.create_or_truncate(path).close()
        fs.rename(path, named)
        started = clock.monotonic()
        fs.sync_dir(directory)
        names.append(clock.monotonic() - started)
    return [
        _latency("sync of an appended 4 KiB", appends),
        _latency("sync of an overwritten 4 KiB", rewrites),
        _latency("sync of a new name", names),
    ]


def _latency(step: str, seconds: list[float]) -> Latency:
    return Latency(step, len(seconds), statistics.median(seconds), max(seconds))


def _on_kind(kind: str | None) -> Remark:
    if kind is None:
        return Remark("file system", "watch", "its kind is unknown here; a store needs a local disk")
    if kind in _IN_MEMORY:
        return Remark("file system", "bad", f"{kind} is in memory: everything is lost with the power, or at a restart")
    if kind in _OVER_NETWORK:
        meaning = f"{kind} is a network or shared file system: locks and syncs may be unreliable there; not supported"
        return Remark("file system", "bad", meaning)
    if kind == "overlay":
        meaning = "overlay: the layer of a container is removed with the container; mount a volume"
        return Remark("file system", "watch", meaning)
    return Remark("file system", "good", f"{kind}")


def _on_sync(latency: Latency, kind: str | None) -> Remark:
    median = latency.median_s
    rate = f"about {1 / median:,.0f} durable ingests a second for one caller that waits" if median > 0 else "no time"
    if median < _IMPLAUSIBLE_S and kind not in _IN_MEMORY:
        meaning = f"confirmed in {_shown(median)}, faster than a disk can: confirmed data may not survive a power loss"
        return Remark("sync", "watch", meaning)
    if median > _SLOW_S:
        meaning = f"takes {_shown(median)}: {rate}; use concurrent callers, or ingest without durable=True"
        return Remark("sync", "watch", meaning)
    return Remark("sync", "good", f"takes {_shown(median)}, at worst {_shown(latency.worst_s)}: {rate}")


def _on_room(free: int) -> Remark:
    shown = f"{free / 1024**3:,.1f} GiB free"
    if free < _ROOM_BYTES:
        return Remark(
            "free space", "watch", f"{shown}: set retention.size_cap below that, or a full disk will stop ingest"
        )
    return Remark("free space", "good", shown)


def _on_kernel() -> Remark:
    return Remark("kernel", "good", describe_kernel() if KERNEL is not None else f"pure Python, {describe_kernel()}")


def _abilities(fs: FileSystem, directory: str) -> Iterator[Remark]:
    tried: tuple[tuple[str, Rating, str, str, Callable[[FileSystem, str], None]], ...] = (
        ("locks", "bad", "one writer at a time is enforced", "two writers could open one store", _try_locks),
        ("mapping", "bad", "segments are read without copying", "segments cannot be read", _try_mapping),
        ("reserved blocks", "watch", "a full disk is detected early", "zeros are written instead", _try_reserve),
        ("links", "watch", "a snapshot on the same disk shares its files", "a snapshot copies every file", _try_links),
    )
    for subject, otherwise, works, fails, step in tried:
        try:
            step(fs, f"{directory}/{_PREFIX}{subject.replace(' ', '-')}")
        except OSError as error:
            yield Remark(subject, otherwise, f"do not work here ({error.strerror or error}): {fails}")
        else:
            yield Remark(subject, "good", works)


def _try_locks(fs: FileSystem, path: str) -> None:
    lock = fs.try_lock(path, note="quiver doctor")
    if lock is None:
        raise OSError(f"{path} is locked by another process")
    try:
        second = fs.try_lock(path, note="quiver doctor, again")
        if second is not None:
            second.release()
            raise OSError("two owners got the same lock")
    finally:
        lock.release()


def _try_mapping(fs: FileSystem, path: str) -> None:
    _make(fs, path)
    mapping = fs.map_read(path)
    same = bytes(mapping.view()) == _BLOCK
    mapping.close()
    if not same:
        raise OSError("a mapping does not show the data that was written")


def _try_reserve(fs: FileSystem, path: str) -> None:
    file = fs.create_or_truncate(path)
    try:
        file.reserve(0, _RESERVE_BYTES)
    finally:
        file.close()


def _try_links(fs: FileSystem, path: str) -> None:
    _make(fs, path)
    fs.link(path, f"{path}.2")


def _make(fs: FileSystem, path: str) -> None:
    file = fs.create_or_truncate(path)
    try:
        file.pwrite(_BLOCK, 0)
    finally:
        file.close()


def _survives(settings: Settings, *, is_volatile: bool) -> tuple[tuple[str, str, str], ...]:
    interval = _shown(settings.wal_flush_interval_s)
    late = "nothing is lost" if settings.wal_flush_interval_s == 0 else f"at most the last {interval}"
    rows = [
        ("ingest(durable=True)", "nothing is lost", "nothing is lost"),
        ("ingest()", "nothing is lost", late),
        ("ingest(), durability: segment_only", "the open segment", "the open segment"),
        ("ingest(durable=True), durability: segment_only", "nothing is lost", "nothing is lost"),
        ("ack(), then a maintenance pass", "not delivered again", "not delivered again"),
        ("ack() before that", "delivered again", "delivered again"),
    ]
    if is_volatile:
        return tuple((call, dies, "everything is lost") for call, dies, _ in rows)
    return tuple(rows)


def _shown(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"
