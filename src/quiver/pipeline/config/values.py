"""Building blocks of all configs: sizes, durations, addresses and file modes as written in YAML."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, ClassVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from quiver.errors import SettingsError
from quiver.receivers.settings import split_address
from quiver.settings import parse_duration_s, parse_size_bytes

__all__ = ["Address", "Config", "Duration", "FileMode", "SettingsConfig", "Size", "settings_config"]


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


FileMode = Annotated[int | None, BeforeValidator(_file_mode)]
Address = Annotated[str, BeforeValidator(_address)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
Duration = Annotated[float, BeforeValidator(_duration)]


class Config(BaseModel):
    """A mapping that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SettingsConfig(Config):
    """A config whose keys are the fields of a frozen dataclass, which validates them."""

    settings_type: ClassVar[type[Any]]
    settings_fields: ClassVar[tuple[str, ...]] = ()

    def model_post_init(self, context: Any, /) -> None:
        """Validate the values by creating the settings."""
        super().model_post_init(context)
        try:
            self.settings()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    def settings(self) -> Any:
        """
        Return the settings.

        Raises:
            SettingsError: a value is invalid.
        """
        return self.settings_type(**{name: _plain(getattr(self, name)) for name in self.settings_fields})


def _plain(value: Any) -> Any:
    if isinstance(value, SettingsConfig):
        return value.settings()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def settings_config(name: str, settings: type[Any], base: type[Config] = Config, **types: Any) -> type[SettingsConfig]:
    """
    Return a config class whose keys are the fields of *settings* and those of *base*.

    Args:
        name: the name of the config, for messages.
        settings: a dataclass.
        base: a config with further keys.
        types: types of fields that YAML writes differently.
    """
    hints = get_type_hints(settings) | types
    fields: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        if one.default is not dataclasses.MISSING:
            default: Any = one.default
        elif one.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=one.default_factory, repr=one.repr)
        else:
            default = ...
        fields[one.name] = (hints[one.name], default)
    bases: Any = (SettingsConfig,) if base is Config else (SettingsConfig, base)
    made: type[SettingsConfig] = create_model(f"{name}_config", __base__=bases, **fields)
    made.settings_type = settings
    made.settings_fields = tuple(fields)
    return made
