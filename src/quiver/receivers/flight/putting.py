"""The messages of a stream that a client writes into a store: decode, check, store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from quiver.bundle import Bundle, batch_bytes
from quiver.errors import InvalidBundleError, UsageError
from quiver.primitives.budget import ByteBudget
from quiver.primitives.scan import Damage
from quiver.receivers.flight.answers import sequence_of
from quiver.receivers.flight.batches import BatchDecoder, BatchLimits
from quiver.receivers.flight.bundles import bundle_of_rows
from quiver.receivers.flight.command import Command
from quiver.receivers.flight.messages import FlightData
from quiver.receivers.flight.sources import ServedStore

__all__ = ["BatchPut", "StorePut"]


class BatchPut(ABC):
    """
    One stream of batches. Not thread-safe.

    Args:
        limits: the limits of batches.
        budget: the memory for batches that are being stored, shared by all streams.
        capacity_wait_s: how long a batch waits for memory.
    """

    def __init__(self, limits: BatchLimits, budget: ByteBudget, capacity_wait_s: float) -> None:
        self._decoder = BatchDecoder(limits)
        self._budget = budget
        self._wait_s = capacity_wait_s
        self._count = 0

    def take(self, message: FlightData) -> dict[str, Any] | None:
        """
        Store the batch in *message*, without a sync. Return its acknowledgement; None if it has no batch.

        Raises:
            UsageError: the message is invalid; nothing of it was stored.
            CapacityError: there is no space; nothing of it was stored.
            StoreFailedError, StoreClosedError, OSError: the batch may not be stored.
        """
        if not message.header:
            return None
        batch = self._decoder.take(message)
        if batch is None:
            return None
        if isinstance(batch, Damage):
            raise InvalidBundleError(f"batch {self._count} of the stream: {batch.reason}")
        sequence = sequence_of(message.metadata, self._count)
        size = min(batch_bytes(batch), self._budget.cap_bytes)
        self._budget.reserve(size, timeout=self._wait_s)
        try:
            receipt = self._keep(batch, sequence, is_numbered=bool(message.metadata))
        except UsageError as invalid:
            raise InvalidBundleError(f"batch {self._count} of the stream: {invalid}") from invalid
        finally:
            self._budget.release(size)
        self._count += 1
        return receipt

    @abstractmethod
    def _keep(self, batch: pa.RecordBatch, sequence: int, *, is_numbered: bool) -> dict[str, Any]:
        """Store *batch*, whose number is *sequence*, and return its acknowledgement."""


class StorePut(BatchPut):
    """
    One stream into a store: each batch is one bundle.

    Args:
        served: the store.
        command: names a slot, or says that batches are complete bundles.
        limits: the limits of batches.
        budget: the memory for batches that are being stored, shared by all streams.
        capacity_wait_s: how long a batch waits for memory, and for space in the store.

    Raises:
        UsageError: the command is invalid.
        FlightRefusedError: the store is served for reading only.
    """

    def __init__(
        self, served: ServedStore, command: Command, limits: BatchLimits, budget: ByteBudget, capacity_wait_s: float
    ) -> None:
        command.only("a put", "slot", "bundles")
        if (command.slot is None) == (command.bundles is not True):
            raise UsageError('a put needs a slot, as in {"slot": "logs"}, or {"bundles": true}')
        super().__init__(limits, budget, capacity_wait_s)
        self._store = served.writable()
        self._adapter = served.adapter
        self._slot = None if command.slot is None else served.adapter.slot(command.slot)
        self._limits = limits

    def _keep(self, batch: pa.RecordBatch, sequence: int, *, is_numbered: bool) -> dict[str, Any]:  # noqa: ARG002
        if batch.num_rows:
            if self._slot is None:
                bundle = bundle_of_rows(batch, self._adapter, self._limits)
            else:
                bundle = Bundle({self._slot: batch}, adapter=self._adapter)
            self._store.ingest(bundle, timeout=self._wait_s)
        return {"sequence": sequence}
