"""
One owner at a time, on any metadata store, without comparing the clocks of two machines.

The owner's record carries an epoch, one higher for each owner. Two things keep a former owner out:

- What it commits is conditional on the record: once another has written it, nothing of the former's goes through.
- It stops by itself: `check` refuses once the record was not renewed for its time to live, by its own clock. Another
  takes over only after it has watched the record stay the same for that long, by *its* own clock. The owner counts
  from before its renewal, the other from after it, so the owner has always stopped first.

Where the metadata store does not answer, the owner goes on for its time to live: longer outages stop it, shorter
ones it does not notice. A record that was let go, or that carries the same owner's name, is taken at once: a name
stands for a directory that one process at a time can hold.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from quiver.clock import Clock
from quiver.errors import CorruptionError, DirectoryInUseError, FencedError, MetadataUnavailableError, SettingsError
from quiver.metadata.port import Entry, MetadataStore
from quiver.primitives.checksum import crc32

__all__ = ["Ownership", "Watch", "acquire"]

_TTL_S_MIN = 1.0
_TTL_S_MAX = 1e9
_KEPT_SHARE = 0.9
"""The owner stops a little early: two clocks need not run equally fast."""


@dataclass(frozen=True, slots=True)
class _Record:
    owner: str
    epoch: int
    ttl_s: float
    released: bool

    def __post_init__(self) -> None:
        if not (self.epoch >= 0 and 0 <= self.ttl_s <= _TTL_S_MAX):  # NaN is within no bounds
            raise ValueError(f"epoch {self.epoch}, time to live {self.ttl_s:g} s")

    def encode(self) -> bytes:
        fields = {"owner": self.owner, "epoch": self.epoch, "ttl_s": self.ttl_s, "released": self.released}
        return json.dumps(fields).encode()


def _decode(entry: Entry) -> _Record:
    try:
        fields = json.loads(entry.value)
        return _Record(
            str(fields["owner"]), int(fields["epoch"]), float(fields["ttl_s"]), released=bool(fields["released"])
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        reason = f"no record of an owner: {error!r}; remove this key once no process has the topic open"
        raise CorruptionError(entry.key, 0, reason) from error


@dataclass(slots=True)
class Watch:
    """
    For how long another owner's record has been seen unchanged. Keep it from one `acquire` to the next.

    Attributes:
        revision: of the record, as it was seen first; −1 before anything was seen.
        since_s: when, by the monotonic clock.
        checksum: CRC-32 of the record's value: a metadata store that was made again counts its revisions again, too.
    """

    revision: int = -1
    since_s: float = 0.0
    checksum: int = 0

    def see(self, found: Entry | None, now_s: float) -> None:
        """Take note of the record as it is now; the watch begins again when it has changed."""
        seen = (found.revision, crc32(found.value)) if found else (0, 0)
        if (self.revision, self.checksum) != seen:
            (self.revision, self.checksum), self.since_s = seen, now_s


def acquire(
    store: MetadataStore,
    key: str,
    *,
    owner: str,
    ttl_s: float,
    clock: Clock,
    patience_s: float = 0.0,
    watch: Watch | None = None,
) -> Ownership:
    """
    Become the owner of *key*.

    Args:
        store: where the record is.
        key: names the record.
        owner: a name that one process at a time has, the same after a restart.
        ttl_s: how long the owner goes on, and others wait, when the record is not renewed.
        clock: measures that, and waits.
        patience_s: how long to watch another owner's record; its time to live is enough when it is dead.
        watch: what earlier calls saw of it counts, too.

    Raises:
        DirectoryInUseError: another owner is alive, or was not watched for long enough to know.
        CorruptionError: the record is not one.
        MetadataUnavailableError: the store does not answer.
        SettingsError: a time to live under one second, or of decades.
    """
    if not _TTL_S_MIN <= ttl_s <= _TTL_S_MAX:
        raise SettingsError(f"ownership: a time to live is {_TTL_S_MIN:g} to {_TTL_S_MAX:g} s, not {ttl_s:g}")
    started = clock.monotonic()
    watch = watch or Watch()
    sleeping = threading.Condition()
    while True:
        found = store.get(key)
        now = clock.monotonic()  # after the answer: nobody watches a record from before it was written
        record = _decode(found) if found else None
        revision_seen = found.revision if found else 0
        watch.see(found, now)
        is_free = record is None or record.released or record.owner == owner or now - watch.since_s >= record.ttl_s
        if is_free:
            mine = _Record(owner, record.epoch + 1 if record else 1, ttl_s, released=False)
            revision = store.commit({key: mine.encode()}, expect={key: revision_seen})
            if revision is not None:
                was_ours = record is not None and record.owner == owner and not record.released
                return Ownership(store, key, mine, revision, now, clock, was_ours=was_ours)
        elif now - started >= patience_s:
            raise _in_use(key, record, 0.0 if record is None else watch.since_s + record.ttl_s - now)
        with sleeping:
            clock.wait(sleeping, min(ttl_s, 1.0) / 4)


def _in_use(key: str, record: _Record | None, left_s: float) -> DirectoryInUseError:
    if record is None:
        return DirectoryInUseError(key, "another process")
    remedy = (
        "close it there, or, if that process is dead, wait: it is free once its owner has been silent for another "
        f"{math.ceil(round(left_s, 3))} s, the rest of its lease"
    )
    return DirectoryInUseError(key, f"owner {record.owner}", remedy=remedy, retry_after_s=left_s)


class Ownership:
    """
    What `acquire` returns. Thread-safe. Renew it about every third of its time to live.

    Attributes:
        key: names the record.
        epoch: one higher than the owner's before.
    """

    def __init__(
        self, store: MetadataStore, key: str, record: _Record, revision: int, since: float, clock: Clock,
        *, was_ours: bool = False,
    ) -> None:  # fmt: skip
        self.key = key
        self.epoch = record.epoch
        self._store = store
        self._record = record
        self._revision = revision
        self._clock = clock
        self._guard = threading.Lock()
        self._lost: FencedError | None = None
        self._was_ours = was_ours
        self._deadline = since + record.ttl_s * _KEPT_SHARE

    def __repr__(self) -> str:
        return f"Ownership({self.key!r}, epoch={self.epoch})"

    @property
    def renew_every_s(self) -> float:
        """How often to call `renew`."""
        return self._record.ttl_s / 3

    def check(self) -> None:
        """
        Return when nobody else can be the owner now. Cheap: nothing is asked of the store.

        Raises:
            FencedError: another owner took over.
            MetadataUnavailableError: the record was not renewed for too long; `renew` may still succeed.
        """
        if self._lost is not None:
            raise self._lost
        if self._clock.monotonic() >= self._deadline:
            raise MetadataUnavailableError(
                f"{self.key}: epoch {self.epoch} could not be renewed in time; it may be taken over"
            )

    def renew(self) -> None:
        """
        Say that this owner is alive.

        Raises:
            FencedError: another owner took over.
            MetadataUnavailableError: the store does not answer; try again before the time to live is over.
        """
        with self._guard:
            since = self._clock.monotonic()
            if self._commit({self.key: self._record.encode()}, {}) is None:
                # Nothing but the record was expected, and it was ours when it was read again just now.
                raise MetadataUnavailableError(f"{self.key}: the record keeps changing")
            self._deadline = since + self._record.ttl_s * _KEPT_SHARE

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """
        Commit as `MetadataStore.commit` does, if this is still the owner at that very moment.

        Raises:
            FencedError: another owner took over; nothing happened.
        """
        with self._guard:
            return self._commit(changes, expect or {})

    def _commit(self, changes: Mapping[str, bytes | None], expect: Mapping[str, int]) -> int | None:
        if self._lost is not None:
            raise self._lost
        for _ in range(2):
            revision = self._store.commit(changes, expect={**expect, self.key: self._revision})
            if revision is not None:
                if self.key in changes:
                    self._revision = revision
                return revision
            if not self._reread():
                return None
        return None

    def _reread(self) -> bool:
        # A renewal whose answer was lost has changed the record, and it is ours all the same.
        found = self._store.get(self.key)
        record = _decode(found) if found else None
        if found is None or record is None or (record.owner, record.epoch) != (self._record.owner, self.epoch):
            self._lost = FencedError(
                self.key,
                epoch=self.epoch,
                owner=record.owner if record else "",
                owner_epoch=record.epoch if record else 0,
                reason="lost its record: somebody removed it from the metadata store",
            )
            raise self._lost
        changed = found.revision != self._revision
        self._revision = found.revision
        return changed

    def release(self, changes: Mapping[str, bytes | None] | None = None) -> None:
        """
        Give up ownership together with *changes*, so that the next owner need not wait. Write nothing more afterwards.

        Raises:
            FencedError: another owner took over already; *changes* were not written.
            MetadataUnavailableError: the store does not answer; the next owner waits.
        """
        with self._guard:
            gone = _Record(self._record.owner, self.epoch, self._record.ttl_s, released=True)
            self._commit({**(changes or {}), self.key: gone.encode()}, {})
            self._end("was released by its owner")

    def abandon(self) -> None:
        """
        Stop being the owner without asking the store: `check` and `commit` refuse from now on, in all threads.

        The record stays as it is: an owner of the same name takes it back at once, others wait. Returns at once, also
        while another thread waits for the store.
        """
        self._end("was given up by its owner")

    def give_up(self) -> None:
        """
        Stop being the owner of something that could not be opened: released for others, as far as the store answers.

        One that had it before, and had not released it, is waited for as usual: its disk may have what no other has.
        """
        if not self._was_ours:
            with contextlib.suppress(FencedError, MetadataUnavailableError):
                self.release()
        self.abandon()

    def _end(self, reason: str) -> None:
        self._lost = self._lost or FencedError(
            self.key, epoch=self.epoch, owner="", owner_epoch=self.epoch, reason=reason
        )
