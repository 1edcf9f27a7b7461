"""Building blocks of all configs: sizes, durations, addresses and file modes as written in YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from quiver.delivery.signal_filter import check_signals
from quiver.errors import SettingsError
from quiver.receivers.settings import split_address
from quiver.settings import parse_duration_s, parse_size_bytes

__all__ = [
    "DURATION_SCHEMA",
    "SIZE_SCHEMA",
    "Address",
    "Duration",
    "FileMode",
    "Signals",
    "Size",
    "SizeCap",
    "Texts",
    "read_signals",
]


def _address(value: object) -> object:
    if isinstance(value, str):
        try:
            _, port = split_address(value)
        except SettingsError as error:
            raise ValueError(str(error)) from error
        if port == 0:
            raise ValueError("port 0 is any port; a restarted receiver needs the same port as before")
    return value


def _size(value: object) -> int:
    try:
        return parse_size_bytes(value)
    except SettingsError as error:
        raise ValueError(str(error).removeprefix("size: ")) from error


def _size_cap(value: object) -> int | None:
    return None if value is None or value == "none" else _size(value)


def _duration(value: object) -> float:
    if value is False or (isinstance(value, str) and value.lower() in {"off", "none"}):
        return 0.0  # YAML reads a bare `off` as false
    try:
        return parse_duration_s(value)
    except SettingsError as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


def _file_mode(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, str) or re.fullmatch("0?[0-7]{3}", value) is None:
        # YAML reads 0640 as 416, and 640 as 640.
        raise ValueError(f'{value!r} is not the mode of a file; write it in quotes, for example "0640"')
    return int(value, 8)


def read_signals(value: object) -> tuple[str, ...] | None:
    """
    Return the signals that `signals: [logs, traces]` names; None for all.

    Raises:
        ValueError: it is not a list of different signals.
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError("signals must be a list, for example [logs, traces]")  # noqa: TRY004 - pydantic expects it
    try:
        return check_signals(value)
    except SettingsError as error:
        raise ValueError(str(error)) from error


def _texts(value: object) -> object:
    """Convert numbers and booleans of the YAML to strings: Spark's options are strings."""
    if not isinstance(value, Mapping):
        return value
    for key, text in value.items():
        if text is None:
            raise ValueError(f"{key} has no value; write an empty string in quotes")
        if isinstance(text, list | Mapping):
            raise ValueError(f"{key} must be one value, not a list or a mapping")  # noqa: TRY004 - pydantic expects it
    return {key: str(text).lower() if isinstance(text, bool) else str(text) for key, text in value.items()}


SIZE_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "examples": ["32MiB", "10GB"]},
    ]
}
"""The JSON schema of a size: a number of bytes, or a text with a unit. Texts are also placeholders."""

DURATION_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "examples": ["25ms", "5s", "72h"]},
    ]
}
"""The JSON schema of a duration: a number of seconds, or a text with units."""

_TEXT_SCHEMA = {"type": ["string", "number", "boolean"]}

Texts = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    WithJsonSchema({"type": "object", "additionalProperties": _TEXT_SCHEMA}),
]
Signals = Annotated[tuple[str, ...] | None, BeforeValidator(read_signals)]
FileMode = Annotated[
    int | None,
    BeforeValidator(_file_mode),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^0?[0-7]{3}$"}, {"type": "null"}]}),
]
Address = Annotated[str, BeforeValidator(_address)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1), WithJsonSchema(SIZE_SCHEMA)]
SizeCap = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_size_cap),
    WithJsonSchema({"anyOf": [*SIZE_SCHEMA["anyOf"], {"type": "null"}]}),
]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"anyOf": [*DURATION_SCHEMA["anyOf"], {"const": False}]}),  # YAML reads a bare `off` as false
]
