"""The base class of all configs, and the decorator that turns fields of a settings dataclass into keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from quiver.errors import SettingsError
from quiver.pipeline.config.values import Duration, Size

__all__ = ["Config", "SettingsConfig", "SettingsKey", "default_of", "settings_config", "settings_keys"]

_Config = TypeVar("_Config", bound="Config")
_Settings = TypeVar("_Settings")


class SettingsKey(NamedTuple):
    """
    A key that is a field of a settings dataclass.

    Attributes:
        settings: the dataclass.
        field: the name of the field.
        key: the name of the key.
        is_nullable: whether null leaves the default to the dataclass.
    """

    settings: type[Any]
    field: str
    key: str
    is_nullable: bool


class Config(BaseModel):
    """A mapping that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    from_settings: ClassVar[tuple[SettingsKey, ...]] = ()

    def model_post_init(self, _context: Any, /) -> None:
        """Apply `check`."""
        try:
            self.check()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    def check(self) -> None:
        """
        Check values that depend on each other.

        Raises:
            ValueError: two of them contradict each other.
            SettingsError: a value is invalid.
        """

    def values_for(self, settings: type[Any]) -> dict[str, Any]:
        """Return field → value for the keys that are fields of *settings*, without nullable ones that are null."""
        values = {one: getattr(self, one.key) for one in self.from_settings if one.settings is settings}
        return {one.field: _plain(value) for one, value in values.items() if value is not None or not one.is_nullable}

    def build(self, settings: type[_Settings], **others: Any) -> _Settings:
        """
        Return *settings* with the values of its keys and with *others*, which take precedence.

        Raises:
            SettingsError: a value is invalid.
        """
        return settings(**(self.values_for(settings) | others))


class SettingsConfig(Config):
    """A config with a key for every field of one dataclass, which validates the values."""

    settings_type: ClassVar[type[Any]]

    def check(self) -> None:
        """Validate the values by creating the settings."""
        super().check()
        self.settings()

    def settings(self) -> Any:
        """
        Return the settings.

        Raises:
            SettingsError: a value is invalid.
        """
        return self.build(self.settings_type)


def _plain(value: Any) -> Any:
    if isinstance(value, SettingsConfig):
        return value.settings()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def settings_keys(
    settings: type[Any],
    *fields: str,
    types: Mapping[str, Any] | None = None,
    nullable: bool = False,
    **keys: str,
) -> Callable[[type[_Config]], type[_Config]]:
    """
    Return a decorator that adds keys to a config: each is a field of a dataclass, with its type and its default.

    In YAML, a field in seconds (`_s`) is a duration and a field in bytes is a size, both with units.

    Args:
        settings: the dataclass.
        fields: fields whose key is their name, without the suffix `_s`. Without *fields* and *keys*, all fields.
        types: key → its type in YAML where it differs, or a pydantic `Field` with its bounds.
        nullable: all these keys are null by default, which leaves the default to the dataclass.
        keys: key → field, where the names differ otherwise.
    """
    known = {one.name: one for one in dataclasses.fields(settings) if one.init}
    named = {name: name.removesuffix("_s") for name in fields or (() if keys else known)}
    named |= {name: key for key, name in keys.items()}
    hints = get_type_hints(settings)

    def declare(one: dataclasses.Field[Any], key: str) -> tuple[Any, Any]:
        given = (types or {}).get(key)
        kind = _yaml_type(one.name, hints[one.name]) if given is None or isinstance(given, FieldInfo) else given
        kind = Annotated[kind, given] if isinstance(given, FieldInfo) else kind
        if nullable:
            return kind | None, Field(default=None, repr=one.repr)
        if one.default_factory is not dataclasses.MISSING:
            return kind, Field(default_factory=one.default_factory, repr=one.repr)
        return kind, Field(default=... if one.default is dataclasses.MISSING else one.default, repr=one.repr)

    def add(model: type[_Config]) -> type[_Config]:
        order = sorted(named, key=list(known).index)  # that of the dataclass; refuses a name that it does not have
        declared: dict[str, Any] = {named[name]: declare(known[name], named[name]) for name in order}
        made = create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **declared
        )
        added = (SettingsKey(settings, name, key, nullable) for name, key in named.items())
        made.from_settings = (*model.from_settings, *added)
        if issubclass(made, SettingsConfig) and not (fields or keys):
            made.settings_type = settings
        return made

    return add


def _yaml_type(name: str, hint: Any) -> Any:
    words = name.split("_")
    kind = Duration if "s" in words else Size if "bytes" in words else None
    if kind is None:
        return hint
    return kind | None if type(None) in get_args(hint) else kind


def settings_config(name: str, settings: type[Any], **types: Any) -> type[SettingsConfig]:
    """Return a config with a key for every field of *settings*; *types* are those that differ in YAML."""
    return settings_keys(settings, types=types)(create_model(f"{name}_config", __base__=SettingsConfig))


def default_of(settings: type[Any], name: str) -> Any:
    """Return the default of the field *name* of a dataclass."""
    return {one.name: one.default for one in dataclasses.fields(settings)}[name]
