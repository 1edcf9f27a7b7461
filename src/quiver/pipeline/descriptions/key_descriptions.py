"""
Descriptions of the keys of a pipeline file, from the docstrings of the classes that define them.

A key is described once, where its value is used: in the section `Attributes` of a settings dataclass, or of the config
itself.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from quiver.pipeline.config.base import Config
from quiver.settings import Settings

__all__ = ["attributes_of", "describe_keys", "first_sentence", "store_keys"]

_SECTION = re.compile(r"^Attributes[^:\n]*:\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): (.*)$")


def describe_keys(model: type[Config]) -> dict[str, str]:
    """Return key → description for the keys of *model* that are described."""
    found: dict[str, str] = {}
    for one in model.from_settings:
        described: dict[str, str] = {}
        for base in reversed(one.settings.__mro__):
            described |= attributes_of(base)
        if one.field in described:
            found[one.key] = described[one.field]
    for base in reversed(model.__mro__):
        found |= {key: text for key, text in attributes_of(base).items() if key in model.model_fields}
    return found


def store_keys() -> dict[str, tuple[str, str]]:
    """Return the keys of a persistence node, dotted, each with the field of `Settings` and its description."""
    described = attributes_of(Settings)
    return {key: (field, described[field]) for key, field in Settings.keys().items()}


def attributes_of(kind: type[Any]) -> dict[str, str]:
    """Return name → description from the section `Attributes` of the docstring of *kind* itself, on one line each."""
    section = _SECTION.search(f"{inspect.cleandoc(kind.__dict__.get('__doc__') or '')}\n")
    found: dict[str, str] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        text = line.removeprefix("    ")
        entry = _ENTRY.match(text)
        if entry is not None:
            name = entry[1]
            found[name] = entry[2]
        elif name and text.startswith(" "):
            found[name] += f" {text.strip()}"
        else:
            name = ""  # the next section, at the same depth as the entries
    return {name: text[0].upper() + text[1:] if text[:1].islower() else text for name, text in found.items()}


def first_sentence(model: type[Config] | None) -> str:
    """Return the first sentence about a plugin: of its config, or of its settings. None is a persistence node."""
    if model is None:
        return "Buffers data on disk until every exporter has it"
    kind = getattr(model, "settings_type", model) if model.__doc__ is None else model
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    text = re.sub(r"^`urn:[^`]*`[:.]? ?", "", text)
    sentence = re.split(r"(?<=\.) ", text)[0].rstrip(".")
    return sentence[:1].upper() + sentence[1:]
