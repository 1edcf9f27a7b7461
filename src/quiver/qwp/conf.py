"""
Connect strings, taken apart: ``ws::addr=host:9000;sf_dir=/var/spool/qwp;sender_id=edge-1;``

A service, two colons, and keys with values, each ended by a semicolon (the last one may be left out). A semicolon
inside a value is written twice. Errors say where, never what a value is: it may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quiver.errors import SettingsError

__all__ = ["Address", "parse_addresses", "parse_bool", "parse_conf", "parse_millis", "parse_size", "parse_whole"]

_NAME = re.compile(r"[A-Za-z0-9_]+")
_SIZE = re.compile(r"(\d{1,18})([kKmMgGtT]?)[bB]?")
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DEFAULT_PORT = 9000
_TRUE = frozenset({"on", "true"})
_FALSE = frozenset({"off", "false"})


@dataclass(frozen=True, slots=True)
class Address:
    """One server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_conf(text: str) -> tuple[str, list[tuple[str, str]]]:
    """
    Return the service of a connect string, and its keys and values in order.

    Raises:
        SettingsError: it is no connect string, or a key other than ``addr`` is there twice.
    """
    service = _NAME.match(text)
    if service is None or not text.startswith("::", service.end()):
        raise SettingsError("a connect string begins with a service and two colons: ws::addr=host:9000;")
    pairs: list[tuple[str, str]] = []
    at = service.end() + 2
    while at < len(text):
        key = _NAME.match(text, at)
        if key is None or not text.startswith("=", key.end()):
            raise SettingsError(f"connect string, position {at}: a key and an equals sign are expected")
        value, at = _take_value(text, key.end() + 1)
        if key[0] != "addr" and any(known == key[0] for known, _ in pairs):
            raise SettingsError(f"connect string: {key[0]} is there twice")
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
        SettingsError: one is empty, malformed or there twice.
    """
    found: list[Address] = []
    for value in values:
        for entry in value.split(","):
            address = _parse_address(entry.strip())
            if address in found:
                raise SettingsError(f"addr: {address} is there twice")
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
        raise SettingsError(f"addr: {entry!r}: a port is a number of 1 to 65535")
    return Address(host, int(port))


def parse_size(key: str, value: str) -> int:
    """
    Return a size in bytes: a whole number, with K, M, G or T for powers of 1024.

    Raises:
        SettingsError: it is none.
    """
    match = _SIZE.fullmatch(value)
    if match is None:
        raise SettingsError(f"{key}: a size is a whole number with K, M, G, T or nothing, not {value!r}")
    return int(match[1]) << _POWERS[match[2].lower()]


def parse_whole(key: str, value: str, *, least: int = 0) -> int:
    """
    Return a whole number of at least *least*.

    Raises:
        SettingsError: it is none.
    """
    if not re.fullmatch(r"-?\d{1,18}", value) or int(value) < least:
        raise SettingsError(f"{key}: a whole number of at least {least}, not {value!r}")
    return int(value)


def parse_millis(key: str, value: str) -> float:
    """
    Return seconds; the value is in milliseconds. Negative ones are allowed: they switch off.

    Raises:
        SettingsError: it is no whole number.
    """
    return parse_whole(key, value, least=-(10**12)) / 1000


def parse_bool(key: str, value: str) -> bool:
    """
    Return whether a switch is on.

    Raises:
        SettingsError: it is neither ``on`` nor ``off``, ``true`` nor ``false``.
    """
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise SettingsError(f"{key}: on or off, not {value!r}")
