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
    How OTAP streams are received, beside what holds for every request on the port.

    Attributes:
        streams_max: streams open at once; more are told to come later.
        batches_in_flight_max: batches of a stream that wait for their status; then nothing more of it is read.
        stream_idle_s: a stream without a batch for so long is ended; the client opens another when it needs one.
        dictionaries_bytes_max: what the dictionaries of all streams take together. Over it, the streams that hold
            more than their share are ended, and begin anew with small ones.
        tables_bytes_max: what decoded batches that are being stored take together; more are told to come later.
        message_bytes_max: a batch on the wire, and once decompressed as a whole.
        inflated_bytes_max: what the tables of a batch take.
        stream_dictionaries_bytes_max: what the dictionaries of one stream take.

    Raises:
        SettingsError: out of range, or two settings contradict each other.
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
            raise SettingsError("max_dictionary_bytes must hold the dictionaries of one stream")
        if self.tables_bytes_max < self.inflated_bytes_max:
            raise SettingsError("max_table_bytes must hold one decoded batch")
