"""Settings of OTAP streams."""

from __future__ import annotations

from dataclasses import dataclass

from quiver.errors import SettingsError
from quiver.primitives.numeric_fields import require_numbers
from quiver.settings import MIB

__all__ = ["OtapSettings"]


@dataclass(frozen=True, slots=True)
class OtapSettings:
    """
    Settings of OTAP streams, in addition to those of all requests on the port.

    Attributes:
        streams_max: the maximum number of open streams; further clients must retry later.
        batches_in_flight_max: the maximum number of unanswered batches of a stream, after which reading pauses.
        stream_idle_s: a stream without a batch for this time is ended; the client opens another one when needed.
        dictionaries_bytes_max: the total size of the dictionaries of all streams. When it is exceeded, streams above
            their share are ended, and start again with small ones.
        tables_bytes_max: the total size of decoded batches that are being stored; further clients must retry later.
        message_bytes_max: the size of a batch, on the wire and after decompression.
        inflated_bytes_max: the size of the tables of a batch.
        stream_dictionaries_bytes_max: the size of the dictionaries of one stream.

    Raises:
        SettingsError: a value is out of range, or two values conflict.
    """

    streams_max: int = 256
    batches_in_flight_max: int = 16
    stream_idle_s: float = 600.0
    dictionaries_bytes_max: int = 256 * MIB
    tables_bytes_max: int = 256 * MIB
    message_bytes_max: int = 16 * MIB
    inflated_bytes_max: int = 128 * MIB
    stream_dictionaries_bytes_max: int = 64 * MIB

    def __post_init__(self) -> None:
        require_numbers(self)
        if self.streams_max < 1 or self.batches_in_flight_max < 1:
            raise SettingsError("streams_max and batches_in_flight_max must be at least 1")
        if self.stream_idle_s <= 0:
            raise SettingsError("stream_idle must be positive")
        if self.dictionaries_bytes_max < self.stream_dictionaries_bytes_max:
            raise SettingsError("max_dictionary_bytes must be large enough for the dictionaries of one stream")
        if self.tables_bytes_max < self.inflated_bytes_max:
            raise SettingsError("max_table_bytes must be large enough for one decoded batch")
