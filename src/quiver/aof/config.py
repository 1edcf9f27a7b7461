"""The settings of a log: frozen, validated and rounded when they are made. The keys are those of the documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from quiver.errors import SettingsError
from quiver.objects import ObjectLocation
from quiver.settings import GIB, KIB, MIB

__all__ = ["AofConfig", "FlushConfig", "Retention", "TierConfig"]

RetentionPolicy = Literal["keep_all", "time", "size"]
RetentionAction = Literal["archive", "expire", "package"]
IdStrategy = Literal["packed"]
Compaction = Literal["disabled", "head_trim"]
Compression = Literal["none", "zstd"]

_DEFAULT_MIN = 64 * KIB
_DEFAULT_MAX = 1 * GIB
_DEFAULT_TARGET = 64 * KIB


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """
    When records are synced in the background, and how many may be unsynced.

    Attributes:
        flush_watermark_bytes: a flush begins when this many bytes are unsynced; 0: with every append.
        flush_interval_ms: no record waits longer than this for its flush; 0: no timer.
        max_unflushed_bytes: an append that would exceed this raises `WouldBlockError("flush")`; 0: no limit.
        max_concurrent_flushes: threads of the manager that flush, for all its logs together.
        retries_max: consecutive failures after which appends are blocked until a flush succeeds.

    Raises:
        SettingsError: out of range.
    """

    flush_watermark_bytes: int = 8 * MIB
    flush_interval_ms: float = 5
    max_unflushed_bytes: int = 64 * MIB
    max_concurrent_flushes: int = 1
    retries_max: int = 5

    def __post_init__(self) -> None:
        for name in ("flush_watermark_bytes", "max_unflushed_bytes", "retries_max"):
            _require_integer(f"flush.{name}", getattr(self, name), 0, None)
        interval_ms = self.flush_interval_ms
        if isinstance(interval_ms, bool) or not isinstance(interval_ms, int | float) or not interval_ms >= 0:
            raise SettingsError(f"flush.flush_interval_ms must be a number from 0 on, not {interval_ms!r}")
        _require_integer("flush.max_concurrent_flushes", self.max_concurrent_flushes, 1, 64)


@dataclass(frozen=True, slots=True)
class Retention:
    """
    Which sealed segments leave `segments/`, and what happens to them.

    The newest sealed segment always stays. When its records expire by time, an empty segment takes its place.

    Attributes:
        policy: `keep_all` keeps everything; `time` keeps what was sealed less than *ttl_s* ago; `size` keeps the newest
            segments up to *max_total_bytes*.
        action: `archive` moves a segment to `archive/`, `package` packs it there, `expire` deletes it.

    Raises:
        SettingsError: a policy without its limit, or an unknown value.
    """

    policy: RetentionPolicy = "keep_all"
    ttl_s: float | None = None
    max_total_bytes: int | None = None
    action: RetentionAction = "archive"

    def __post_init__(self) -> None:
        for given, allowed in ((self.policy, get_args(RetentionPolicy)), (self.action, get_args(RetentionAction))):
            if given not in allowed:
                raise SettingsError(f"retention: {given!r} is none of {', '.join(allowed)}")
        if self.policy == "time":
            _require_seconds("retention by time: ttl_s", self.ttl_s)
        if self.policy == "size":
            _require_integer("retention by size: max_total_bytes", self.max_total_bytes, 1, None)


@dataclass(frozen=True, slots=True)
class TierConfig:
    """
    Where sealed segments are stored. The newest keeps its file; any other file is removed only after a copy of it was
    verified.

    With `objects` every segment is uploaded when it is sealed. Without `tier0_max_bytes` it is uploaded from its own
    file, which stays.

    Attributes:
        tier0_max_bytes: the maximum size of the files of sealed segments; the least recently read ones are packed and
            removed. None: no limit.
        warm_max_bytes: the maximum size of the packed files; those that also exist as objects are removed. None: no
            limit.
        objects: a URL, the path of a directory, a mapping or an `ObjectLocation`, as for `open_objects`: every sealed
            segment is packed and copied there. None: no object store.
        compression_level: the zstd level, 1 to 19.

    Raises:
        SettingsError: a value is out of range, or `warm_max_bytes` is set without `objects`.
    """

    tier0_max_bytes: int | None = None
    warm_max_bytes: int | None = None
    objects: str | Mapping[str, object] | ObjectLocation | None = field(default=None, repr=False)
    compression_level: int = 3

    def __post_init__(self) -> None:
        for name in ("tier0_max_bytes", "warm_max_bytes"):
            if getattr(self, name) is not None:
                _require_integer(f"tiers.{name}", getattr(self, name), 0, None)
        objects: object = self.objects
        if objects is not None and not isinstance(objects, str | Mapping | ObjectLocation):
            kind = type(objects).__name__
            raise SettingsError(f"tiers.objects must be a URL, a directory or a mapping, not {kind}")
        _require_integer("tiers.compression_level", self.compression_level, 1, 19)
        if self.warm_max_bytes is not None and self.objects is None:
            raise SettingsError(
                "tiers.warm_max_bytes needs tiers.objects: without objects packed files cannot be removed"
            )


@dataclass(frozen=True, slots=True)
class AofConfig:
    """
    The settings of one log.

    Sizes are rounded to the nearest power of two (the lower one if two are equally near) and put in order:
    min ≤ target ≤ max. 0 means the default. The maximum is 2 GiB, because the format stores sizes in 32 bits.

    Attributes:
        root_dir: the default path of `AofManager.open`. In the `config` of an open log, the directory of the log.
        segment_min_bytes: the minimum size of a segment.
        segment_max_bytes: the maximum size of a segment, which also limits the size of a record.
        segment_target_bytes: the size of the first segment. Later sizes adapt: segments that fill quickly are followed
            by larger ones, segments that take minutes by smaller ones.
        max_segment_age_s: a segment is sealed when its first record is this old, even if it is not full; None: never.
        preallocate_segments: how many segments are made ahead, so that the writer does not wait for one.
        id_strategy: `packed` combines segment and offset in one number; the format has no other.
        compression: `zstd` packs every sealed segment and keeps its file; `none` packs only segments whose file is to
            be removed.
        retention: which sealed segments leave the log, and what happens to them.
        compaction: with `head_trim`, segments that are no longer needed leave the log, by the action of `retention`.
            `Aof.trim_before` or the manager's hook decides which.
        tiers: where sealed segments are stored; None: all in their files.
        flush: when records are synced, and how many may be unsynced.
        enable_sparse_index: store indexes of sealed segments, so that a search by time or by number begins near its
            result. False: a search reads all record heads.

    Raises:
        SettingsError: a value is out of range.
    """

    segment_floor_bytes: ClassVar[int] = 64 * KIB
    segment_ceiling_bytes: ClassVar[int] = 2 * GIB

    root_dir: str = "./data/aof"
    segment_min_bytes: int = _DEFAULT_MIN
    segment_max_bytes: int = _DEFAULT_MAX
    segment_target_bytes: int = _DEFAULT_TARGET
    max_segment_age_s: float | None = None
    preallocate_segments: int = 1
    id_strategy: IdStrategy = "packed"
    compression: Compression = "none"
    retention: Retention = field(default_factory=Retention)
    compaction: Compaction = "disabled"
    tiers: TierConfig | None = None
    flush: FlushConfig = field(default_factory=FlushConfig)
    enable_sparse_index: bool = True

    def __post_init__(self) -> None:
        self._require_kinds()
        _require_integer("preallocate_segments", self.preallocate_segments, 0, 16)
        if self.max_segment_age_s is not None:
            _require_seconds("max_segment_age_s", self.max_segment_age_s)
        if self.id_strategy != "packed":
            raise SettingsError(
                f"id_strategy must be packed, not {self.id_strategy!r}: records have no field for an id, so an id can "
                "only be the record's place, which is segment and offset"
            )
        if self.compression not in {"none", "zstd"}:
            raise SettingsError(f"compression must be none or zstd, not {self.compression!r}")
        if self.compaction not in get_args(Compaction):
            raise SettingsError(
                f"compaction must be disabled or head_trim, not {self.compaction!r}: records never move, because their "
                "ids are their places; to pack segments use compression, tiers, or the retention action package"
            )
        if self.tiered and self.retires and self.retention.action != "expire":
            raise SettingsError('retention of a log with tiers needs action="expire": the tiers store what is kept')
        smallest = self._rounded("segment_min_bytes", _DEFAULT_MIN)
        target = max(smallest, self._rounded("segment_target_bytes", _DEFAULT_TARGET))
        largest = max(smallest, self._rounded("segment_max_bytes", _DEFAULT_MAX))
        object.__setattr__(self, "segment_min_bytes", smallest)
        object.__setattr__(self, "segment_max_bytes", largest)
        object.__setattr__(self, "segment_target_bytes", min(target, largest))

    @property
    def tiered(self) -> bool:
        """Whether sealed segments may be stored anywhere but in their files."""
        return self.tiers is not None or self.compression != "none"

    @property
    def retires(self) -> bool:
        """Whether sealed segments leave the log."""
        return self.retention.policy != "keep_all" or self.compaction != "disabled"

    def _require_kinds(self) -> None:
        kinds = (("flush", FlushConfig), ("retention", Retention), ("enable_sparse_index", bool), ("root_dir", str))
        for name, kind in kinds:
            if not isinstance(getattr(self, name), kind):
                raise SettingsError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        if self.tiers is not None and not isinstance(self.tiers, TierConfig):
            raise SettingsError(f"tiers must be a TierConfig or None, not {self.tiers!r}")

    def _rounded(self, name: str, default: int) -> int:
        value = getattr(self, name)
        _require_integer(f"{name}, in bytes,", value, 0, self.segment_ceiling_bytes)
        value = value or default
        below = 1 << (value.bit_length() - 1)
        nearest = below if value - below <= 2 * below - value else 2 * below
        return min(max(nearest, self.segment_floor_bytes), self.segment_ceiling_bytes)


def _require_integer(name: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} on" if most is None else f"from {least} to {most}"
        raise SettingsError(f"{name} must be an integer {span}, not {value!r}")


def _require_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SettingsError(f"{name} must be a number of seconds above 0, not {value!r}")
