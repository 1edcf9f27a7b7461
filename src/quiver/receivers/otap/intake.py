"""
The handling of OTAP messages: decode, check, store as tables, answer.

Every stream has its own decoder; their total memory is limited here. Tables are stored with plain ids, and are marked
so. A batch is confirmed only after the store has made it as safe as `ack` requires.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.bundle import OTAP, Bundle
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, InvalidBundleError, QuiverError, UsageError
from quiver.observe import Observer
from quiver.otap import BatchStatus, StatusCode, StreamDecoder, StreamLimits
from quiver.otap.tables.digest import digest_of_columns, digest_of_tables
from quiver.otap.tables.from_otlp import tables_of_request
from quiver.otap.tables.to_otlp import request_of_tables
from quiver.otap.tables.validation import validate_tables
from quiver.primitives.budget import ByteBudget
from quiver.primitives.scan import Damage
from quiver.receivers.header_capture import add_headers
from quiver.receivers.inflate import inflate
from quiver.receivers.intake import Encoding, IntakeStore, Window
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.zstd_frames import inflate_zstd

__all__ = ["OtapIntake", "OtapStream", "Taken"]

_GRACE_OF_LIMIT = 2
"""A stream is ended regularly at this fraction of its dictionary limit; at the limit it would be refused."""


@dataclass(frozen=True, slots=True)
class Taken:
    """
    The result of a message.

    Attributes:
        status: the answer to the client; None if the message does not even identify its batch.
        stored: whether the answer must wait for a sync.
        last: whether the stream must end after this message.
        why: the reason to end the stream, for humans.
    """

    status: BatchStatus | None
    stored: bool = False
    last: bool = False
    why: str = ""


class OtapIntake:
    """
    Handles the batches of all streams for one store. Thread-safe.

    Args:
        store: the destination of tables.
        settings: the limits.
        clock: passed to the memory budget.
        observer: counts batches by signal and outcome.
        window: recently stored batches, which are confirmed again without being stored again.
        capture_headers: the names of stream headers to store on each resource of the batches.
    """

    def __init__(
        self,
        store: IntakeStore,
        settings: OtapSettings,
        observer: Observer,
        *,
        clock: Clock = SYSTEM_CLOCK,
        window: Window | None = None,
        capture_headers: tuple[str, ...] = (),
    ) -> None:
        self._captured = capture_headers
        self._window = window
        self._store = store
        self._settings = settings
        self._observer = observer
        self._budget = ByteBudget("OTAP tables being stored", settings.tables_bytes_max, clock=clock)
        # Decompressed bytes may be many times larger than the message: only one message at a time may use that much.
        self._opening = threading.Lock()
        self._limits = StreamLimits(
            message_bytes_max=settings.message_bytes_max,
            inflated_bytes_max=settings.inflated_bytes_max,
            dictionaries_bytes_max=settings.stream_dictionaries_bytes_max,
        )
        self._lock = threading.Lock()
        self._dictionaries: dict[OtapStream, int] = {}

    def open(self, signal: str, headers: Iterable[tuple[str, str | bytes]] = ()) -> OtapStream:
        """
        Return the state of a new stream with *headers*. The caller must call its `close`.

        Raises:
            UsageError: the signal is unknown.
        """
        stream = OtapStream(self, signal, StreamDecoder(signal, self._limits), tuple(headers) if self._captured else ())
        with self._lock:
            self._dictionaries[stream] = 0
        return stream

    @property
    def streams(self) -> int:
        """The number of open streams."""
        with self._lock:
            return len(self._dictionaries)

    def close(self, stream: OtapStream) -> None:
        """Release a stream and its dictionaries."""
        with self._lock:
            self._dictionaries.pop(stream, None)

    def take(self, stream: OtapStream, message: bytes, encoding: Encoding = "identity") -> Taken:
        """Decode the next message of *stream* and store its tables, without a sync. Never raises for its content."""
        taken, outcome = self._take(stream, message, encoding)
        self._observer.count("quiver.receiver.batches_total", signal=stream.signal, outcome=outcome)
        return taken

    def _take(self, stream: OtapStream, message: bytes, encoding: Encoding) -> tuple[Taken, str]:
        decoder = stream.decoder
        with self._opening:
            opened = self._opened(message, encoding)
            if isinstance(opened, Damage):
                return Taken(None, last=True, why=opened.reason), "invalid"
            batch = decoder.try_decode(opened)
            if isinstance(batch, Damage):
                # Later messages depend on this one: the stream ends after all earlier batches have been answered.
                status = None
                if decoder.batch_id is not None:
                    status = BatchStatus(decoder.batch_id, StatusCode.INVALID_ARGUMENT, batch.reason)
                return Taken(status, last=True, why=batch.reason), "invalid"
            tables: Mapping[int, pa.RecordBatch] | Damage = batch.tables
            found = validate_tables(batch.tables, stream.signal, batch.decoded)
            digest = None
            if isinstance(found, Damage):
                tables = found
            elif self._captured and batch.tables:
                tables = _with_headers(batch.tables, stream, self._captured)
                digest = None if self._window is None or isinstance(tables, Damage) else digest_of_tables(tables)
            elif self._window is not None:
                digest = digest_of_columns(found.columns, found.rows)
        why = self._outgrown(stream)
        if isinstance(tables, Damage):
            status = BatchStatus(batch.batch_id, StatusCode.INVALID_ARGUMENT, tables.reason)
            return Taken(status, last=bool(why), why=why), "invalid"
        if not tables:
            return Taken(BatchStatus(batch.batch_id, StatusCode.OK), last=bool(why), why=why), "empty"
        code, text, outcome = self._once(Bundle(tables), digest if isinstance(digest, bytes) else None)
        if outcome == "stored":
            items = OTAP.item_count({slot: table.num_rows for slot, table in tables.items()})
            self._observer.count("quiver.receiver.items_total", items or 0, signal=stream.signal)
            self._observer.count("quiver.receiver.bytes_total", len(opened), signal=stream.signal)
        status = BatchStatus(batch.batch_id, code, text)
        return Taken(status, stored=code == StatusCode.OK, last=bool(why), why=why), outcome

    def _opened(self, message: bytes, encoding: Encoding) -> bytes | Damage:
        size_max = self._limits.message_bytes_max
        if encoding == "identity":
            return message
        open_message = inflate if encoding == "gzip" else inflate_zstd
        inflated = open_message(message, size_max=size_max)
        if inflated is None:
            return Damage(0, f"the message is too large: the limit is {size_max} bytes after decompression")
        return inflated

    def _once(self, bundle: Bundle, digest: bytes | None) -> tuple[StatusCode, str, str]:
        """Store a batch unless it is already stored: a client whose stream broke sends it again on another one."""
        window = self._window
        if window is None or digest is None:
            return self._keep(bundle)[:3]
        try:
            if not window.begin(digest):
                return StatusCode.OK, "", "duplicate"
        except CapacityError as full:
            return StatusCode.UNAVAILABLE, f"{full}; send it again in {full.retry_after_s:g} s", "full"
        except QuiverError as error:
            return StatusCode.UNAVAILABLE, str(error), "unavailable"
        stored, receipt = False, None
        try:
            code, text, outcome, receipt = self._keep(bundle)
            stored = code == StatusCode.OK
        finally:
            window.finish(digest, stored=stored, receipt=receipt)
        return code, text, outcome

    def _keep(self, bundle: Bundle) -> tuple[StatusCode, str, str, Any]:
        """Store a batch. Return the answer, and the store's receipt."""
        size = bundle.nbytes
        try:
            self._budget.reserve(size)
        except (CapacityError, UsageError) as full:
            return StatusCode.UNAVAILABLE, str(full), "full", None
        try:
            receipt = self._store.ingest(bundle)
        except CapacityError as full:
            return StatusCode.UNAVAILABLE, f"{full}; send it again in {full.retry_after_s:g} s", "full", None
        except InvalidBundleError as invalid:
            return StatusCode.INVALID_ARGUMENT, str(invalid), "invalid", None
        except (QuiverError, OSError) as error:
            # The store failed or is closed: the batch may not be stored, so the client must keep it.
            return StatusCode.UNAVAILABLE, str(error), "unavailable", None
        finally:
            self._budget.release(size)
        return StatusCode.OK, "", "stored", receipt

    def _outgrown(self, stream: OtapStream) -> str:
        """Return why the stream should end because of its dictionaries; empty if it need not."""
        own = stream.decoder.dictionary_bytes
        with self._lock:
            if stream in self._dictionaries:
                self._dictionaries[stream] = own
            total, streams = sum(self._dictionaries.values()), len(self._dictionaries)
        if own * _GRACE_OF_LIMIT > self._limits.dictionaries_bytes_max:
            return f"the dictionaries of the stream have {own} bytes; open another"
        if total > self._settings.dictionaries_bytes_max and own * streams >= total:
            return f"the dictionaries of all streams have {total} bytes; open another"
        return ""


def _with_headers(
    tables: Mapping[int, pa.RecordBatch], stream: OtapStream, names: tuple[str, ...]
) -> Mapping[int, pa.RecordBatch] | Damage:
    """
    Return *tables* with the stream's *headers* in *names* on each resource. Converts them to a request and back, so
    that the result equals that of an OTLP request with these headers.
    """
    restored = request_of_tables(tables, stream.signal)
    if isinstance(restored, Damage):
        return restored
    written = add_headers(restored.data, stream.signal, stream.headers, names=names)
    if isinstance(written, Damage):
        return written
    converted = tables_of_request(written, stream.signal)
    if isinstance(converted, Damage):
        return converted
    if len(converted.tables) > 1:
        return Damage(0, "with the captured headers, the batch exceeds one set of tables")
    return converted.tables[0] if converted.tables else {}


class OtapStream:
    """One stream: its decoder and its share of the limits. Not thread-safe."""

    def __init__(
        self, intake: OtapIntake, signal: str, decoder: StreamDecoder, headers: tuple[tuple[str, str | bytes], ...] = ()
    ) -> None:
        self.signal = signal
        self.headers = headers
        self.decoder = decoder
        self._intake = intake

    def take(self, message: bytes, encoding: Encoding = "identity") -> Taken:
        """Handle the next message; see `OtapIntake.take`."""
        return self._intake.take(self, message, encoding)

    def close(self) -> None:
        """End the stream. Idempotent."""
        self._intake.close(self)
