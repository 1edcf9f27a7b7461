"""
What the configs of all plugins are made of: sizes, durations and addresses as people write them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from quiver.errors import SettingsInvalid
from quiver.receivers.settings import split_address
from quiver.settings import parse_duration_s, parse_size_bytes

__all__ = ["Address", "Config", "Duration", "Size"]


def _address(value: object) -> object:
    if isinstance(value, str):
        try:
            _, port = split_address(value)
        except SettingsInvalid as error:
            raise ValueError(str(error)) from error
        if port == 0:
            raise ValueError("port 0 is any port; a restarted receiver must come back at the same one")
    return value


def _size(value: object) -> int:
    try:
        return parse_size_bytes(value)
    except SettingsInvalid as error:
        raise ValueError(str(error).removeprefix("size: ")) from error


def _duration(value: object) -> float:
    if value is False or (isinstance(value, str) and value.lower() in {"off", "none"}):
        return 0.0  # YAML reads a bare `off` as false
    try:
        return parse_duration_s(value)
    except SettingsInvalid as error:
        raise ValueError(str(error).removeprefix("duration: ")) from error


Address = Annotated[str, BeforeValidator(_address)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
Duration = Annotated[float, BeforeValidator(_duration)]


class Config(BaseModel):
    """
    A mapping of known keys; others are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
