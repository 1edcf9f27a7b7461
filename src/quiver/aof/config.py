"""Settings of a log: the document's keys, frozen, checked and rounded when they are made."""

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
    When data is synced without being asked, and how much may wait for it.

    Attributes:
        flush_watermark_bytes: a flush begins when this much is not yet durable; 0 begins one for every append.
        flush_interval_ms: nothing waits longer than this for its flush; 0 is no timer.
        max_unflushed_bytes: what would exceed it is refused with `WouldBlockError("flush")`; 0 is no limit.
        max_concurrent_flushes: threads of the manager that flush, for all its logs together.
        retries_max: failures in a row after which producers are refused until a flush succeeds.

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
            _require_whole(f"flush.{name}", getattr(self, name), 0, None)
        interval_ms = self.flush_interval_ms
        if isinstance(interval_ms, bool) or not isinstance(interval_ms, int | float) or not interval_ms >= 0:
            raise SettingsError(f"flush.flush_interval_ms must be a number from 0 on, not {interval_ms!r}")
        _require_whole("flush.max_concurrent_flushes", self.max_concurrent_flushes, 1, 64)


@dataclass(frozen=True, slots=True)
class Retention:
    """
    Which sealed segments leave `segments/`, and where to. The newest sealed segment always stays; when its records
    expire by time, it is one without records.

    Attributes:
        policy: `keep_all` keeps everything; `time` what was sealed less than *ttl_s* ago; `size` the newest segments
            up to *max_total_bytes*.
        action: `archive` moves a segment to `archive/`, `package` packs it there, `expire` deletes it.

    Raises:
        SettingsError: a policy without its limit, or a word that is none of these.
    """

    policy: RetentionPolicy = "keep_all"
    ttl_s: float | None = None
    max_total_bytes: int | None = None
    action: RetentionAction = "archive"

    def __post_init__(self) -> None:
        for given, lawful in ((self.policy, get_args(RetentionPolicy)), (self.action, get_args(RetentionAction))):
            if given not in lawful:
                raise SettingsError(f"retention: {given!r} is none of {', '.join(lawful)}")
        if self.policy == "time":
            _require_seconds("retention by time: ttl_s", self.ttl_s)
        if self.policy == "size":
            _require_whole("retention by size: max_total_bytes", self.max_total_bytes, 1, None)


@dataclass(frozen=True, slots=True)
class TierConfig:
    """
    Where sealed segments lie. The newest keeps its file; a file only leaves when a copy was verified.

    With `objects` every segment is uploaded when it is sealed. Without `tier0_max_bytes` it is uploaded from its own
    file, which stays.

    Attributes:
        tier0_max_bytes: files of sealed segments take no more than this; those that were read longest ago are packed
            and leave. None: they stay.
        warm_max_bytes: packed files take no more than this, as far as an object holds the same; None: they stay.
        objects: a URL, the path of a directory, a mapping or an `ObjectLocation`, as `open_objects` takes it: where
            every segment is copied to, packed, once it is sealed. None: nowhere.
        compression_level: of zstd, 1 to 19.

    Raises:
        SettingsError: out of range, or packed files that are to leave without objects.
    """

    tier0_max_bytes: int | None = None
    warm_max_bytes: int | None = None
    objects: str | Mapping[str, object] | ObjectLocation | None = field(default=None, repr=False)
    compression_level: int = 3

    def __post_init__(self) -> None:
        for name in ("tier0_max_bytes", "warm_max_bytes"):
            if getattr(self, name) is not None:
                _require_whole(f"tiers.{name}", getattr(self, name), 0, None)
        objects: object = self.objects
        if objects is not None and not isinstance(objects, str | Mapping | ObjectLocation):
            kind = type(objects).__name__
            raise SettingsError(f"tiers.objects is a URL, a directory or a mapping, not {kind}")
        _require_whole("tiers.compression_level", self.compression_level, 1, 19)
        if self.warm_max_bytes is not None and self.objects is None:
            raise SettingsError("tiers.warm_max_bytes needs tiers.objects: without objects packed files cannot leave")


@dataclass(frozen=True, slots=True)
class AofConfig:
    """
    How one log behaves.

    The sizes are rounded to the nearest power of two (the lower of two equally near ones) and kept in order:
    min ≤ target ≤ max. 0 stands for the default. More than 2 GiB is refused, because
    files say their size in 32 bits.

    Attributes:
        root_dir: where `AofManager.open` puts the logs when it is given no path. A log's own `config` says where it is.
        segment_min_bytes: no segment is smaller.
        segment_max_bytes: no segment is larger, and so no record that would not fit into one.
        segment_target_bytes: the size of the first segment. From then on sizes slide: segments that fill within
            moments are followed by larger ones, segments that take minutes by smaller ones.
        max_segment_age_s: a segment is sealed when its first record is this old, although it is not full; None: never.
        preallocate_segments: segments made ahead, so that the writer need not wait for one.
        id_strategy: `packed` is segment and offset in one number; the format has no other.
        compression: `zstd` packs every segment once it is sealed, beside its file; `none` only those that are to leave.
        retention: which sealed segments leave, and where to.
        compaction: `head_trim` lets segments leave, as retention's action says, that nobody needs any more:
            `Aof.trim_before`, or the manager's hook, says which.
        tiers: how much of the log lies where; None: all of it in its files.
        flush: when data is synced, and how much may wait for it.
        enable_sparse_index: a search by time or by number begins near what it looks for: indexes of sealed segments
            are kept beside them. False: their heads are walked.

    Raises:
        SettingsError: out of range.
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
        _require_whole("preallocate_segments", self.preallocate_segments, 0, 16)
        if self.max_segment_age_s is not None:
            _require_seconds("max_segment_age_s", self.max_segment_age_s)
        if self.id_strategy != "packed":
            raise SettingsError(
                f"id_strategy is packed, not {self.id_strategy!r}: a record has no field for an id, so its id can only "
                "be where it is, which is segment and offset"
            )
        if self.compression not in {"none", "zstd"}:
            raise SettingsError(f"compression is none or zstd, not {self.compression!r}")
        if self.compaction not in get_args(Compaction):
            raise SettingsError(
                f"compaction is disabled or head_trim, not {self.compaction!r}: records never move, because their ids "
                "say where they are; segments are packed by compression, tiers, or retention's action package"
            )
        if self.tiered and self.retires and self.retention.action != "expire":
            raise SettingsError('retention of a log with tiers needs action="expire": what it keeps, the tiers keep')
        smallest = self._rounded("segment_min_bytes", _DEFAULT_MIN)
        target = max(smallest, self._rounded("segment_target_bytes", _DEFAULT_TARGET))
        largest = max(smallest, self._rounded("segment_max_bytes", _DEFAULT_MAX))
        object.__setattr__(self, "segment_min_bytes", smallest)
        object.__setattr__(self, "segment_max_bytes", largest)
        object.__setattr__(self, "segment_target_bytes", min(target, largest))

    @property
    def tiered(self) -> bool:
        """Whether sealed segments are anywhere but in their files."""
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
        _require_whole(f"{name}, in bytes,", value, 0, self.segment_ceiling_bytes)
        value = value or default
        below = 1 << (value.bit_length() - 1)
        nearest = below if value - below <= 2 * below - value else 2 * below
        return min(max(nearest, self.segment_floor_bytes), self.segment_ceiling_bytes)


def _require_whole(name: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"from {least} on" if most is None else f"from {least} to {most}"
        raise SettingsError(f"{name} must be a whole number {span}, not {value!r}")


def _require_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SettingsError(f"{name} must be a number of seconds above 0, not {value!r}")
