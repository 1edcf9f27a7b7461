"""The commands about pipeline files: `init`, `schema` and `plugins`."""

import json
import re

import pytest
import yaml

from quiver.cli.pipeline.init import Kind, template
from quiver.pipeline.config.base import Config
from quiver.pipeline.config.shapes import _LATER_KEYS, _REFUSED_KEYS, _TOP_KEYS
from quiver.pipeline.descriptions.key_descriptions import attributes_of, describe_keys, first_sentence
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.plugins import PLUGINS, find_plugin, spellings
from quiver.settings import Settings


@pytest.mark.parametrize("kind", list(Kind))
def test_init_writes_a_file_that_check_accepts(call, tmp_path, monkeypatch, kind):
    """Each kind, with its defaults; a second `init` does not overwrite it."""
    monkeypatch.chdir(tmp_path)
    assert call("init", kind.value).exit_code == 0
    written = (tmp_path / "pipeline.yaml").read_text()
    checked = call("run", "pipeline.yaml", "--check", "--json")

    assert json.loads(checked.stdout)["receivers"][0]["node"] == "otlp_receiver"
    assert written.count("#") > 8
    again = call("init", kind.value)
    assert (again.exit_code, "not overwritten" in again.output) == (2, True)
    assert (tmp_path / "pipeline.yaml").read_text() == written


def test_init_writes_to_another_file_or_to_standard_output(call, tmp_path):
    assert call("init", "--to", tmp_path / "other.yaml").exit_code == 0
    assert (tmp_path / "other.yaml").read_text() == template(Kind.forward)
    assert call("init", "edge", "--to", "-").output == template(Kind.edge)


@pytest.mark.parametrize("kind", list(Kind))
def test_commented_keys_of_a_template_are_valid(tmp_path, kind):
    """A user who removes the `#` in front of a key gets a valid file."""
    (tmp_path / "token").write_text("t\n")
    text = re.sub(r"^(\s+)# (\w+: [\[{].*)$", r"\1\2", template(kind), flags=re.MULTILINE)
    text = text.replace("/etc/quiver", str(tmp_path))
    load_pipeline(text, source="p.yaml", values={})


def missing_descriptions(schema, path=()):
    """Yield the keys of *schema* without a description."""
    if isinstance(schema, list):
        for one in schema:
            yield from missing_descriptions(one, path)
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        for key, one in properties.items() if isinstance(properties, dict) else ():
            if "$ref" not in one and not one.get("description"):
                yield ".".join((*path, key))
        for key, one in schema.items():
            yield from missing_descriptions(
                one, path if key in {"properties", "anyOf", "oneOf", "$defs"} else (*path, key)
            )


def test_the_schema_describes_every_key(call):
    """Of both forms, of all sections, and of every plugin, however deep."""
    schema = json.loads(call("schema").output)
    assert list(missing_descriptions(schema)) == []
    assert len(schema["$defs"]) == len(PLUGINS)
    first, later = (form["properties"].keys() for form in schema["oneOf"])
    assert (set(first), set(later) | {*_REFUSED_KEYS}) == ({*_TOP_KEYS}, {*_LATER_KEYS})
    assert '"title": "' not in json.dumps(schema["$defs"])


def test_the_schema_has_the_keys_of_the_models():
    """Neither more nor fewer keys than a file may have."""
    for plugin in PLUGINS.values():
        if plugin.model is not None:
            assert describe_keys(plugin.model).keys() <= set(plugin.model.model_fields)


@pytest.mark.parametrize(
    ("value", "key", "valid"),
    [("16MiB", "max_request_bytes", True), (1024, "max_request_bytes", True), (True, "max_request_bytes", False)],
)
def test_sizes_are_numbers_or_texts(call, value, key, valid):
    """As in YAML: bytes, or a text with a unit."""
    schema = json.loads(call("schema", "receiver:otlp").output)
    kinds = [one["type"] for one in schema["properties"][key]["anyOf"]]
    assert kinds == ["integer", "string"]
    assert (not isinstance(value, bool) and isinstance(value, int | str)) == valid


def test_the_schema_of_a_persistence_node_is_nested(call):
    """The dotted keys of the settings become mappings."""
    schema = json.loads(call("schema", "processor:persistence").output)
    assert set(schema["properties"]["segment"]["properties"]) >= {"target_size", "compression"}
    assert schema["properties"]["cold"]["properties"]["fleet"]["properties"]["name"]["description"]
    assert schema["properties"]["durability"]["enum"] == ["wal", "segment_only"]


def test_an_unknown_plugin_has_a_suggestion(call):
    result = call("schema", "receiver:otpl")
    assert (result.exit_code, "did you mean receiver:otlp?" in result.output) == (2, True)


def test_plugins_lists_every_plugin(call):
    """With its purpose, where it runs, and all spellings, each of which names it."""
    found = {one["plugin"]: one for one in json.loads(call("plugins", "--json").output)}

    assert found.keys() >= PLUGINS.keys()
    assert all(one["purpose"] for one in found.values())
    assert found["urn:quiver:delta:exporter"]["runs_in"] == "spark"
    assert found["urn:otel:otlp:exporter"]["runs_in"] == "ingest"
    for urn, plugin in PLUGINS.items():
        assert {find_plugin(text) for text in [urn, *found[urn]["also"]]} == {plugin}
    assert "urn:quiver:parquet:exporter" in call("plugins").output


def test_first_sentences_are_short():
    """A line of a table."""
    for plugin in PLUGINS.values():
        assert 5 < len(first_sentence(plugin.model)) < 120
        assert len(spellings(plugin)) == len(set(spellings(plugin)))


def test_attributes_are_read_from_docstrings():
    """Of one class, with lines that continue, until the next section."""

    class Example(Config):
        """
        Example.

        Attributes:
            first: one line
                and another.
            second: see `first`.

        Raises:
            ValueError: never.
        """

    assert attributes_of(Example) == {"first": "One line and another.", "second": "See `first`."}
    assert attributes_of(Config) == {}
    assert set(Settings.keys().values()) <= set(attributes_of(Settings))


def test_templates_are_yaml():
    for kind in Kind:
        assert isinstance(yaml.safe_load(template(kind)), dict)
