"""Keys of a pipeline file that are fields of a settings dataclass are declared once: in the dataclass."""

import ast
import dataclasses
import inspect
import pkgutil
import textwrap
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

import pytest
from pydantic import Field, ValidationError

import quiver.pipeline.config
from quiver.errors import SettingsError
from quiver.pipeline.config.base import Config, SettingsConfig, default_of, settings_config, settings_keys
from quiver.receivers.polled_settings import StoreReceiverSettings

DECIDED = {
    "DurableBufferConfig.max_segment_open_duration": "has another default: with 5 s, exporters would lag",
    "DurableBufferConfig.retention_size_cap": "has another default: a store has no cap",
    "MemoryConfig.size_cap": "has another default: a store has no cap",
    "OtapExporterConfig.compression_method": "has a third value, which compresses the tables and not the messages",
    "OtlpReceiverConfig.listening_addr": "has no default: protocols may take its place",
    "QwpReceiverConfig.listening_addr": "has no default",
}
"""The keys that are declared although a dataclass has a field for them, with the reason."""

_IGNORED = {"s", "max", "min", "bytes"}


def configs(base=Config):
    for one in base.__subclasses__():
        yield one
        yield from configs(one)


def declared(model):
    """Return the keys of a class body: not those that its decorators add, and not sections with keys of their own."""
    added = {one.key for one in model.__dict__.get("from_settings", ()) if one not in model.__base__.from_settings}
    found = set(inspect.get_annotations(model)) & set(model.model_fields) - added
    return {name for name in found if not isinstance(model.model_fields[name].default, Config)}


def built(model):
    """Return the settings that a config has keys for, and those that its methods return."""
    found = {one.settings for one in model.from_settings}
    for _, method in inspect.getmembers(model, inspect.isfunction):
        names = vars(import_module(method.__module__))
        found.add(names.get(str(inspect.get_annotations(method).get("return"))))
    known = {one for one in found if isinstance(one, type) and dataclasses.is_dataclass(one)}
    return {one for one in known if not one.__module__.startswith("quiver.pipeline")}


def words(name):
    return {word.removesuffix("s").replace("ie", "y") for word in name.split("_") if word not in _IGNORED}


def copied(model):
    """Return the keys of *model* that its source passes to a call under the name of an argument."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    given = [argument.value for call in ast.walk(tree) if isinstance(call, ast.Call) for argument in call.keywords]
    return {one.attr for one in given if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"}


def repeated(model):
    """Return the declared keys of *model* that a dataclass which it builds has a field for."""
    fields = [words(one.name) for settings in built(model) for one in dataclasses.fields(settings)]
    return {key for key in declared(model) if words(key) in fields or key in copied(model)}


def test_no_field_is_declared_twice():
    for module in pkgutil.iter_modules(quiver.pipeline.config.__path__):
        import_module(f"quiver.pipeline.config.{module.name}")
    models = {one for one in configs() if one.__module__.startswith("quiver.pipeline.config")}
    assert len(models) > 40

    assert {f"{model.__name__}.{key}" for model in models for key in repeated(model)} == set(DECIDED)


class ByName(Config):
    poll_interval: float = 0.25

    def settings(self) -> "StoreReceiverSettings":
        return StoreReceiverSettings("theirs", "pipeline", "latest", self.poll_interval)


class ByCopy(Config):
    every: float = 0.25

    def settings(self) -> StoreReceiverSettings:
        return StoreReceiverSettings("theirs", poll_interval_s=self.every)


@dataclass(frozen=True)
class Limits:
    count: int
    wait_s: float = 0.5
    idle_s: float | None = None
    size_bytes_max: int = 1024
    kind: Literal["a", "b"] = "a"
    secret: str = field(default="x", repr=False)
    names: tuple[str, ...] = field(default_factory=tuple)
    made: int = field(init=False, default=3)

    def __post_init__(self):
        if self.count > 9:
            raise SettingsError("count must be at most 9")


@settings_keys(Limits, "idle_s", "kind", "secret", max_size="size_bytes_max", types={"max_size": Field(le=4096)})
@settings_keys(Limits, pause="wait_s", nullable=True)
class Some(Config):
    other: int = 1


@settings_keys(Limits)
class Every(SettingsConfig):
    pass


@pytest.mark.parametrize(("model", "keys"), [(ByName, {"poll_interval"}), (ByCopy, {"every"}), (Some, set())])
def test_a_field_that_is_declared_twice_is_found(model, keys):
    """By its name, and by the argument that it becomes."""
    assert repeated(model) == keys


def test_a_key_has_the_type_and_the_default_of_its_field():
    fields = Every.model_fields
    assert list(fields) == ["count", "wait", "idle", "size_bytes_max", "kind", "secret", "names"]
    assert (fields["count"].is_required(), fields["wait"].default, fields["kind"].annotation) == (
        True, 0.5, Literal["a", "b"],
    )  # fmt: skip
    every = Every.model_validate({"count": 1, "wait": "25ms", "idle": "1h", "size_bytes_max": "2KiB", "names": ["n"]})
    assert every.settings() == Limits(1, 0.025, 3600.0, 2048, names=("n",))
    assert "secret" not in repr(every)
    with pytest.raises(ValidationError, match="count must be at most 9"):
        Every.model_validate({"count": 10})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Every.model_validate({"count": 1, "made": 1})


def test_a_nullable_key_leaves_the_default_to_the_dataclass():
    assert Some.model_validate({"pause": None}).build(Limits, count=1) == Limits(1)
    assert Some.model_validate({"pause": "2s"}).values_for(Limits)["wait_s"] == 2.0
    assert "wait_s" not in Some().values_for(Limits)
    assert Some.model_validate({"idle": None}).values_for(Limits)["idle_s"] is None
    assert Some.model_validate({"idle": "1s"}).build(Limits, count=1, idle_s=2.0).idle_s == 2.0


@pytest.mark.parametrize(
    "given", [{"max_size": "5KiB"}, {"pause": "x"}, {"kind": "c"}, {"wait": 1}, {"size_bytes_max": 1}]
)
def test_bounds_and_names_apply(given):
    with pytest.raises(ValidationError):
        Some.model_validate(given)


def test_a_nested_config_becomes_its_settings():
    @dataclass(frozen=True)
    class Outer:
        parts: tuple[object, ...]

    outer = settings_config("outer", Outer, parts=tuple[Every, ...])
    assert outer.model_validate({"parts": [{"count": 2}]}).settings() == Outer((Limits(2),))


def test_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="not in list"):
        settings_keys(Limits, "counts")(Config)
    assert default_of(Limits, "wait_s") == 0.5
