"""
One size cap over several stores, in one process or in many: each claims what it may use, and reads what others claim.

A claim is what its store has on disk and one segment more. It lies in a small file in the store's directory, so
nobody asks anybody. A store whose claim is used up writes a larger one first and looks at the others afterwards;
when all together come to more than the cap it takes it back. Of two that reach for the last room at the same time at
least one sees the other, so together they never claim more than the cap, but for two cases: a claim is never below one
segment, so that no core is shut out by the others, and what is on disk already is claimed whatever the cap.

A claim counts as long as its file goes on being written. When it stopped (the process died, hangs, or is being
deleted from at this moment) the files beside it are added up instead.
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
from quiver.store.format.cores import (
    CORE_CLAIM,
    EVICT_LOCK,
    core_directory,
    decode_claim,
    encode_claim,
    parse_core_directory,
)
from quiver.store.limits.capacity import OwnCap
from quiver.store.limits.tree_bytes import file_bytes

__all__ = ["EvictElsewhere", "SharedCapacity", "directory_bytes", "find_cores"]

EvictElsewhere = Callable[[int], dict[int, int]]
"""Frees this many bytes in the directories of other cores, if it can; bytes freed by core."""

STALE_S = 5.0
"""A claim that was not written for this long is not believed any more."""
_RENEW_S = STALE_S / 2
"""Who did not write its own claim for this long claims anew before it uses any of it: nobody may believe it now."""
_LISTED_S = 0.5
"""Adding up the files of a directory holds this long."""
_LOOK_S = 0.002
"""At the cap the claims of the others are read at most this often."""
_LOCK_RETRY_S = 0.005
_EVICT_S = 0.05
"""When nothing could be evicted, it is tried again after this long."""
_CLAIM_BYTES_MAX = 4096
_CAPS_MAX = 2
"""A claim above this many times the cap is not believed."""


def find_cores(fs: FileSystem, root: str) -> list[int]:
    """Return the numbers of all cores that have a directory in *root*, ascending."""
    found = (parse_core_directory(name) for name in fs.list_dir(root))
    return sorted(core for core in found if core is not None)


def directory_bytes(fs: FileSystem, directory: str) -> int:
    """Return the bytes of all files in *directory* and the directories right below it. What vanishes meanwhile is 0."""
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
    """What was last seen of another core."""

    signature: tuple[int, int, bytes] | None = None
    changed_s: float = -math.inf
    doubts: int = 1
    """How many times it must still be seen to change before it is believed: once at first, a process may be gone."""
    listed_bytes: int = 0
    listed_s: float = -math.inf
    bytes: int = 0
    """What it counted for when it was last looked at."""


class SharedCapacity:
    """
    The `Capacity` of one core's store. Thread-safe.

    Args:
        fs: the file system.
        root: the directory that holds the cores.
        core: whose capacity this is; its directory exists.
        cap: on all cores together.
        segment_bytes: the size of a claim beyond what is used.
        clock: where time comes from.
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
        """What this core may use without asking, as the others see it."""
        self.claim_writes = 0
        """How often it told the others."""
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
        """What the cores share, in files above them. Nobody claims it."""
        self._published_s = -math.inf
        self._look_again_s = -math.inf
        self._evict_again_s = -math.inf
        self._file: File | None = None

    @property
    def cap_bytes(self) -> int | None:
        """The cap on all cores together, at this moment."""
        return self._cap.now_bytes

    @property
    def largest_bytes(self) -> int | None:
        """The largest that it may become."""
        return self._cap.largest_bytes

    @property
    def cap_name(self) -> str:
        """The setting that it comes from."""
        return self._cap.name

    def attach(self, own_bytes: Callable[[], int]) -> None:
        """
        Begin to claim. Until then the core is not open, and its claim may be somebody else's.

        Args:
            own_bytes: what the store has on disk and in its open segment; called under any lock of the store.

        Raises:
            OSError: the claim's file cannot be made.
        """
        path = f"{self._root}/{core_directory(self.core)}/{CORE_CLAIM}"
        try:
            self._file = self._fs.open_write(path)
        except FileNotFoundError:
            self._file = self._fs.create_or_truncate(path)
        self._own_bytes = own_bytes
        self.beat()

    # What the store asks.

    def others_bytes(self) -> int:
        """
        Return what of the cap is not for this core at this moment: all that it did not claim.

        It claims a segment ahead; a bundle that takes more than that is let in by `make_room`.
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
        return self._shut_out_bytes()

    def make_room(self, bytes_wanted: int) -> int:
        """
        Claim more, and if there is no more evict in the directories of the others; how many bytes that gained.

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
            before = self._shut_out_bytes()
            # What it may use already did not do.
            target = max(own, self.claim_bytes) + bytes_wanted
            self._claim(own, max(target, own + self._step_bytes), may_shrink=False)
            missing = target + self._others_bytes - self.cap_bytes
        if missing > 0 and now >= self._evict_again_s:
            freed = [core for core, size in self._evict(missing).items() if size]
            with self._lock:
                for core in freed:
                    # Its owner may publish once more what it had before it takes note; add up its files until it did.
                    peer = self._peers.setdefault(core, _Peer())
                    peer.doubts = 2
                    peer.listed_s = -math.inf
                if freed:
                    self._claim(self._own_bytes(), target, may_shrink=False)
                else:
                    self._evict_again_s = now + _EVICT_S
        return max(0, before - self._shut_out_bytes())

    def keep_others_out(self) -> Lock:
        """
        Take the lock that deleting in this core's directory needs; see `Capacity.keep_others_out`.

        Raises:
            DirectoryInUseError: another core has it, for longer than deleting takes.
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
        Claim no more than what there is, because that became less: it is asked for anew.

        Another core may have deleted here, and uses the room already. This one then deletes, and counts as freed, what
        is gone.
        """
        self.claim_bytes = min(self.claim_bytes, own)
        self._look_again_s = -math.inf

    def _shut_out_bytes(self) -> int:
        """Return how much of the cap is not for this core: all that it did not claim, also what nobody claimed yet."""
        return max(0, (self.cap_bytes or 0) - self.claim_bytes)

    @property
    def seen_bytes(self) -> int:
        """What the other cores had or claimed when they were last looked at, and what is above all cores."""
        return self._others_bytes

    def used_bytes(self) -> int:
        """Return what this core has on disk and in its open segment; 0 before it is attached."""
        return 0 if self._own_bytes is None else self._own_bytes()

    def bytes_of(self, core: int) -> int:
        """Return what *core*, another one, was last seen to claim or to have."""
        peer = self._peers.get(core)
        return 0 if peer is None else peer.bytes

    # What a maintenance tick does.

    def beat(self) -> None:
        """Write the claim anew, also when it did not change: that is how the others know that this core is alive."""
        with self._lock:
            if self._own_bytes is not None:
                own = self._own_bytes()
                self._claim(own, own + self._step_bytes, may_shrink=True)
                self._publish(self.claim_bytes)

    def close(self) -> None:
        """Claim no more than what is there, and let go of the file. Idempotent."""
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
            # It was stopped, or could not write: the others went by its files, and may have used what it claimed.
            self.claim_bytes = 0
        if not may_shrink:
            wanted = max(wanted, self.claim_bytes)
        before = self.claim_bytes
        # First the claim, then a look at the others: the other way round two could both take the same room.
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
            # The others will soon add up the files. Until they read more it must not be used.
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
            # Should it not be believed any more: what was added up before is out of date.
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
        # The contents, too: file systems count time in steps.
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
        # Far above the cap is only who had it when the cap became less: the files say that, too.
        is_lawful = isinstance(answer, Frame) and answer.value <= _CAPS_MAX * (self.largest_bytes or 0)
        return answer.value if isinstance(answer, Frame) and is_lawful else None
