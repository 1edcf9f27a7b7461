"""
One size cap over several stores, in one process or in many: each claims what it may use, and reads the others' claims.

A claim is the store's size on disk plus one segment. It is stored in a small file in the store's directory, so
processes need no messages. A store whose claim is used up writes a larger one first and reads the others afterwards;
if all together exceed the cap, it withdraws the larger claim. If two stores claim the last space at the same time, at
least one sees the other, so together they never claim more than the cap, with two exceptions: a claim is never below
one segment, so that no core is shut out by the others, and data that is on disk already is claimed in any case.

A claim is valid as long as its file is rewritten regularly. Once that stops (the process has died, hangs, or its
segments are being deleted right now), the sizes of the files next to it are added up instead.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from quiver.clock import Clock
from quiver.errors import DirectoryInUseError
from quiver.primitives.disk.file_system import File, FileSystem, Lock
from quiver.primitives.disk.lock import holder_of
from quiver.primitives.scan import Frame
from quiver.store.cores.claims import take_claim
from quiver.store.cores.instances import find_cores
from quiver.store.format.cores import (
    CORE_CLAIM,
    EVICT_LOCK,
    core_directory,
    decode_claim,
    encode_claim,
)
from quiver.store.limits.capacity import OwnCap
from quiver.store.limits.tree_bytes import file_bytes

__all__ = ["EvictElsewhere", "SharedCapacity", "directory_bytes"]

EvictElsewhere = Callable[[int], dict[int, int]]
"""Frees this many bytes in the directories of other cores, if it can; returns the bytes freed by core."""

STALE_S = 5.0
"""A claim that was not rewritten for this long is no longer trusted."""
_RENEW_S = STALE_S / 2
"""A store that did not rewrite its claim for this long claims again before it uses any of it: no one may trust it."""
_LISTED_S = 0.5
"""The added-up sizes of a directory's files are valid for this long."""
_LOOK_S = 0.002
"""At the cap, the claims of the others are read at most this often."""
_LOCK_RETRY_S = 0.005
_EVICT_S = 0.05
"""If nothing could be evicted, the next attempt waits this long."""
_CLAIM_BYTES_MAX = 4096
_CAPS_MAX = 2
"""A claim above this many times the cap is not trusted."""


def directory_bytes(fs: FileSystem, directory: str) -> int:
    """Return the size of all files in *directory* and its direct subdirectories. Files that disappear count as 0."""
    total = 0
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        try:
            within = fs.list_dir(path)
        except NotADirectoryError:
            within = None
        except FileNotFoundError:
            continue
        for one in [path] if within is None else [f"{path}/{inner}" for inner in within]:
            with contextlib.suppress(FileNotFoundError):
                total += fs.stat(one).size_bytes
    return total


@dataclass(slots=True)
class _Peer:
    """The last known state of another core."""

    signature: tuple[int, int, bytes] | None = None
    changed_s: float = -math.inf
    doubts: int = 1
    """How often it must still change before it is trusted: once at first, since its process may have died."""
    listed_bytes: int = 0
    listed_s: float = -math.inf
    bytes: int = 0
    """The bytes that it counted for at the last check."""


class SharedCapacity:
    """
    The `Capacity` of one core's store. Thread-safe.

    Args:
        fs: the file system.
        root: the directory of the cores.
        core: whose capacity this is; its directory exists.
        cap: on all cores together.
        segment_bytes: the size of a claim beyond the used bytes.
        clock: the clock.
        evict: see `EvictElsewhere`.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        core: int,
        *,
        cap: OwnCap,
        segment_bytes: int,
        clock: Clock,
        evict: EvictElsewhere,
    ) -> None:
        self.core = core
        self._cap = cap
        self.claim_bytes = 0
        """The bytes that this core may use without asking, as the others see it."""
        self.claim_writes = 0
        """How often it wrote its claim."""
        self._fs = fs
        self._root = root
        self._step_bytes = segment_bytes
        self._clock = clock
        self._evict = evict
        self._own_seen = 0
        self._own_bytes: Callable[[], int] | None = None
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._others_bytes = 0
        self._above = _Peer()
        """The size of the files that the cores share, in the directory above them. No core claims it."""
        self._published_s = -math.inf
        self._look_again_s = -math.inf
        self._evict_again_s = -math.inf
        self._file: File | None = None

    @property
    def cap_bytes(self) -> int | None:
        """The current cap on all cores together."""
        return self._cap.now_bytes

    @property
    def largest_bytes(self) -> int | None:
        """The largest value that it may reach."""
        return self._cap.largest_bytes

    @property
    def cap_name(self) -> str:
        """The setting that it comes from."""
        return self._cap.name

    def attach(self, own_bytes: Callable[[], int]) -> None:
        """
        Start to claim. Before that the core is not open, and its claim may belong to another process.

        Args:
            own_bytes: the store's size on disk and in its open segment; called under any lock of the store.

        Raises:
            OSError: the claim's file cannot be created.
        """
        path = f"{self._root}/{core_directory(self.core)}/{CORE_CLAIM}"
        try:
            self._file = self._fs.open_write(path)
        except FileNotFoundError:
            self._file = self._fs.create_or_truncate(path)
        self._own_bytes = own_bytes
        self.beat()

    # Called by the store.

    def others_bytes(self) -> int:
        """
        Return how much of the cap is not available to this core now: everything that it did not claim.

        It claims one segment ahead; `make_room` admits a bundle that needs more than that.
        """
        if self.cap_bytes is None or self._own_bytes is None:
            return 0
        own = self._own_bytes()
        now = self._clock.monotonic()
        if own < self._own_seen:
            with self._lock:
                self._give_back(own)
        self._own_seen = own
        if own + self._step_bytes // 2 > self.claim_bytes or now - self._published_s > _RENEW_S:
            with self._lock:
                if now >= self._look_again_s:
                    self._claim(own, own + self._step_bytes, may_shrink=False)
        return self._unavailable_bytes()

    def make_room(self, bytes_wanted: int) -> int:
        """
        Claim more; if there is no more, evict in the directories of the others. Return the bytes gained.

        Raises:
            OSError: the disk refused.
        """
        if self.cap_bytes is None or self._own_bytes is None:
            return 0
        now = self._clock.monotonic()
        with self._lock:
            own = self._own_bytes()
            if own < self._own_seen:
                self._give_back(own)
            self._own_seen = own
            before = self._unavailable_bytes()
            # The space that it may use already was not enough.
            target = max(own, self.claim_bytes) + bytes_wanted
            self._claim(own, max(target, own + self._step_bytes), may_shrink=False)
            missing = target + self._others_bytes - self.cap_bytes
        if missing > 0 and now >= self._evict_again_s:
            freed = [core for core, size in self._evict(missing).items() if size]
            with self._lock:
                for core in freed:
                    # Its owner may publish its old size once more before it records the eviction; until then, add up
                    # files.
                    peer = self._peers.setdefault(core, _Peer())
                    peer.doubts = 2
                    peer.listed_s = -math.inf
                if freed:
                    self._claim(self._own_bytes(), target, may_shrink=False)
                else:
                    self._evict_again_s = now + _EVICT_S
        return max(0, before - self._unavailable_bytes())

    def keep_others_out(self) -> Lock:
        """
        Take the lock that deleting in this core's directory needs; see `Capacity.keep_others_out`.

        Raises:
            DirectoryInUseError: another core has held it for longer than deleting takes.
            OSError: the disk refused.
        """
        directory = f"{self._root}/{core_directory(self.core)}"
        deadline = self._clock.monotonic() + STALE_S
        condition = threading.Condition()
        while (lock := take_claim(self._fs, directory, who="its owner")) is None:
            if self._clock.monotonic() >= deadline:
                path = f"{directory}/{EVICT_LOCK}"
                raise DirectoryInUseError(path, holder_of(self._fs, path) or "another core")
            with condition:
                self._clock.wait(condition, _LOCK_RETRY_S)
        return lock

    def _give_back(self, own: int) -> None:
        """
        Claim only what is used, because usage has decreased: the next bytes are requested again.

        Another core may have deleted here, and may already use the space. Otherwise this one would delete segments that
        are already deleted, and count them as freed.
        """
        self.claim_bytes = min(self.claim_bytes, own)
        self._look_again_s = -math.inf

    def _unavailable_bytes(self) -> int:
        """Return how much of the cap is not for this core: all that it did not claim, even if no other core did."""
        return max(0, (self.cap_bytes or 0) - self.claim_bytes)

    @property
    def seen_bytes(self) -> int:
        """Bytes that the other cores had or claimed at the last check, plus the files above all cores."""
        return self._others_bytes

    def used_bytes(self) -> int:
        """Return this core's size on disk and in its open segment; 0 before it is attached."""
        return 0 if self._own_bytes is None else self._own_bytes()

    def bytes_of(self, core: int) -> int:
        """Return the last known claim or size of *core*, another core."""
        peer = self._peers.get(core)
        return 0 if peer is None else peer.bytes

    # Called by the maintenance tick.

    def beat(self) -> None:
        """Rewrite the claim even if it did not change: that shows the others that this core is alive."""
        with self._lock:
            if self._own_bytes is not None:
                own = self._own_bytes()
                self._claim(own, own + self._step_bytes, may_shrink=True)
                self._publish(self.claim_bytes)

    def close(self) -> None:
        """Claim only what is used, and close the file. Idempotent."""
        with self._lock:
            if self._file is not None and self._own_bytes is not None:
                self._publish(self._own_bytes())
                self._file.close()
                self._file = None

    # The claim.

    def _claim(self, own: int, wanted: int, *, may_shrink: bool) -> None:
        now = self._clock.monotonic()
        if self.cap_bytes is None:
            self.claim_bytes = own
            return
        if now - self._published_s > _RENEW_S:
            # It was paused, or could not write: the others relied on its files, and may have used what it claimed.
            self.claim_bytes = 0
        if not may_shrink:
            wanted = max(wanted, self.claim_bytes)
        before = self.claim_bytes
        # First the claim, then the check of the others: in the other order, two could both take the same space.
        if wanted > before and not self._publish(wanted):
            return
        self._others_bytes = self._look(now)
        granted = max(self._step_bytes, own, min(wanted, self.cap_bytes - self._others_bytes))
        if granted != wanted or wanted < before:
            self._publish(granted)
        self.claim_bytes = granted
        self._look_again_s = now + _LOOK_S if granted < wanted else now

    def _publish(self, claim_bytes: int) -> bool:
        if self._file is None:
            return False
        try:
            self._file.pwrite(encode_claim(claim_bytes), 0)
        except OSError:
            # The others will soon add up the files. Until they read a larger claim, it must not be used.
            return False
        self._published_s = self._clock.monotonic()
        self.claim_writes += 1
        return True

    # The others.

    def _look(self, now_s: float) -> int:
        try:
            cores = find_cores(self._fs, self._root)
            above = self._listed_bytes(self._above, now_s, self._root, file_bytes)
            return above + sum(self._peer_bytes(core, now_s) for core in cores if core != self.core)
        except OSError:
            return self._others_bytes

    def _peer_bytes(self, core: int, now_s: float) -> int:
        peer = self._peers.setdefault(core, _Peer())
        directory = f"{self._root}/{core_directory(core)}"
        claim = self._read_claim(f"{directory}/{CORE_CLAIM}", peer, now_s)
        if claim is not None:
            peer.bytes = claim
            # In case it stops being trusted: sizes that were added up before are outdated.
            peer.listed_s = -math.inf
            return claim
        peer.bytes = self._listed_bytes(peer, now_s, directory, directory_bytes)
        return peer.bytes

    def _listed_bytes(
        self, place: _Peer, now_s: float, directory: str, add_up: Callable[[FileSystem, str], int]
    ) -> int:
        if now_s - place.listed_s >= _LISTED_S:
            try:
                place.listed_bytes = add_up(self._fs, directory)
            except FileNotFoundError:
                place.listed_bytes = 0
            place.listed_s = now_s
        return place.listed_bytes

    def _read_claim(self, path: str, peer: _Peer, now_s: float) -> int | None:
        try:
            stat = self._fs.stat(path)
            data = self._fs.read_all(path, size_max=_CLAIM_BYTES_MAX)
        except FileNotFoundError:
            return None
        # The contents, too: file systems have coarse timestamps.
        signature = (stat.modified_ns, stat.inode, data)
        if signature != peer.signature:
            if peer.signature is not None and peer.doubts:
                peer.doubts -= 1
            peer.signature, peer.changed_s = signature, now_s
            # It may have grown since its files were added up.
            peer.listed_s = -math.inf
        if peer.doubts or now_s - peer.changed_s > STALE_S:
            return None
        answer = decode_claim(memoryview(data))
        # A claim far above the cap is only valid if it dates from a larger cap: then its files are as large.
        is_valid = isinstance(answer, Frame) and answer.value <= _CAPS_MAX * (self.largest_bytes or 0)
        return answer.value if isinstance(answer, Frame) and is_valid else None
