"""
Settings of the store: frozen, with units in the names, checked against each other when made.

The documents' keys, nested or dotted, with human sizes and durations, become these through
`Settings.from_mapping`. Clock, files and observers are not settings: they are handed in.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quiver.errors import SettingsInvalid

__all__ = ["GIB", "KIB", "MIB", "Durability", "Profile", "Settings", "parse_duration_s", "parse_size_bytes"]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Profile = Literal["spec", "otap"]
Durability = Literal["wal", "segment_only"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h|d)", re.IGNORECASE)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size_bytes(value: object, *, key: str = "size") -> int:
    """
    Return bytes for ``33554432``, ``"32MiB"`` or ``"32 MB"`` (binary with an i, decimal without).

    Raises:
        SettingsInvalid: not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SettingsInvalid(f"{key}: {value!r} is not a size; write for example 32MiB or 33554432")
    number, prefix, binary, _ = match.groups()
    power = " kmgtp".index(prefix.lower()) if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def parse_duration_s(value: object, *, key: str = "duration") -> float:
    """
    Return seconds for ``0.025``, ``"25ms"`` or ``"1h30m"``; a bare number is seconds.

    Raises:
        SettingsInvalid: not a duration.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip():
        raise SettingsInvalid(f"{key}: {value!r} is not a duration; write for example 25ms, 5s or 72h")
    return float(sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts))


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How a store behaves. Every field has a default that is safe.

    Attributes:
        durability: `wal` logs each bundle first; `segment_only` loses the open segment in a crash.
        format_profile: `spec` writes what the architecture document says; `otap` what the Rust engine reads.
        segment_bytes_max: a segment is sealed when its bundles take this many bytes (`segment.target_size`).
        segment_open_s_max: … or when its first bundle is this old (`segment.max_open_duration`).
        segment_streams_max: … or when it has this many streams (`segment.max_stream_count`).
        wal_bytes_max: cap on all WAL files together, on disk (`wal.max_size`).
        wal_rotate_bytes: the active WAL file is retired beyond this (`wal.rotation_target`).
        wal_files_max: active and rotated WAL files together (`wal.max_rotated_files`).
        wal_flush_interval_s: unsynced bytes are never older than this; 0 syncs each ingest (`wal.flush_interval`).
        size_cap_bytes: cap on WAL and segments together; None is no cap (`retention.size_cap`).
        delete_grace_s: a finished segment stays this long for readers that hold its name (`retention.delete_grace`).
        maintain_interval_s: how often the background thread runs a maintenance pass.

    Raises:
        SettingsInvalid: out of range, or two settings contradict each other.
    """

    durability: Durability = "wal"
    format_profile: Profile = "spec"
    segment_bytes_max: int = 32 * MIB
    segment_open_s_max: float = 5.0
    segment_streams_max: int = 512
    wal_bytes_max: int = 256 * MIB
    wal_rotate_bytes: int = 64 * MIB
    wal_files_max: int = 10
    wal_flush_interval_s: float = 0.025
    size_cap_bytes: int | None = None
    delete_grace_s: float = 60.0
    maintain_interval_s: float = 0.1

    def __post_init__(self) -> None:
        _require(self.durability in {"wal", "segment_only"}, "durability must be wal or segment_only")
        _require(self.format_profile in {"spec", "otap"}, "format_profile must be spec or otap")
        _require(self.segment_bytes_max >= 1, "segment.target_size must be at least 1 byte")
        _require(self.segment_bytes_max <= 1 * GIB, "segment.target_size must be at most 1GiB")
        _require(self.segment_open_s_max > 0, "segment.max_open_duration must be positive")
        _require(1 <= self.segment_streams_max <= 100_000, "segment.max_stream_count must be 1 to 100000")
        _require(self.wal_rotate_bytes >= 1, "wal.rotation_target must be at least 1 byte")
        _require(self.wal_files_max >= 2, "wal.max_rotated_files must be at least 2: the active file and one more")
        _require(self.wal_flush_interval_s >= 0, "wal.flush_interval must not be negative")
        _require(self.delete_grace_s >= 0, "retention.delete_grace must not be negative")
        _require(self.maintain_interval_s > 0, "maintain_interval must be positive")
        if self.durability == "wal":
            # A full active file that may not rotate can never shrink, and ingest would stop for ever.
            _require(
                self.wal_bytes_max >= 2 * self.wal_rotate_bytes,
                "wal.max_size must be at least twice wal.rotation_target",
            )
        if self.size_cap_bytes is not None:
            wal = self.wal_rotate_bytes if self.durability == "wal" else 0
            _require(
                self.size_cap_bytes >= wal + 2 * self.segment_bytes_max,
                "retention.size_cap must hold wal.rotation_target and two segments",
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Settings:
        """
        Build settings from the documents' keys, nested or dotted, with human sizes and durations.

        Raises:
            SettingsInvalid: an unknown key (the nearest known one is named) or a bad value.
        """
        values: dict[str, Any] = {}
        for key, value in _flatten(mapping):
            entry = _KEYS.get(key)
            if entry is None:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_KEYS))}"
                raise SettingsInvalid(f"unknown setting {key}{hint}")
            name, parse = entry
            parsed = parse(value, key)
            if name is not None:
                values[name] = parsed
        return cls(**values)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise SettingsInvalid(message)


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping):
            pairs.extend(_flatten(value, f"{dotted}."))
        else:
            pairs.append((dotted, value))
    return pairs


def _size(value: object, key: str) -> int:
    return parse_size_bytes(value, key=key)


def _duration(value: object, key: str) -> float:
    return parse_duration_s(value, key=key)


def _count(value: object, key: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise SettingsInvalid(f"{key}: {value!r} is not a whole number")


def _text(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    raise SettingsInvalid(f"{key}: {value!r} is not a word")


def _policy(value: object, key: str) -> str:
    if value != "backpressure":
        raise SettingsInvalid(f"{key}: {value!r} is not available; backpressure is")
    return "backpressure"


_KEYS: dict[str, tuple[str | None, Callable[[object, str], Any]]] = {
    "durability": ("durability", _text),
    "format_profile": ("format_profile", _text),
    "segment.target_size": ("segment_bytes_max", _size),
    "segment.max_open_duration": ("segment_open_s_max", _duration),
    "segment.max_stream_count": ("segment_streams_max", _count),
    "wal.max_size": ("wal_bytes_max", _size),
    "wal.rotation_target": ("wal_rotate_bytes", _size),
    "wal.max_rotated_files": ("wal_files_max", _count),
    "wal.flush_interval": ("wal_flush_interval_s", _duration),
    "retention.size_cap": ("size_cap_bytes", _size),
    "retention.size_cap_policy": (None, _policy),
    "retention.delete_grace": ("delete_grace_s", _duration),
    "maintain_interval": ("maintain_interval_s", _duration),
}
