"""
The record of a node in the bucket. Only its last writer replaces it, so two stores with one identity find each other.

::

    open        the record of the last run is replaced, if it is still the one that was read
    run         its own last version is replaced                          another version: another store is running
    conflict    the other version is replaced by one in state `conflict`  so the other store stops, too
    close       its own last version is replaced by one in state `stopped`
"""

from __future__ import annotations

from quiver.errors import DirectoryInUseError, ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from quiver.objects.port import ObjectTier
from quiver.primitives.scan import Frame
from quiver.store.format.fleet.names import node_key
from quiver.store.format.fleet.node_record import (
    NODE_RECORD_BYTES_MAX,
    NodeRecord,
    decode_node_record,
    encode_node_record,
)

__all__ = ["NodeClaim", "in_use"]

_REMEDY = (
    "if its disk is a copy of this one, close that store and remove quiver.id, quiver.tier and segments/quiver.cold "
    "there, so that it gets an identity of its own; then open this one again"
)


def in_use(identity: str, holder: str) -> DirectoryInUseError:
    """Return the error for a node whose identity another store uses."""
    return DirectoryInUseError(f"the identity {identity}", holder, remedy=_REMEDY)


class NodeClaim:
    """
    The record of one node. One thread at a time.

    Args:
        identity: of the node.
        boot: random, different whenever the store is opened.
    """

    def __init__(self, identity: str, boot: str) -> None:
        self._key = node_key(identity)
        self._identity = identity
        self._boot = boot
        self._etag: str | None = None
        self._is_first = True

    def write(self, tier: ObjectTier, record: NodeRecord, *, next_number: int) -> None:
        """
        Replace the record, durably on return.

        Args:
            tier: the objects of the fleet.
            record: the new record.
            next_number: no segment of this store has this number or a higher one.

        Raises:
            DirectoryInUseError: another store with the same identity wrote the record. It finds a record in state
                `conflict` next, and stops uploading. Or this is the first call, and the record has more segments than
                this store, which is an old copy then. The record is unchanged.
            ObjectsUnavailableError: the object store does not answer. The record may have been written.
        """
        data = encode_node_record(record)
        if self._is_first:
            self._etag, before = self._read(tier)
            if before is not None and before.next_segment > next_number:
                holder = f"node {before.name}, which uploaded segment {before.next_segment - 1}"
                raise in_use(self._identity, f"{holder}; the next segment here is {next_number}")
        try:
            if self._etag is None:
                self._etag = tier.put(self._key, data, if_absent=True).etag
            else:
                self._etag = tier.put(self._key, data, if_match=self._etag).etag
        except (ObjectChangedError, ObjectExistsError):
            etag, found = self._read(tier)
            if found is not None and found.boot == self._boot:
                self._etag = etag  # a write whose answer was lost
                return
            self._object(tier, record, etag, found)
            raise in_use(self._identity, "another store" if found is None else f"node {found.name}") from None
        self._is_first = False

    def _read(self, tier: ObjectTier) -> tuple[str | None, NodeRecord | None]:
        """Return the etag and the record; no record if it does not exist or is damaged."""
        try:
            # The etag first: if the object changes in between, the next write finds that out.
            etag = tier.head(self._key).etag
            answer = decode_node_record(memoryview(tier.get(self._key, size_max=NODE_RECORD_BYTES_MAX)))
        except ObjectNotFoundError:
            return None, None
        return etag, answer.value if isinstance(answer, Frame) else None

    def _object(self, tier: ObjectTier, record: NodeRecord, etag: str | None, found: NodeRecord | None) -> None:
        """Let the other store find that it is not alone."""
        if etag is None or (found is not None and found.state == "conflict"):
            return
        try:
            tier.put(self._key, encode_node_record(record.in_state("conflict")), if_match=etag)
        except (ObjectChangedError, ObjectNotFoundError):
            return  # it is writing at this moment, and finds the same with its next write
