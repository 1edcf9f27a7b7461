"""
The one active query of a fleet subscriber: the last one that started.

A query that starts replaces the owner's record by one with a higher epoch (`If-Match`), so of two that start at once,
one is first. An earlier query finds that out before its next batch or acknowledgement, and ends. Clocks are not
compared, and a query that died needs no time to be replaced.
"""

from __future__ import annotations

from quiver.errors import (
    FencedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
)
from quiver.metadata.ownership import OwnerRecord, decode_owner
from quiver.metadata.port import Entry
from quiver.objects.port import ObjectTier
from quiver.store.format.fleet.names import owner_key

__all__ = ["FleetOwner", "read_owner"]

_RECORD_BYTES_MAX = 65_536
_TRIES = 5
_REMEDY = (
    "each query needs a subscriber of its own; stop this one, or restart it to take the subscriber back from the other"
)


def read_owner(tier: ObjectTier, subscriber: str) -> tuple[str | None, OwnerRecord | None]:
    """
    Return the etag and the record of the query that runs *subscriber*; nothing if none ever did.

    Raises:
        UsageError: *subscriber* is not a valid id.
        CorruptionError: the record is damaged.
        ObjectsUnavailableError: the object store does not answer.
    """
    key = owner_key(subscriber)
    try:
        # The etag first: if the object changes in between, the next conditional write finds that out.
        etag = tier.head(key).etag
        return etag, decode_owner(Entry(key, tier.get(key, size_max=_RECORD_BYTES_MAX), 0))
    except ObjectNotFoundError:
        return None, None


class FleetOwner:
    """
    The right to run a subscriber. Make one with `FleetOwner.take`.

    Attributes:
        epoch: higher than that of every earlier owner.
    """

    def __init__(self, tier: ObjectTier, subscriber: str, epoch: int, etag: str | None) -> None:
        self.epoch = epoch
        self._tier = tier
        self._subscriber = subscriber
        self._etag = etag

    @classmethod
    def take(cls, tier: ObjectTier, subscriber: str, *, name: str, above: int) -> FleetOwner:
        """
        Become the owner of *subscriber*, durably on return.

        Args:
            tier: the objects of the fleet.
            subscriber: its name.
            name: of this query, for people.
            above: the highest epoch that was found in other objects: the record may have been lost.

        Raises:
            CorruptionError: the record is damaged.
            ObjectsUnavailableError: the object store does not answer, or other queries keep starting.
        """
        key = owner_key(subscriber)
        for _ in range(_TRIES):
            etag, found = read_owner(tier, subscriber)
            record = OwnerRecord(name, max(above, found.epoch if found else 0) + 1, 0.0, released=False)
            try:
                if etag is None:
                    written = tier.put(key, record.encode(), if_absent=True)
                else:
                    written = tier.put(key, record.encode(), if_match=etag)
            except (ObjectChangedError, ObjectExistsError):
                continue
            return cls(tier, subscriber, record.epoch, written.etag)
        raise ObjectsUnavailableError("put", key, "other queries of this subscriber keep starting")

    def check(self) -> None:
        """
        Check that no other query has become the owner. Costs one HEAD request.

        Raises:
            FencedError: another one has.
            ObjectsUnavailableError: the object store does not answer.
        """
        key = owner_key(self._subscriber)
        try:
            if self._tier.head(key).etag == self._etag:
                return
        except ObjectNotFoundError:
            raise self.lost(reason="lost its record: it was removed from the bucket") from None
        _, found = read_owner(self._tier, self._subscriber)
        if found is None:
            raise self.lost(reason="lost its record: it was removed from the bucket")
        raise self.lost(found.owner, found.epoch)

    def lost(self, owner: str = "", epoch: int = 0, *, reason: str = "") -> FencedError:
        """Return the error for a query that is no longer the owner."""
        return FencedError(
            owner_key(self._subscriber), epoch=self.epoch, owner=owner, owner_epoch=epoch, reason=reason, remedy=_REMEDY
        )
