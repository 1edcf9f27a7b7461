"""
Parsing of connect strings: ``ws::addr=host:9000;sf_dir=/var/spool/qwp;sender_id=edge-1;``

A connect string is a service, two colons, and key-value pairs, each followed by a semicolon. The last semicolon is
optional. A semicolon inside a value is doubled. Errors give the position but never the value, which may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quiver.errors import SettingsError

__all__ = ["Address", "parse_addresses", "parse_bool", "parse_conf", "parse_integer", "parse_millis", "parse_size"]

_NAME = re.compile(r"[A-Za-z0-9_]+")
_SIZE = re.compile(r"(\d{1,18})([kKmMgGtT]?)[bB]?")
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DEFAULT_PORT = 9000
_TRUE = frozenset({"on", "true"})
_FALSE = frozenset({"off", "false"})


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_conf(text: str) -> tuple[str, list[tuple[str, str]]]:
    """
    Return the service of a connect string, and its keys and values in order.

    Raises:
        SettingsError: the string is malformed, or a key other than ``addr`` is repeated.
    """
    service = _NAME.match(text)
    if service is None or not text.startswith("::", service.end()):
        raise SettingsError("a connect string starts with a service and two colons: ws::addr=host:9000;")
    pairs: list[tuple[str, str]] = []
    at = service.end() + 2
    while at < len(text):
        key = _NAME.match(text, at)
        if key is None or not text.startswith("=", key.end()):
            raise SettingsError(f"connect string, position {at}: expected a key and an equals sign")
        value, at = _take_value(text, key.end() + 1)
        if key[0] != "addr" and any(known == key[0] for known, _ in pairs):
            raise SettingsError(f"connect string: {key[0]} is repeated")
        pairs.append((key[0], value))
    return service[0], pairs


def _take_value(text: str, at: int) -> tuple[str, int]:
    start = at
    pieces: list[str] = []
    while True:
        end = text.find(";", at)
        if end < 0:
            end = len(text)
        pieces.append(text[at:end])
        if text.startswith(";;", end):
            pieces.append(";")
            at = end + 2
            continue
        value = "".join(pieces)
        if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in value):
            raise SettingsError(f"connect string, value at position {start}: control characters are not allowed")
        return value, end + 1


def parse_addresses(values: list[str]) -> tuple[Address, ...]:
    """
    Return the servers of one or several ``addr`` values, in order.

    Raises:
        SettingsError: an address is empty, malformed or repeated.
    """
    found: list[Address] = []
    for value in values:
        for entry in value.split(","):
            address = _parse_address(entry.strip())
            if address in found:
                raise SettingsError(f"addr: {address} is repeated")
            found.append(address)
    if not found:
        raise SettingsError("addr is missing: ws::addr=host:9000;")
    return tuple(found)


def _parse_address(entry: str) -> Address:
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%]+)\](?::(.*))?|([^\[\]:]+)(?::(.*))?", entry)
    if match is None:
        raise SettingsError(f"addr: {entry!r} is not host, host:port or [v6]:port")
    host = match[1] or match[3]
    port = match[2] if match[1] else match[4]
    if port is None:
        return Address(host, _DEFAULT_PORT)
    if not re.fullmatch(r"\d{1,5}", port) or not 1 <= int(port) <= 65_535:
        raise SettingsError(f"addr: {entry!r}: the port must be a number from 1 to 65535")
    return Address(host, int(port))


def parse_size(key: str, value: str) -> int:
    """
    Return a size in bytes: an integer, optionally with K, M, G or T for powers of 1024.

    Raises:
        SettingsError: the value is not a size.
    """
    match = _SIZE.fullmatch(value)
    if match is None:
        raise SettingsError(f"{key}: expected an integer, optionally with K, M, G or T, not {value!r}")
    return int(match[1]) << _POWERS[match[2].lower()]


def parse_integer(key: str, value: str, *, least: int = 0) -> int:
    """
    Return an integer of at least *least*.

    Raises:
        SettingsError: the value is not an integer, or it is too small.
    """
    if not re.fullmatch(r"-?\d{1,18}", value) or int(value) < least:
        raise SettingsError(f"{key}: expected an integer of at least {least}, not {value!r}")
    return int(value)


def parse_millis(key: str, value: str) -> float:
    """
    Return a value in milliseconds as seconds. Negative values are allowed: they disable a feature.

    Raises:
        SettingsError: the value is not an integer.
    """
    return parse_integer(key, value, least=-(10**12)) / 1000


def parse_bool(key: str, value: str) -> bool:
    """
    Return whether a switch is on.

    Raises:
        SettingsError: the value is not ``on``, ``off``, ``true`` or ``false``.
    """
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise SettingsError(f"{key}: expected on or off, not {value!r}")
