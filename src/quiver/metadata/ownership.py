"""
One owner at a time, on any metadata store, without comparing the clocks of two machines.

The owner's record has an epoch, one higher for each owner. Two mechanisms exclude a former owner:

- Its commits are conditional on the record: once another owner has written it, none of them succeeds.
- It stops by itself: `check` raises once the record was not renewed for its time to live, by its own clock. Another
  process takes over only after it has watched the record stay the same for that long, by *its* own clock. The owner
  counts from before its renewal, the other from after it, so the owner has always stopped first.

While the metadata store does not answer, the owner continues for its time to live: longer outages stop it, shorter ones
have no effect. A record that was released, or that has the same owner's name, is taken immediately: a name identifies a
directory that one process at a time can hold.
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
from quiver.invariant import invariant
from quiver.metadata.port import Entry, MetadataStore
from quiver.primitives.checksum import crc32

__all__ = ["OwnerRecord", "Ownership", "Watch", "acquire", "decode_owner"]

_TTL_S_MIN = 1.0
_TTL_S_MAX = 1e9
_KEPT_SHARE = 0.9
"""The owner stops a little early: two clocks need not run equally fast."""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """
    The value of an owner's key, as JSON.

    Attributes:
        owner: its name.
        epoch: one higher than the previous owner's.
        ttl_s: how long it may stay silent; 0 where only the epoch decides.
        released: whether it has ended.
    """

    owner: str
    epoch: int
    ttl_s: float
    released: bool

    def __post_init__(self) -> None:
        if not (self.epoch >= 0 and 0 <= self.ttl_s <= _TTL_S_MAX):  # NaN is within no bounds
            raise ValueError(f"epoch {self.epoch}, time to live {self.ttl_s:g} s")

    def encode(self) -> bytes:
        """Return the JSON text."""
        fields = {"owner": self.owner, "epoch": self.epoch, "ttl_s": self.ttl_s, "released": self.released}
        return json.dumps(fields).encode()


def decode_owner(entry: Entry) -> OwnerRecord:
    """
    Return the record in *entry*.

    Raises:
        CorruptionError: it is not the record of an owner.
    """
    try:
        fields = json.loads(entry.value)
        return OwnerRecord(
            str(fields["owner"]), int(fields["epoch"]), float(fields["ttl_s"]), released=bool(fields["released"])
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        reason = f"not a record of an owner: {error!r}; remove this key once no process uses it"
        raise CorruptionError(entry.key, 0, reason) from error


@dataclass(slots=True)
class Watch:
    """
    For how long another owner's record has been seen unchanged. Keep it from one `acquire` to the next.

    Attributes:
        revision: of the record, as it was seen first; −1 before anything was seen.
        since_s: when, by the monotonic clock.
        checksum: CRC-32 of the record's value: a metadata store that was created again restarts its revisions.
    """

    revision: int = -1
    since_s: float = 0.0
    checksum: int = 0

    def see(self, found: Entry | None, now_s: float) -> None:
        """Record the current state; the watch starts again if the record has changed."""
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
        key: of the record.
        owner: a name that one process at a time has, the same after a restart.
        ttl_s: how long the owner continues, and others wait, when the record is not renewed.
        clock: measures that, and waits.
        patience_s: how long to watch another owner's record; its time to live is enough if the owner is dead.
        watch: observations of earlier calls, which count, too.

    Raises:
        DirectoryInUseError: another owner is alive, or was not watched for long enough to know.
        CorruptionError: the record is damaged.
        MetadataUnavailableError: the store does not answer.
        SettingsError: a time to live of less than one second, or of decades.
    """
    if not _TTL_S_MIN <= ttl_s <= _TTL_S_MAX:
        raise SettingsError(f"ownership: a time to live is {_TTL_S_MIN:g} to {_TTL_S_MAX:g} s, not {ttl_s:g}")
    started = clock.monotonic()
    watch = watch or Watch()
    sleeping = threading.Condition()
    while True:
        found = store.get(key)
        now = clock.monotonic()  # after the answer: a watch never starts before the record was written
        record = decode_owner(found) if found else None
        revision_seen = found.revision if found else 0
        watch.see(found, now)
        is_free = record is None or record.released or record.owner == owner or now - watch.since_s >= record.ttl_s
        if is_free:
            mine = OwnerRecord(owner, record.epoch + 1 if record else 1, ttl_s, released=False)
            revision = store.commit({key: mine.encode()}, expect={key: revision_seen})
            if revision is not None:
                was_ours = record is not None and record.owner == owner and not record.released
                return Ownership(store, key, mine, revision, now, clock, was_ours=was_ours)
        elif now - started >= patience_s:
            raise _in_use(key, record, 0.0 if record is None else watch.since_s + record.ttl_s - now)
        with sleeping:
            clock.wait(sleeping, min(ttl_s, 1.0) / 4)


def _in_use(key: str, record: OwnerRecord | None, left_s: float) -> DirectoryInUseError:
    if record is None:
        return DirectoryInUseError(key, "another process")
    remedy = (
        "close it there, or, if that process is dead, wait: it is free once its owner has been silent for another "
        f"{math.ceil(round(left_s, 3))} s, the rest of its lease"
    )
    return DirectoryInUseError(key, f"owner {record.owner}", remedy=remedy, retry_after_s=left_s)


class Ownership:
    """
    The result of `acquire`. Thread-safe. Renew it about three times per time to live.

    Attributes:
        key: of the record.
        epoch: one higher than the previous owner's.
    """

    def __init__(
        self, store: MetadataStore, key: str, record: OwnerRecord, revision: int, since: float, clock: Clock,
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
        Check that no other process can be the owner now. Cheap: it does not contact the store.

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
        Renew the record: this owner is alive.

        Raises:
            FencedError: another owner took over.
            MetadataUnavailableError: the store does not answer; try again before the time to live ends.
        """
        with self._guard:
            since = self._clock.monotonic()
            if self._commit({self.key: self._record.encode()}, {}) is None:
                # Only the record was expected to be unchanged, and it was ours when it was read again just now.
                raise MetadataUnavailableError(f"{self.key}: the record keeps changing")
            self._deadline = since + self._record.ttl_s * _KEPT_SHARE

    def commit(self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, int] | None = None) -> int | None:
        """
        Commit as `MetadataStore.commit` does, if this is still the owner at that moment.

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
                invariant(revision > self._revision, "a commit has a later revision than the owner's record")
                if self.key in changes:
                    self._revision = revision
                return revision
            if not self._reread():
                return None
        return None

    def _reread(self) -> bool:
        # A renewal whose answer was lost has changed the record, which is still ours.
        found = self._store.get(self.key)
        record = decode_owner(found) if found else None
        if found is None or record is None or (record.owner, record.epoch) != (self._record.owner, self.epoch):
            self._lost = FencedError(
                self.key,
                epoch=self.epoch,
                owner=record.owner if record else "",
                owner_epoch=record.epoch if record else 0,
                reason="lost its record: it was removed from the metadata store",
            )
            raise self._lost
        changed = found.revision != self._revision
        self._revision = found.revision
        return changed

    def release(self, changes: Mapping[str, bytes | None] | None = None) -> None:
        """
        Release ownership together with *changes*, so that the next owner need not wait. Write nothing afterwards.

        Raises:
            FencedError: another owner took over already; *changes* were not written.
            MetadataUnavailableError: the store does not answer; the next owner waits.
        """
        with self._guard:
            released_record = OwnerRecord(self._record.owner, self.epoch, self._record.ttl_s, released=True)
            self._commit({**(changes or {}), self.key: released_record.encode()}, {})
            self._end("was released by its owner")

    def abandon(self) -> None:
        """
        Stop being the owner without asking the store: `check` and `commit` refuse from now on, in all threads.

        The record is unchanged: an owner of the same name takes it back immediately, others wait. This returns
            immediately,
        even while another thread waits for the store.
        """
        self._end("was given up by its owner")

    def give_up(self) -> None:
        """
        Stop being the owner of something that could not be opened; release it for others if the store answers.

        If this owner had it before without releasing it, others wait as usual: only its disk may have some data.
        """
        if not self._was_ours:
            with contextlib.suppress(FencedError, MetadataUnavailableError):
                self.release()
        self.abandon()

    def _end(self, reason: str) -> None:
        self._lost = self._lost or FencedError(
            self.key, epoch=self.epoch, owner="", owner_epoch=self.epoch, reason=reason
        )
