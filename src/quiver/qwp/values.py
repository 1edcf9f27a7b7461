"""Types for `Sender.row` that Python lacks."""

from __future__ import annotations

from dataclasses import dataclass

from quiver.errors import UsageError

__all__ = ["Char", "DateMillis", "Geohash", "Long256", "TimestampMicros", "TimestampNanos"]


@dataclass(frozen=True, slots=True)
class TimestampNanos:
    """A timestamp in nanoseconds since the Unix epoch, UTC."""

    value: int


@dataclass(frozen=True, slots=True)
class TimestampMicros:
    """A timestamp in microseconds since the Unix epoch, UTC."""

    value: int


@dataclass(frozen=True, slots=True)
class DateMillis:
    """A timestamp in milliseconds since the Unix epoch, UTC."""

    value: int


@dataclass(frozen=True, slots=True)
class Long256:
    """An integer from 0 to 2^256 - 1."""

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << 256:
            raise UsageError("a Long256 must be an integer from 0 to 2^256 - 1")


@dataclass(frozen=True, slots=True)
class Char:
    """One UTF-16 code unit, as a string of length one."""

    value: str

    def __post_init__(self) -> None:
        if len(self.value) != 1 or ord(self.value) > 0xFFFF:
            raise UsageError("a Char must be one character of the Basic Multilingual Plane")


@dataclass(frozen=True, slots=True)
class Geohash:
    """A cell on the surface of the earth: the lowest `precision` bits of `value`."""

    value: int
    precision: int

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= 60 or not 0 <= self.value < 1 << self.precision:
            raise UsageError("a Geohash must have 1 to 60 bits, and a value that fits into them")
