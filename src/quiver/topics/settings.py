"""
Settings of topics: the broker's file as the document shows it, each key with its default.

::

    storage:
      wal: {dir, file_name, cache_capacity, cache_max_bytes, fsync_interval_ms, fsync_max_batch_bytes,
            rotate_max_bytes, rotate_max_seconds, max_message_size}
      uploader: {enabled, interval_seconds, max_batch_bytes, root_prefix, compression, hand_over_seconds}
      deleter: {check_interval_minutes, retention_time_minutes, retention_size_mb, wait_for_subscriptions}
      objects: {retention_time_minutes, retention_size_mb}
      cloud: {backend, root, options}
      metadata: {endpoint, namespace, lease_seconds, ca_file, cert_file, key_file, user, password}
      subscriptions: {progress_flush_interval_seconds, progress_min_offset_delta, max_unacked_messages, …}
      topics: {default/orders: {deleter: {retention_size_mb: 100}}, "logs/*": {…}}

Settings below `topics` apply to the topics of that name or pattern, instead of the sections above. A setting without an
effect is rejected.

``${NAME}`` in a text is replaced from an environment that the caller passes: the library reads none. The values of
`options` may be secret and are never shown.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar, get_args

from quiver.errors import SettingsError, UsageError
from quiver.metadata.location import MetadataLocation
from quiver.objects.location import Secret
from quiver.primitives.numeric_fields import require_numbers
from quiver.settings import parse_size_bytes
from quiver.topics.format.frame import FRAME_PAYLOAD_BYTES_MAX
from quiver.topics.format.names import ACTIVE_FILE, check_file_name, check_topic_pattern

__all__ = [
    "CloudSettings",
    "DeleterSettings",
    "MetadataSettings",
    "ObjectRetention",
    "SubscriptionSettings",
    "TopicSettings",
    "UploaderSettings",
    "WalSettings",
    "WithObjects",
]

MIB = 1024 * 1024

UNACKED_MESSAGES_MAX = 100_000
"""The file of a subscription grows with them, and must stay within the size limit for reading."""

CloudBackend = Literal["fs", "memory", "s3", "gcs", "azblob"]
ObjectCompression = Literal["none", "zstd", "lz4"]

MESSAGE_OVERHEAD_BYTES = MIB
"""Space for the names and attributes of a message, in addition to its payload."""


class WithObjects(int):
    """A default that applies only to topics with objects. Without objects nothing is deleted unless configured."""


@dataclass(frozen=True, slots=True)
class WalSettings:
    """
    The local log of each topic.

    Attributes:
        dir: root of all topics' files; None keeps only cached messages.
        file_name: of the first file; the next ones carry a number before the suffix.
        cache_capacity: messages kept in memory, per topic.
        cache_max_bytes: the maximum of their bytes, per topic.
        fsync_interval_ms: the longest time that a message stays unsynced; 0 syncs each append.
        fsync_max_batch_bytes: a sync is due when this many bytes are unsynced.
        rotate_max_bytes: a file of this size is closed for a new one; None rotates at 1 GiB only.
        rotate_max_seconds: the same for a file whose first message has this age.
        max_message_size: a larger payload is rejected.
    """

    dir: str | None = None
    file_name: str = ACTIVE_FILE
    cache_capacity: int = 1024
    cache_max_bytes: int = 4 * MIB
    fsync_interval_ms: int = 5000
    fsync_max_batch_bytes: int = 10 * MIB
    rotate_max_bytes: int | None = None
    rotate_max_seconds: int | None = None
    max_message_size: int = 10 * MIB

    def __post_init__(self) -> None:
        require_numbers(self)
        try:
            check_file_name(self.file_name)
        except UsageError as error:
            raise SettingsError(f"wal.file_name: {error}") from error
        _at_least(1, "wal", self, "cache_capacity", "cache_max_bytes", "fsync_max_batch_bytes", "max_message_size")
        _at_least(1, "wal", self, "rotate_max_bytes", "rotate_max_seconds")
        _at_least(0, "wal", self, "fsync_interval_ms")
        most = FRAME_PAYLOAD_BYTES_MAX - MESSAGE_OVERHEAD_BYTES
        if self.max_message_size > most:
            raise SettingsError(f"wal.max_message_size must be at most {most}, which a frame can hold")


@dataclass(frozen=True, slots=True)
class UploaderSettings:
    """
    The upload to the object store.

    Attributes:
        enabled: whether sealed files are uploaded at all.
        interval_seconds: between two cycles of one topic.
        max_batch_bytes: an object is closed at this size; None creates one object per sealed file.
        root_prefix: of every key in the metadata.
        compression: of objects; `none` is the plain format that every reader knows.
        hand_over_seconds: how long closing may take to upload remaining messages and to release the topics; 0 hands
            nothing over.
    """

    enabled: bool = True
    interval_seconds: int = 300
    max_batch_bytes: int | None = None
    root_prefix: str = "/danube"
    compression: ObjectCompression = "none"
    hand_over_seconds: int = 20

    def __post_init__(self) -> None:
        require_numbers(self)
        _at_least(1, "uploader", self, "interval_seconds", "max_batch_bytes")
        _at_least(0, "uploader", self, "hand_over_seconds")
        _one_of("uploader.compression", self.compression, ObjectCompression)
        if not self.root_prefix.startswith("/"):
            raise SettingsError("uploader.root_prefix must begin with a slash")


@dataclass(frozen=True, slots=True)
class DeleterSettings:
    """
    Retention of local files: those that the object store has, or, for topics without objects, all that are old enough.

    Attributes:
        check_interval_minutes: between two checks of a topic.
        retention_time_minutes: files written to later are kept; None: age deletes nothing.
        retention_size_mb: the oldest are deleted while a topic has more than this many MiB; None: size deletes nothing.
        wait_for_subscriptions: keep what a reliable subscription has not confirmed.
    """

    check_interval_minutes: int = 5
    retention_time_minutes: int | None = WithObjects(24 * 60)
    retention_size_mb: int | None = WithObjects(10 * 1024)
    wait_for_subscriptions: bool = False

    def __post_init__(self) -> None:
        require_numbers(self)
        _at_least(1, "deleter", self, "check_interval_minutes")
        _at_least(0, "deleter", self, "retention_time_minutes", "retention_size_mb")

    def without_objects(self) -> DeleterSettings:
        """Return the settings for topics without objects: what was configured, and no defaults."""
        time, size = (
            None if isinstance(one, WithObjects) else one
            for one in (self.retention_time_minutes, self.retention_size_mb)
        )
        return replace(self, retention_time_minutes=time, retention_size_mb=size)

    @property
    def deletes(self) -> bool:
        """Whether anything is ever deleted."""
        return self.retention_time_minutes is not None or self.retention_size_mb is not None


@dataclass(frozen=True, slots=True)
class ObjectRetention:
    """
    Retention of objects. By default they are kept.

    Attributes:
        retention_time_minutes: objects created earlier are deleted.
        retention_size_mb: the oldest are deleted while a topic has more than this many MiB.
    """

    retention_time_minutes: int | None = None
    retention_size_mb: int | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        _at_least(1, "objects", self, "retention_time_minutes", "retention_size_mb")


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """
    The object store.

    Attributes:
        backend: its kind.
        root: directory, or ``s3://bucket/prefix`` and the like.
        options: region, endpoint, credentials; never shown.
    """

    backend: CloudBackend
    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_numbers(self)
        _one_of("cloud.backend", self.backend, CloudBackend)
        if not isinstance(self.options, Mapping):
            raise SettingsError("cloud.options must be a mapping")


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """
    The location of descriptors, owners and cursors.

    Attributes:
        endpoint: ``etcd://host:port`` or ``sqlite://path``; None is a file next to the topics.
        namespace: before every key.
        lease_seconds: an owner that is silent for this long loses its topics, and stops by itself shortly before. While
            the metadata store does not answer, appends continue for this time, less a tenth.
        ca_file, cert_file, key_file, user, password: for an etcd with TLS or users, as in `quiver.metadata.location`.
    """

    endpoint: str | None = None
    namespace: str = ""
    lease_seconds: int = 300
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_numbers(self)
        _at_least(1, "metadata", self, "lease_seconds")
        given = [key for key in _ETCD_KEYS if getattr(self, key) is not None]
        if given and self.endpoint is None:
            raise SettingsError(f"metadata.{given[0]} has no effect without metadata.endpoint")
        _ = self.location  # raises if it is not a metadata store

    @property
    def location(self) -> MetadataLocation | None:
        """The location of the endpoint with its credentials; None without an endpoint."""
        if self.endpoint is None:
            return None
        return MetadataLocation.of(self.endpoint, {key: getattr(self, key) for key in _ETCD_KEYS})


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """
    Delivery to subscriptions.

    Attributes:
        progress_flush_interval_seconds: changed progress is saved after at most this time.
        progress_min_offset_delta: the same after this many messages.
        max_unacked_messages: the maximum number of unacknowledged messages, per subscription.
        ack_timeout_seconds: a delivery without an answer for this time is repeated; None waits without limit.
        redelivery_delay_seconds: how long a refused message waits before it is delivered again.
        max_redelivery_count: a message refused more often than this becomes a dead letter; None: never.
    """

    progress_flush_interval_seconds: float = 5.0
    progress_min_offset_delta: int = 1000
    max_unacked_messages: int = 1000
    ack_timeout_seconds: float | None = 30.0
    redelivery_delay_seconds: float = 1.0
    max_redelivery_count: int | None = None

    def __post_init__(self) -> None:
        require_numbers(self)
        _at_least(1, "subscriptions", self, "progress_min_offset_delta", "max_unacked_messages")
        _at_least(0, "subscriptions", self, "progress_flush_interval_seconds", "redelivery_delay_seconds")
        _at_least(0, "subscriptions", self, "max_redelivery_count")
        if self.max_unacked_messages > UNACKED_MESSAGES_MAX:
            raise SettingsError(f"subscriptions.max_unacked_messages must be at most {UNACKED_MESSAGES_MAX}")
        if self.ack_timeout_seconds is not None and not 0 < self.ack_timeout_seconds < math.inf:
            raise SettingsError("subscriptions.ack_timeout_seconds must be positive")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """All settings. `from_mapping` takes the broker's file."""

    wal: WalSettings = field(default_factory=WalSettings)
    uploader: UploaderSettings = field(default_factory=UploaderSettings)
    deleter: DeleterSettings = field(default_factory=DeleterSettings)
    objects: ObjectRetention = field(default_factory=ObjectRetention)
    cloud: CloudSettings | None = None
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    subscriptions: SubscriptionSettings = field(default_factory=SubscriptionSettings)
    topics: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The keys that the broker's file contains, as ``uploader.enabled``."""

    def __post_init__(self) -> None:
        for pattern, sections in self.topics.items():
            try:
                check_topic_pattern(pattern)
            except UsageError as error:
                raise SettingsError(f"topics: {error}") from None
            _overridden(self, f"topics.{pattern}", sections)

    def of(self, topic: str, *, has_objects: bool) -> TopicSettings:
        """
        Return the settings for *topic*: of the matching patterns below `topics`, the last one with a value applies.

        Its log rotates often enough for retention to find files to delete.
        """
        chosen = self
        for pattern, sections in self.topics.items():
            if fnmatchcase(topic, pattern):
                chosen = _overridden(chosen, f"topics.{pattern}", sections)
        if not has_objects:
            chosen = replace(chosen, deleter=chosen.deleter.without_objects())
        return replace(chosen, wal=_rotating(chosen.wal, chosen.deleter))

    @property
    def fsync_interval_ms_min(self) -> int:
        """The shortest sync interval of any topic."""
        chosen = [self, *(_overridden(self, "topics", sections) for sections in self.topics.values())]
        return min(one.wal.fsync_interval_ms for one in chosen)

    def require_effect(self, *, has_objects: bool, has_files: bool) -> None:
        """
        Check that every given setting has an effect.

        Raises:
            SettingsError: one has none, because of a missing object store or missing files.
        """
        if not has_objects:
            for section in ("uploader", "objects", "metadata"):
                for key in self._given_keys(section):
                    raise SettingsError(f"{key} has no effect: these topics have no objects (objects=…, or cloud)")
        deleter = self.deleter if has_objects else self.deleter.without_objects()
        per_topic = any(
            sections.get("deleter", {}).get(key) is not None for sections in self.topics.values() for key in _RETENTION
        )
        if not has_files:
            for key in self._given_keys("wal"):
                if key.endswith(_OF_FILES):
                    raise SettingsError(f"{key} has no effect: these topics are in memory only")
        if not has_files or not (deleter.deletes or per_topic):
            for key in self._given_keys("deleter"):
                if not has_files:
                    raise SettingsError(f"{key} has no effect: these topics are in memory only")
                if not key.endswith(_RETENTION):
                    raise SettingsError(
                        f"{key} has no effect: set deleter.retention_time_minutes or deleter.retention_size_mb"
                    )

    def _given_keys(self, section: str) -> list[str]:
        mine, default = getattr(self, section), _SECTIONS[section]()
        changed = {
            f"{section}.{one.name}"
            for one in dataclasses.fields(mine)
            if getattr(mine, one.name) != getattr(default, one.name)
        }
        changed |= {key for key in self.given if key.startswith(f"{section}.")}
        for pattern, sections in self.topics.items():
            changed |= {f"topics.{pattern}.{section}.{key}" for key in sections.get(section, ())}
        return sorted(changed)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> TopicSettings:
        """
        Build settings from the broker's file: from the section ``storage:``, or from the complete file.

        *environment* has the values of ``${NAME}``.

        Raises:
            SettingsError: an unknown key (the closest known one is named), an invalid value, or a name that the
                environment does not have.
        """
        if not isinstance(mapping, Mapping):
            raise SettingsError(f"settings: a mapping, not {type(mapping).__name__}: parse the broker's file first")
        storage = mapping.get("storage", mapping) if set(mapping) <= {"storage"} else mapping
        filled = _filled(storage, environment or {}, "storage")
        if not isinstance(filled, Mapping):
            raise SettingsError("storage must be a mapping")
        _known("storage", filled, {**_SECTIONS, "topics": None})
        values: dict[str, Any] = {}
        given = []
        for name, section in filled.items():
            if not isinstance(section, Mapping):
                raise SettingsError(f"{name} must be a mapping")
            values[name] = section if name == "topics" else _section(name, _SECTIONS[name], section)
            given += [f"{name}.{key}" for key in section]
        return cls(**values, given=frozenset(given))


_ETCD_KEYS = ("ca_file", "cert_file", "key_file", "user", "password")

_SECTIONS: dict[str, type[Any]] = {
    "wal": WalSettings,
    "uploader": UploaderSettings,
    "deleter": DeleterSettings,
    "objects": ObjectRetention,
    "cloud": CloudSettings,
    "metadata": MetadataSettings,
    "subscriptions": SubscriptionSettings,
}

_PER_TOPIC: dict[str, frozenset[str]] = {
    "wal": frozenset(
        {
            "cache_capacity", "cache_max_bytes", "fsync_interval_ms", "fsync_max_batch_bytes", "rotate_max_bytes",
            "rotate_max_seconds", "max_message_size",
        }
    ),
    "uploader": frozenset({"enabled", "interval_seconds", "max_batch_bytes", "compression"}),
    "deleter": frozenset(one.name for one in dataclasses.fields(DeleterSettings)),
    "objects": frozenset(one.name for one in dataclasses.fields(ObjectRetention)),
    "subscriptions": frozenset(one.name for one in dataclasses.fields(SubscriptionSettings)),
}  # fmt: skip
"""The settings that may differ per topic."""

_RETENTION = ("retention_time_minutes", "retention_size_mb")
_OF_FILES = ("file_name", "rotate_max_bytes", "rotate_max_seconds", "fsync_max_batch_bytes")

_FILES_PER_LIMIT = 8
_ROTATE_BYTES_MIN = 64 * 1024
_ROTATE_SECONDS_MIN = 60


def _overridden(settings: TopicSettings, where: str, sections: object) -> TopicSettings:
    if not isinstance(sections, Mapping):
        raise SettingsError(f"{where} must be a mapping")
    _known(where, sections, _PER_TOPIC)
    changed = {}
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            raise SettingsError(f"{where}.{name} must be a mapping")
        known = {one.name: str(one.type) for one in dataclasses.fields(_SECTIONS[name]) if one.name in _PER_TOPIC[name]}
        _known(f"{where}.{name}", section, known)
        values = {key: _value(f"{where}.{name}.{key}", key, known[key], value) for key, value in section.items()}
        try:
            changed[name] = replace(getattr(settings, name), **values)
        except SettingsError as error:
            raise SettingsError(f"{where}: {error}") from None
    return replace(settings, topics={}, **changed)


def _rotating(wal: WalSettings, deleter: DeleterSettings) -> WalSettings:
    """Return *wal* with files small and short enough for *deleter*: the active file is never deleted."""
    size_mb, minutes = deleter.retention_size_mb, deleter.retention_time_minutes
    if wal.rotate_max_bytes is None and size_mb is not None and not isinstance(size_mb, WithObjects):
        wal = replace(wal, rotate_max_bytes=max(size_mb * MIB // _FILES_PER_LIMIT, _ROTATE_BYTES_MIN))
    if wal.rotate_max_seconds is None and minutes is not None and not isinstance(minutes, WithObjects):
        wal = replace(wal, rotate_max_seconds=max(minutes * 60 // _FILES_PER_LIMIT, _ROTATE_SECONDS_MIN))
    return wal


_SIZES = frozenset(
    {"cache_max_bytes", "fsync_max_batch_bytes", "rotate_max_bytes", "max_message_size", "max_batch_bytes"}
)
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

T = TypeVar("T")


def _section(name: str, kind: Callable[..., T], section: Mapping[str, Any]) -> T:
    fields = {one.name: str(one.type) for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _known(name, section, fields)
    values = {key: _value(f"{name}.{key}", key, fields[key], value) for key, value in section.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise SettingsError(f"{name}: {error}") from error


def _value(path: str, key: str, kind: str, value: object) -> Any:
    if value is None and "None" in kind:
        return None
    if key in _SIZES:
        return parse_size_bytes(value, key=path)
    kinds: dict[str, tuple[type, ...]] = {
        "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "Mapping": (Mapping,),
    }  # fmt: skip
    wanted = kinds.get(re.split(r"[\s\[|]", kind)[0], (str,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise SettingsError(f"{path}: {type(value).__name__} where {kind} belongs")
    return value


def _known(where: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise SettingsError(f"unknown key {where}.{key}; {hint}")


def _filled(value: Any, environment: Mapping[str, str], where: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(one, environment, f"{where}.{key}") for key, one in value.items()}
    if not isinstance(value, str):
        return value
    missing = [name for name in _PLACEHOLDER.findall(value) if name not in environment]
    if missing:
        handed = "" if environment else " (pass it to from_mapping: environment=os.environ)"
        raise SettingsError(f"{where}: the environment has no {missing[0]}{handed}")
    # Mark it as a secret, so that no error shows it, whichever option it is for.
    return Secret(_PLACEHOLDER.sub(lambda match: environment[match[1]], value)) if _PLACEHOLDER.search(value) else value


def _at_least(least: int, section: str, settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not least <= value < math.inf:
            raise SettingsError(f"{section}.{name} must be at least {least}, and finite")


def _one_of(key: str, value: str, known: Any) -> None:
    words = get_args(known)
    if value not in words:
        raise SettingsError(f"{key}={value!r} must be one of {', '.join(words)}")
