"""
Settings of the store: frozen, with units in the names, checked against each other when made.

The documents' keys, nested or dotted, with human sizes and durations, become these through
`Settings.from_mapping`. Clock, files and observers are not settings: they are handed in.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from quiver.errors import SettingsError
from quiver.objects.location import ObjectLocation
from quiver.primitives.numeric_fields import require_numbers

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Compression",
    "DamagePolicy",
    "Durability",
    "Profile",
    "Settings",
    "SizeCapPolicy",
    "parse_duration_s",
    "parse_size_bytes",
]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Profile = Literal["spec", "otap"]
Durability = Literal["wal", "segment_only"]
Compression = Literal["none", "lz4", "zstd"]
SizeCapPolicy = Literal["backpressure", "drop_oldest"]
DamagePolicy = Literal["fail", "restart_earliest", "restart_latest", "backup"]

SEGMENT_BUNDLES_MAX = 65_536
"""A progress file cannot speak of more bundles in one segment."""

SIZE_BYTES_MAX = 2**63 - 1
DURATION_S_MAX = 36_500 * 86_400.0
"""A hundred years. Beyond three hundred the system's calls that wait overflow."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h|d)", re.IGNORECASE)
_FLEET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_SUBSCRIBER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FLEET_SUBSCRIBERS_MAX = 64
_FLEET_LABELS_MAX = 64
_LABEL_CHARS_MAX = 256
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size_bytes(value: object, *, key: str = "size") -> int:
    """
    Return bytes for ``33554432``, ``"32MiB"`` or ``"32 MB"`` (binary with an i, decimal without).

    Raises:
        SettingsError: not a size, or one that no file has.
    """
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size_bytes: float
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        size_bytes = value
    elif match is not None:
        number, prefix, binary, _ = match.groups()
        power = " kmgtp".index(prefix.lower()) if prefix else 0
        size_bytes = float(number) * (1024 if binary else 1000) ** power
    else:
        raise SettingsError(f"{key}: {value!r} is not a size; write for example 32MiB or 33554432")
    if size_bytes > SIZE_BYTES_MAX:
        raise SettingsError(f"{key} is larger than anything can be; write for example 32MiB or 33554432")
    return int(size_bytes)


def parse_duration_s(value: object, *, key: str = "duration") -> float:
    """
    Return seconds for ``0.025``, ``"25ms"`` or ``"1h30m"``; a bare number is seconds.

    Raises:
        SettingsError: not a duration, or one that no clock counts to.
    """
    text = value.strip() if isinstance(value, str) else ""
    parts = _DURATION.findall(text)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        duration_s = float(value) if value <= DURATION_S_MAX else math.inf
    elif parts and not _DURATION.sub("", text).strip():
        duration_s = float(sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts))
    else:
        raise SettingsError(f"{key}: {value!r} is not a duration; write for example 25ms, 5s or 72h")
    if duration_s > DURATION_S_MAX:
        raise SettingsError(f"{key} is longer than a hundred years; write for example 25ms, 5s or 72h")
    return duration_s


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Settings of a store. The defaults drop no bundle: without a cap and a maximum age, unfinished segments are kept.

    Attributes:
        durability: `wal` logs each bundle first. `segment_only` keeps no log: a crash loses the open segment, a durable
            call waits until its segment is sealed, and settings of the log (`wal_…`) are refused.
        format_profile: `spec` writes the format of the architecture document, `otap` that of the Rust engine.
        segment_bytes_max: a segment is sealed when its bundles have this many bytes (`segment.target_size`).
        segment_open_s_max: … or when its first bundle is this old (`segment.max_open_duration`).
        segment_streams_max: … or when it has this many streams (`segment.max_stream_count`).
        segment_bundles_max: … or when it has this many bundles, at most 65,536 (`segment.max_bundle_count`).
        segment_compression: `none` is read in place; `lz4` and `zstd` use less disk space instead
            (`segment.compression`).
        wal_bytes_max: the maximum size of all WAL files together (`wal.max_size`).
        wal_rotate_bytes: the active WAL file is rotated at this size (`wal.rotation_target`).
        wal_files_max: the maximum number of active and rotated WAL files (`wal.max_rotated_files`).
        wal_flush_interval_s: the maximum age of unsynced bytes; 0 syncs each ingest (`wal.flush_interval`).
        size_cap_bytes: the maximum size of the store on disk; None for no cap (`retention.size_cap`).
        size_cap_policy: at a cap without finished segments to delete, `backpressure` refuses new bundles and
            `drop_oldest` drops the oldest unfinished segment (`retention.size_cap_policy`).
        segments_max: the maximum number of segment files; None for no limit (`retention.max_segments`).
        max_age_s: a segment whose newest bundle is older is deleted, finished or not; None for no limit
            (`retention.max_age`, or in hours `retention.max_retain_after_ingestion_hours`).
        delete_grace_s: a finished segment is kept this long for readers that hold its name (`retention.delete_grace`).
        steady_state_headroom_bytes: the newest finished segments are kept, up to this many bytes
            (`retention.steady_state_headroom`).
        progress_damage: the reaction to a damaged progress file: `fail` refuses the subscriber, `restart_earliest`
            delivers everything again, `restart_latest` only new bundles, `backup` continues from the previous
            generation (`subscriber.on_corrupt_progress`).
        orphan_age_s: a subscriber that has not been registered for this long is dropped; None keeps it
            (`subscriber.orphan_max_age`).
        deliver_unsealed: subscribers of this process get bundles before their segment is written, and segments that all
            of them have resolved by then are not written at all (`subscriber.deliver_unsealed`).
        audit_bytes_max: the maximum size of the audit trail of outcomes; None for no trail
            (`subscriber.audit.max_size`).
        cold_objects: the object tier to which sealed segments are copied: a URL, or ``backend``, ``root`` and
            ``options`` (`cold.objects`); None for no tier.
        cold_local_bytes: the newest segments of the tier are kept on disk, up to this many bytes; None keeps all
            (`cold.local_size`).
        cold_local_age_s: … and until they are this old; None keeps all (`cold.local_age`).
        cold_max_age_s: a segment whose newest bundle is older is deleted from the tier, finished or not; None keeps it
            (`cold.max_age`). With a tier, `retention.max_age` only applies to the local disk.
        cold_keep_finished_s: a finished segment is kept in the tier until its newest bundle is this old
            (`cold.keep_finished`).
        fleet_name: the name of this node, if `cold_objects` is the bucket of a fleet; None otherwise
            (`cold.fleet.name`).
        fleet_subscribers: the subscribers of the fleet. They are registered when the store is opened, and acknowledge
            in the bucket (`cold.fleet.subscribers`).
        fleet_seal_s: a segment of a node is sealed when its first bundle is about this old, at most; used instead of
            `segment_open_s_max` (`cold.fleet.seal`).
        fleet_ack_poll_s: about how often acknowledgements are looked for, while something waits for them
            (`cold.fleet.ack_poll`).
        fleet_labels: texts that describe the node, as pairs (`cold.fleet.labels`, a mapping).
        maintain_interval_s: the interval between maintenance passes of the background thread. While nothing happens in
            this process, a pass runs once a second, to find what other processes did.

    Raises:
        SettingsError: a value is out of range, or two settings contradict each other.
    """

    durability: Durability = "wal"
    format_profile: Profile = "spec"
    segment_bytes_max: int = 32 * MIB
    segment_open_s_max: float = 5.0
    segment_streams_max: int = 512
    segment_bundles_max: int = SEGMENT_BUNDLES_MAX
    segment_compression: Compression = "none"
    wal_bytes_max: int = 256 * MIB
    wal_rotate_bytes: int = 64 * MIB
    wal_files_max: int = 10
    wal_flush_interval_s: float = 0.025
    size_cap_bytes: int | None = None
    size_cap_policy: SizeCapPolicy = "backpressure"
    segments_max: int | None = None
    max_age_s: float | None = None
    delete_grace_s: float = 60.0
    steady_state_headroom_bytes: int = 0
    progress_damage: DamagePolicy = "restart_earliest"
    orphan_age_s: float | None = None
    deliver_unsealed: bool = True
    audit_bytes_max: int | None = None
    cold_objects: ObjectLocation | None = None
    cold_local_bytes: int | None = None
    cold_local_age_s: float | None = None
    cold_max_age_s: float | None = None
    cold_keep_finished_s: float = 0.0
    fleet_name: str | None = None
    fleet_subscribers: tuple[str, ...] = ()
    fleet_seal_s: float = 60.0
    fleet_ack_poll_s: float = 300.0
    fleet_labels: tuple[tuple[str, str], ...] = ()
    maintain_interval_s: float = 0.1

    def __post_init__(self) -> None:
        require_numbers(self)
        self._check_cold()
        self._check_fleet()
        self._check_words()
        self._check_log()
        self._check_segments()
        self._check_retention()
        _require(self.maintain_interval_s > 0, "maintain_interval must be positive")

    def _check_words(self) -> None:
        for key, word, known in (
            ("durability", self.durability, Durability),
            ("format_profile", self.format_profile, Profile),
            ("segment.compression", self.segment_compression, Compression),
            ("retention.size_cap_policy", self.size_cap_policy, SizeCapPolicy),
            ("subscriber.on_corrupt_progress", self.progress_damage, DamagePolicy),
        ):
            words = get_args(known)
            _require(word in words, f"{key}={word!r} must be {', '.join(words[:-1])} or {words[-1]}")

    def _check_segments(self) -> None:
        _require(self.segment_bytes_max >= 1, "segment.target_size must be at least 1 byte")
        _require(self.segment_bytes_max <= 1 * GIB, "segment.target_size must be at most 1GiB")
        _require(self.segment_open_s_max > 0, "segment.max_open_duration must be positive")
        _require(1 <= self.segment_streams_max <= 100_000, "segment.max_stream_count must be 1 to 100000")
        _require(
            1 <= self.segment_bundles_max <= SEGMENT_BUNDLES_MAX,
            f"segment.max_bundle_count must be 1 to {SEGMENT_BUNDLES_MAX}",
        )
        _require(
            self.format_profile != "otap" or self.segment_compression != "lz4",
            "segment.compression must be none or zstd under format_profile otap: the engine it is for has no lz4",
        )

    def _check_log(self) -> None:
        _require(self.wal_rotate_bytes >= 1, "wal.rotation_target must be at least 1 byte")
        _require(self.wal_files_max >= 2, "wal.max_rotated_files must be at least 2: the active file and one more")
        _require(self.wal_flush_interval_s >= 0, "wal.flush_interval must not be negative")
        if self.durability == "wal":
            # A full active file that may not rotate can never shrink, and ingest would stop for ever.
            _require(
                self.wal_bytes_max >= 2 * self.wal_rotate_bytes,
                f"wal.max_size must be at least twice wal.rotation_target, so {2 * self.wal_rotate_bytes} bytes; "
                f"it is {self.wal_bytes_max}",
            )
            return
        # An explicit default value cannot be distinguished from a missing one here: `from_mapping` refuses it.
        for key, (name, _) in _KEYS.items():
            _require(
                not key.startswith("wal.") or getattr(self, name) == type(self).__dataclass_fields__[name].default,
                f"{key} ({name}) has no effect with durability segment_only, which keeps no log; leave it out",
            )

    def _check_retention(self) -> None:
        _require(self.delete_grace_s >= 0, "retention.delete_grace must not be negative")
        _require(self.max_age_s is None or self.max_age_s > 0, "retention.max_age must be positive")
        _require(
            self.segments_max is None or self.segments_max >= 3,
            "retention.max_segments must be at least 3: one that is read, one that is written, one that fills",
        )
        _require(self.orphan_age_s is None or self.orphan_age_s > 0, "subscriber.orphan_max_age must be positive")
        _require(
            self.audit_bytes_max is None or self.audit_bytes_max >= 4 * KIB,
            "subscriber.audit.max_size must be at least 4KiB",
        )
        _require(self.steady_state_headroom_bytes >= 0, "retention.steady_state_headroom must not be negative")
        if self.size_cap_bytes is None:
            return
        wal = self.wal_rotate_bytes if self.durability == "wal" else 0
        _require(
            self.size_cap_bytes >= wal + 2 * self.segment_bytes_max,
            f"retention.size_cap must hold wal.rotation_target and two segments: {wal} + 2 × {self.segment_bytes_max} "
            f"bytes; it is {self.size_cap_bytes}",
        )
        _require(
            self.size_cap_bytes > self.steady_state_headroom_bytes,
            "retention.steady_state_headroom must be below retention.size_cap, to which it yields",
        )
        _require(
            self.size_cap_bytes > (self.audit_bytes_max or 0),
            "subscriber.audit.max_size must be below retention.size_cap, which counts the trail too",
        )

    def _check_cold(self) -> None:
        own = (self.cold_local_bytes, self.cold_local_age_s, self.cold_max_age_s)
        if self.cold_objects is None:
            _require(
                own == (None, None, None) and self.cold_keep_finished_s == 0,
                "cold.local_size, cold.local_age, cold.max_age and cold.keep_finished need cold.objects: without it "
                "there is no tier that they could be about",
            )
            return
        _require(
            isinstance(self.cold_objects, ObjectLocation),
            "cold_objects must be an ObjectLocation: ObjectLocation.from_url(…) makes one",
        )
        _require(self.cold_objects.backend != "memory", "cold.objects must outlive the process: memory:// does not")
        _require((self.cold_local_bytes or 0) >= 0, "cold.local_size must not be negative")
        _require((self.cold_local_age_s or 0) >= 0, "cold.local_age must not be negative")
        _require(self.cold_max_age_s is None or self.cold_max_age_s > 0, "cold.max_age must be positive")
        _require(self.cold_keep_finished_s >= 0, "cold.keep_finished must not be negative")
        _require(
            self.size_cap_bytes is None or (self.cold_local_bytes or 0) < self.size_cap_bytes,
            "cold.local_size must be below retention.size_cap, to which it yields",
        )
        for key, age_s in (
            ("retention.max_age", self.max_age_s),
            ("cold.local_age", self.cold_local_age_s),
            ("cold.keep_finished", self.cold_keep_finished_s),
        ):
            _require(
                self.cold_max_age_s is None or age_s is None or age_s <= self.cold_max_age_s,
                f"{key} must be at most cold.max_age, after which a segment is nowhere",
            )

    def _check_fleet(self) -> None:
        if self.fleet_name is None:
            default = type(self).__dataclass_fields__
            _require(
                all(getattr(self, name) == default[name].default for name in default if name.startswith("fleet_")),
                "cold.fleet needs cold.fleet.name, the name of this node",
            )
            return
        _require(
            isinstance(self.fleet_name, str) and _FLEET_NAME.fullmatch(self.fleet_name) is not None,
            f"cold.fleet.name {str(self.fleet_name)[:140]!r} must be 1 to 128 letters, digits and _ - . without a dot "
            "in front",
        )
        _require(self.cold_objects is not None, "cold.fleet needs cold.objects, the bucket of the fleet")
        _require(len(self.fleet_subscribers) > 0, "cold.fleet.subscribers must name the readers that acknowledge")
        for name in self.fleet_subscribers:
            _require(
                isinstance(name, str) and _SUBSCRIBER.fullmatch(name) is not None,
                f"cold.fleet.subscribers: {str(name)[:70]!r} must be 1 to 64 letters, digits, - and _",
            )
        _require(
            len(set(self.fleet_subscribers)) == len(self.fleet_subscribers) <= _FLEET_SUBSCRIBERS_MAX,
            f"cold.fleet.subscribers must be at most {_FLEET_SUBSCRIBERS_MAX} different names",
        )
        _require(self.fleet_seal_s > 0, "cold.fleet.seal must be positive")
        _require(self.fleet_ack_poll_s > 0, "cold.fleet.ack_poll must be positive")
        _require(
            len(dict(self.fleet_labels)) == len(self.fleet_labels) <= _FLEET_LABELS_MAX
            and all(
                key
                and all(
                    isinstance(one, str) and len(one) <= _LABEL_CHARS_MAX and one.isprintable() for one in (key, text)
                )
                for key, text in self.fleet_labels
            ),
            f"cold.fleet.labels must be at most {_FLEET_LABELS_MAX} printable texts of at most {_LABEL_CHARS_MAX} "
            "characters, by name",
        )
        _require(
            self.cold_keep_finished_s == 0,
            "cold.keep_finished cannot be used in a fleet: its reader would list finished segments again and again",
        )

    @property
    def seal_age_s(self) -> float:
        """The age of its first bundle at which a segment is sealed, at most."""
        return self.segment_open_s_max if self.fleet_name is None else self.fleet_seal_s

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Settings:
        """
        Build settings from the documents' keys, nested or dotted, with human sizes and durations.

        Raises:
            SettingsError: an unknown key (the nearest known one is named) or a bad value.
        """
        values: dict[str, Any] = {}
        for key, value in _flatten(mapping):
            name, parsed = _parsed(key, value)
            if values.setdefault(name, parsed) != parsed:
                raise SettingsError(f"{key} contradicts another key for the same: {parsed} and {values[name]}")
        if values.get("durability") == "segment_only":
            for key, _ in _flatten(mapping):
                _require(
                    not key.startswith("wal."),
                    f"{key} has no effect with durability segment_only, which keeps no log; leave it out",
                )
        _require(
            values.get("fleet_name") is None or "segment_open_s_max" not in values,
            "segment.max_open_duration has no effect in a fleet: set cold.fleet.seal, and leave it out",
        )
        return cls(**values)

    @staticmethod
    def keys() -> dict[str, str]:
        """Return the documents' keys, dotted, each with the name of the field that it sets."""
        return {key: field for key, (field, _) in _KEYS.items()}

    @classmethod
    def errors_in(cls, mapping: Mapping[str, Any]) -> list[SettingsError]:
        """Return the error of each key of *mapping* that is unknown or has a bad value; `from_mapping` raises one."""
        found = []
        for key, value in _flatten(mapping):
            try:
                _parsed(key, value)
            except SettingsError as error:
                found.append(error)
        return found


def _parsed(key: str, value: Any) -> tuple[str, Any]:
    """Return the field that *key* sets, and its value."""
    entry = _KEYS.get(key)
    if entry is None:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_KEYS))}"
        raise SettingsError(f"unknown setting {key}{hint}")
    name, parse = entry
    return name, parse(value, key)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise SettingsError(message)


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted not in _MAPPINGS:
            pairs.extend(_flatten(value, f"{dotted}."))
        else:
            pairs.append((dotted, value))
    return pairs


def _size(value: object, key: str) -> int:
    return parse_size_bytes(value, key=key)


def _cap(value: object, key: str) -> int | None:
    return None if value is None or value == "none" else _size(value, key)


def _duration(value: object, key: str) -> float:
    return parse_duration_s(value, key=key)


def _count(value: object, key: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise SettingsError(f"{key}: {value!r} is not a whole number")


def _text(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    raise SettingsError(f"{key}: {value!r} is not a word")


def _flag(value: object, key: str) -> bool:
    if isinstance(value, bool):
        return value
    raise SettingsError(f"{key}: {value!r} is not true or false")


def _optional(parse: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    return lambda value, key: None if value is None else parse(value, key)


def _location(value: object, key: str) -> ObjectLocation:
    if isinstance(value, str | Mapping | ObjectLocation):
        return ObjectLocation.of(value)
    raise SettingsError(f"{key}: {value!r} is no URL, and no mapping of backend, root and options")


def _words(value: object, key: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise SettingsError(f"{key}: {value!r} is not a list of words")


def _labels(value: object, key: str) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair):
        return tuple(sorted(value.items()))
    raise SettingsError(f"{key}: {value!r} is not a mapping of names to texts")


def _hours(value: object, key: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return parse_duration_s(value, key=key) * _SECONDS["h"]
    return parse_duration_s(value, key=key)


_COLD_OBJECTS = "cold.objects"
_FLEET_LABELS = "cold.fleet.labels"
_MAPPINGS = (_COLD_OBJECTS, _FLEET_LABELS)
"""Keys whose value may be a mapping."""

_KEYS: dict[str, tuple[str, Callable[[object, str], Any]]] = {
    "durability": ("durability", _text),
    "format_profile": ("format_profile", _text),
    "segment.target_size": ("segment_bytes_max", _size),
    "segment.max_open_duration": ("segment_open_s_max", _duration),
    "segment.max_stream_count": ("segment_streams_max", _count),
    "segment.max_bundle_count": ("segment_bundles_max", _count),
    "segment.compression": ("segment_compression", _text),
    "wal.max_size": ("wal_bytes_max", _size),
    "wal.rotation_target": ("wal_rotate_bytes", _size),
    "wal.max_rotated_files": ("wal_files_max", _count),
    "wal.flush_interval": ("wal_flush_interval_s", _duration),
    "retention.size_cap": ("size_cap_bytes", _cap),
    "retention.size_cap_policy": ("size_cap_policy", _text),
    "retention.max_segments": ("segments_max", _optional(_count)),
    "retention.max_age": ("max_age_s", _optional(_duration)),
    "retention.max_retain_after_ingestion_hours": ("max_age_s", _optional(_hours)),
    "retention.delete_grace": ("delete_grace_s", _duration),
    "retention.steady_state_headroom": ("steady_state_headroom_bytes", _size),
    "subscriber.on_corrupt_progress": ("progress_damage", _text),
    "subscriber.orphan_max_age": ("orphan_age_s", _optional(_duration)),
    "subscriber.deliver_unsealed": ("deliver_unsealed", _flag),
    "subscriber.audit.max_size": ("audit_bytes_max", _optional(_size)),
    _COLD_OBJECTS: ("cold_objects", _optional(_location)),
    "cold.local_size": ("cold_local_bytes", _optional(_size)),
    "cold.local_age": ("cold_local_age_s", _optional(_duration)),
    "cold.max_age": ("cold_max_age_s", _optional(_duration)),
    "cold.keep_finished": ("cold_keep_finished_s", _duration),
    "cold.fleet.name": ("fleet_name", _optional(_text)),
    "cold.fleet.subscribers": ("fleet_subscribers", _words),
    "cold.fleet.seal": ("fleet_seal_s", _duration),
    "cold.fleet.ack_poll": ("fleet_ack_poll_s", _duration),
    _FLEET_LABELS: ("fleet_labels", _labels),
    "maintain_interval": ("maintain_interval_s", _duration),
}
