"""The settings of a sender: every key of a connect string, with its default."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from quiver.errors import SettingsError
from quiver.qwp.conf import (
    Address,
    parse_addresses,
    parse_bool,
    parse_conf,
    parse_integer,
    parse_millis,
    parse_size,
)
from quiver.qwp.connection.session import Category, Policy
from quiver.qwp.format.names import check_sender_id
from quiver.qwp.slots.dead_letters import DEAD_LETTERS_BYTES_MAX
from quiver.qwp.slots.ring import RingSettings, SfDurability
from quiver.qwp.wire.message import BATCH_BYTES_DEFAULT, SCHEMAS_MAX, Dialect

__all__ = ["IGNORED_KEYS", "InitialConnect", "SenderSettings"]

InitialConnect = Literal["off", "on", "async"]
_MIB = 1 << 20
_MEMORY_BYTES_MAX = 128 * _MIB
_DISK_BYTES_MAX = 10 << 30
_SEGMENT_BYTES_MAX = 1 << 40
_SERVICES = {"ws": False, "wss": True}

IGNORED_KEYS = frozenset({
    "acquire_timeout_ms", "auth", "buffer_pool_size", "compression", "compression_level", "connect_timeout",
    "failover", "failover_backoff_initial_ms", "failover_backoff_max_ms", "failover_max_attempts",
    "failover_max_duration_ms", "idle_timeout_ms", "lazy_connect", "max_batch_rows", "max_version", "path",
    "query_pool_max", "query_pool_min", "query_timeout_ms", "request_timeout", "sender_pool_max", "sender_pool_min",
    "target", "zone",
})  # fmt: skip
"""Keys for clients that query; a sender ignores them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """
    How a sender stores, sends and drops frames. Names are those of the connect string unless its key contains a unit.

    Attributes:
        addresses: the servers, in order of preference.
        tls: whether the connection is encrypted (``wss``).
        sf_dir: the directory of the slots; None keeps frames in memory.
        sender_id: the name of the slot.
        segment_bytes: ``sf_max_bytes``.
        bytes_max: ``sf_max_total_bytes``; None means 128 MiB in memory and 10 GiB on disk.
        durability: ``sf_durability``.
        append_deadline_s: how long an append waits for space.
        drain_orphans: whether to drain other slots in `sf_dir`, too.
        drainers_max: the maximum number of concurrent drainers.
        outage_s_max, first_backoff_s, backoff_s_max: ``reconnect_*``.
        initial_connect: the behavior when no server answers at the start.
        close_flush_s: how long `close` waits for confirmation; 0 or less does not wait.
        durable_ack: count a frame as confirmed only once the server reports it as durable.
        keepalive_s: the interval of pings that ask for durable acknowledgements; 0 or less disables them.
        inbox_capacity: the maximum number of pending errors for the handler.
        policies: category → what to do with a refused frame; see `quiver.qwp.connection.session.Policy`.
        auto_flush_rows, auto_flush_bytes, auto_flush_s: limits at which a row triggers a flush; None disables one.
        message_bytes_max: ``max_buf_size``: the maximum size of a message.
        offline_bytes_max: ``quiver_offline_frame_bytes``: the maximum size of a message of several rows until a server
            has announced its limit.
        tls_roots, tls_roots_password: a PEM file; with a password, a Java trust store (JKS or PKCS#12).
        buffer_bytes: ``init_buf_size``: the initial size of the encoding buffer.
        schemas_max: ``max_schemas_per_connection``: the maximum number of table schemas in one message. Only the
            dialect `schema` numbers them, from 0 in every message.
        handshake_s: ``auth_timeout_ms``, for each server.
        rejections_max, poison_window_s: a frame that is refused this often over at least this time is not sent again.
        dialect: ``quiver_dialect``: inline, or schema for servers of the beta.
        dead_letters: ``quiver_dead_letters``: whether dropped frames are stored in files.
        dead_letters_bytes_max: ``quiver_dead_letters_max_bytes``: the maximum size of all these files; the oldest
            frames are removed first.

    Raises:
        SettingsError: a value is out of range, or two values conflict.
    """

    addresses: tuple[Address, ...]
    tls: bool = False
    sf_dir: str | None = None
    sender_id: str = "default"
    segment_bytes: int = 4 * _MIB
    bytes_max: int | None = None
    durability: SfDurability = "memory"
    append_deadline_s: float = 30.0
    drain_orphans: bool = False
    drainers_max: int = 4
    outage_s_max: float = 300.0
    first_backoff_s: float = 0.1
    backoff_s_max: float = 5.0
    initial_connect: InitialConnect = "off"
    close_flush_s: float = 5.0
    durable_ack: bool = False
    keepalive_s: float = 0.2
    inbox_capacity: int = 256
    policies: Mapping[Category, Policy] = field(default_factory=lambda: MappingProxyType({}))
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_verify: bool = True
    tls_roots: str | None = None
    tls_roots_password: str | None = field(default=None, repr=False)
    auto_flush_rows: int | None = 1000
    auto_flush_bytes: int | None = None
    auto_flush_s: float | None = 0.1
    buffer_bytes: int = 64 * 1024
    message_bytes_max: int = 100 * _MIB
    offline_bytes_max: int = BATCH_BYTES_DEFAULT
    name_bytes_max: int = 127
    schemas_max: int = SCHEMAS_MAX
    handshake_s: float = 15.0
    rejections_max: int = 4
    poison_window_s: float = 5.0
    client_id: str | None = None
    dialect: Dialect = "inline"
    dead_letters: bool = True
    dead_letters_bytes_max: int = DEAD_LETTERS_BYTES_MAX

    def __post_init__(self) -> None:
        check_sender_id(self.sender_id)
        _require(bool(self.addresses), "addr is missing: ws::addr=host:9000;")
        _require(256 <= self.segment_bytes <= _SEGMENT_BYTES_MAX, "sf_max_bytes must be 256 bytes to 1 TiB")
        _require(self.ring.bytes_max >= 2 * self.segment_bytes, "sf_max_total_bytes must be at least 2 * sf_max_bytes")
        _require(self.inbox_capacity >= 16, "error_inbox_capacity must be at least 16")
        _require(self.rejections_max >= 1, "max_frame_rejections must be at least 1")
        _require(1 <= self.name_bytes_max <= 127, "max_name_len must be 1 to 127")
        _require(
            0 < self.first_backoff_s <= self.backoff_s_max,
            "reconnect_initial_backoff_millis must be above 0 and at most reconnect_max_backoff_millis",
        )
        _require(self.outage_s_max >= 0, "reconnect_max_duration_millis must not be negative")
        _require(self.handshake_s > 0, "auth_timeout_ms must be above 0")
        _require(self.append_deadline_s >= 0, "sf_append_deadline_millis must not be negative")
        _require(self.username is None or self.token is None, "username and token are mutually exclusive")
        _require(":" not in (self.username or ""), "username must not contain a colon: the password follows it")
        _require((self.username is None) == (self.password is None), "username and password must be set together")
        _require(self.tls or (self.tls_verify and self.tls_roots is None), "tls_verify and tls_roots need wss, not ws")
        _require(self.tls_roots_password is None or self.tls_roots is not None, "tls_roots_password needs tls_roots")
        _require(self.buffer_bytes >= 1, "init_buf_size must be at least 1")
        _require(self.dead_letters_bytes_max >= 1, "quiver_dead_letters_max_bytes must be at least 1")
        _require(self.offline_bytes_max >= 1, "quiver_offline_frame_bytes must be at least 1")
        _require(1 <= self.schemas_max <= SCHEMAS_MAX, f"max_schemas_per_connection must be 1 to {SCHEMAS_MAX}")

    @property
    def ring(self) -> RingSettings:
        """The settings of the ring."""
        default = _MEMORY_BYTES_MAX if self.sf_dir is None else _DISK_BYTES_MAX
        bytes_max = self.bytes_max if self.bytes_max is not None else max(default, 2 * self.segment_bytes)
        return RingSettings(self.segment_bytes, bytes_max, self.append_deadline_s, self.durability)

    @classmethod
    def from_conf(cls, text: str) -> SenderSettings:
        """
        Return the settings in the connect string *text*.

        Raises:
            SettingsError: a key is unknown (the message suggests the nearest one), or a value is invalid.
        """
        service, pairs = parse_conf(text)
        return _from_pairs(service, pairs)

    @classmethod
    def from_mapping(cls, keys: Mapping[str, Any], *, service: str = "ws") -> SenderSettings:
        """
        Return settings from *keys*, named as in a connect string. Values may be numbers, booleans or lists of
        addresses.

        Raises:
            SettingsError: a key is unknown, or a value is invalid.
        """
        pairs: list[tuple[str, str]] = []
        for key, value in keys.items():
            many = value if isinstance(value, list | tuple) else [value]
            pairs.extend((key, _text(one)) for one in many if one is not None)
        return _from_pairs(service, pairs)


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise SettingsError(message)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _from_pairs(service: str, pairs: list[tuple[str, str]]) -> SenderSettings:
    if service not in _SERVICES:
        raise SettingsError(f"{service}: store and forward needs ws or wss; other transports do not acknowledge frames")
    values: dict[str, Any] = {
        "tls": _SERVICES[service],
        "addresses": parse_addresses([value for key, value in pairs if key == "addr"]),
    }
    policies: dict[Category, Policy] = {}
    general: Policy | None = None
    for key, value in pairs:
        if key == "addr" or key in IGNORED_KEYS:
            continue
        if key == "on_server_error":
            general = _policy(key, value)
        elif key in _POLICIES:
            policy = _policy(key, value)
            if policy is not None:
                policies[_POLICIES[key]] = policy
        elif key in _KEYS:
            name, parse = _KEYS[key]
            if name in values:
                raise SettingsError(f"{key} is an alias of a key that is already set")
            values[name] = parse(key, value)
        else:
            raise SettingsError(_unknown(key))
    if general is not None:
        policies = {**_for_all(general), **policies}
    values["policies"] = MappingProxyType(policies)
    _check_together(values)
    if values.pop("auto_flush", True) is False:
        values.update(auto_flush_rows=None, auto_flush_bytes=None, auto_flush_s=None)
    return SenderSettings(**values)


def _for_all(policy: Policy) -> dict[Category, Policy]:
    # A category that is retried by default is never dropped or halted for, but may be retried without limit.
    retried = (Category.NOT_WRITABLE, Category.DICTIONARY_GAP) if policy is Policy.RETRY else ()
    return dict.fromkeys((*_POLICIES.values(), *retried), policy)


def _check_together(values: Mapping[str, Any]) -> None:
    if values.get("buffer_bytes", 0) > values.get("message_bytes_max", values.get("buffer_bytes", 0)):
        raise SettingsError("init_buf_size must not be larger than max_buf_size")
    if values.get("dead_letters") is False and "dead_letters_bytes_max" in values:
        raise SettingsError("quiver_dead_letters_max_bytes needs quiver_dead_letters=on")


def _unknown(key: str) -> str:
    if key == "sf_sync_interval_millis":
        return f"{key} needs sf_durability=periodic, which is not supported; use sf_durability=flush or append"
    known = sorted([*_KEYS, *_POLICIES, "addr", "on_server_error"])
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"unknown key {key}" + (f"; did you mean {near[0]}?" if near else f"; known keys are {', '.join(known)}")


def _policy(key: str, value: str) -> Policy | None:
    words = {"halt": Policy.HALT, "drop": Policy.DROP, "drop_and_continue": Policy.DROP, "retry": Policy.RETRY}
    if value.lower() == "auto":
        return None
    if value.lower() not in words:
        raise SettingsError(f"{key}: expected halt, drop, retry or auto, not {value!r}")
    return words[value.lower()]


_POLICIES = {
    "on_schema_error": Category.SCHEMA_MISMATCH,
    "on_parse_error": Category.PARSE_ERROR,
    "on_internal_error": Category.INTERNAL_ERROR,
    "on_security_error": Category.SECURITY_ERROR,
    "on_write_error": Category.WRITE_ERROR,
}


def _count(least: int) -> Callable[[str, str], int]:
    return lambda key, value: parse_integer(key, value, least=least)


def _or_off(parse: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    # Some clients write 0 for off.
    return lambda key, value: None if value.lower() in {"off", "0"} else parse(key, value)


def _word(words: tuple[str, ...]) -> Callable[[str, str], str]:
    def parse(key: str, value: str) -> str:
        if value not in words:
            hint = "; flush or append sync more often" if value == "periodic" else ""
            raise SettingsError(f"{key}: expected {', '.join(words[:-1])} or {words[-1]}, not {value!r}{hint}")
        return value

    return parse


def _initial(key: str, value: str) -> InitialConnect:
    aliases: dict[str, InitialConnect] = {
        "off": "off", "false": "off", "on": "on", "sync": "on", "true": "on", "async": "async",
    }  # fmt: skip
    if value.lower() not in aliases:
        raise SettingsError(f"{key}: expected off, on or async, not {value!r}")
    return aliases[value.lower()]


def _verify(key: str, value: str) -> bool:
    if value not in {"on", "unsafe_off"}:
        raise SettingsError(f"{key}: expected on or unsafe_off, not {value!r}")
    return value == "on"


def _given(key: str, value: str) -> str:
    if not value:
        raise SettingsError(f"{key} is empty")
    return value


_KEYS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "sf_dir": ("sf_dir", _given),
    "sender_id": ("sender_id", lambda _, value: value),
    "sf_max_bytes": ("segment_bytes", parse_size),
    "sf_max_segment_bytes": ("segment_bytes", parse_size),
    "sf_max_total_bytes": ("bytes_max", parse_size),
    "sf_durability": ("durability", _word(get_args(SfDurability))),
    "sf_append_deadline_millis": ("append_deadline_s", parse_millis),
    "drain_orphans": ("drain_orphans", parse_bool),
    "max_background_drainers": ("drainers_max", _count(0)),
    "reconnect_max_duration_millis": ("outage_s_max", parse_millis),
    "reconnect_initial_backoff_millis": ("first_backoff_s", parse_millis),
    "reconnect_max_backoff_millis": ("backoff_s_max", parse_millis),
    "initial_connect_retry": ("initial_connect", _initial),
    "close_flush_timeout_millis": ("close_flush_s", parse_millis),
    "request_durable_ack": ("durable_ack", parse_bool),
    "durable_ack_keepalive_interval_millis": ("keepalive_s", parse_millis),
    "error_inbox_capacity": ("inbox_capacity", _count(16)),
    "username": ("username", _given),
    "password": ("password", _given),
    "token": ("token", _given),
    "tls_verify": ("tls_verify", _verify),
    "tls_roots": ("tls_roots", _given),
    "tls_ca": ("tls_roots", _given),
    "tls_roots_password": ("tls_roots_password", _given),
    "auto_flush": ("auto_flush", parse_bool),
    "auto_flush_rows": ("auto_flush_rows", _or_off(_count(1))),
    "auto_flush_bytes": ("auto_flush_bytes", _or_off(parse_size)),
    "auto_flush_interval": ("auto_flush_s", _or_off(lambda key, value: parse_integer(key, value, least=1) / 1000)),
    "init_buf_size": ("buffer_bytes", parse_size),
    "max_buf_size": ("message_bytes_max", parse_size),
    "max_name_len": ("name_bytes_max", _count(1)),
    "max_schemas_per_connection": ("schemas_max", _count(1)),
    "auth_timeout_ms": ("handshake_s", parse_millis),
    "max_frame_rejections": ("rejections_max", _count(1)),
    "poison_min_escalation_window_millis": ("poison_window_s", parse_millis),
    "client_id": ("client_id", _given),
    "quiver_dialect": ("dialect", _word(get_args(Dialect))),
    "quiver_dead_letters": ("dead_letters", parse_bool),
    "quiver_dead_letters_max_bytes": ("dead_letters_bytes_max", parse_size),
    "quiver_offline_frame_bytes": ("offline_bytes_max", parse_size),
}
