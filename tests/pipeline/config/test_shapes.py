"""A file may have either structure; both become the same pipeline, and an error in either has its line."""

import pytest

from quiver.errors import PipelineError
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.plugins import PLUGINS, find_plugin

LATER = """\
version: otel_dataflow/v1
groups:
  default:
    pipelines:
      main:
        nodes:
          receiver:
            type: receiver:otlp
            config:
              listening_addr: "127.0.0.1:4317"
          durable_buffer:
            type: processor:durable_buffer
            config:
              path: buffer
              poll_interval: 50ms
              max_age: 72h
              retention_size_cap: "10GB"
              size_cap_policy: drop_oldest
              otlp_handling: convert_to_arrow
              max_segment_open_duration: 2s
              initial_retry_interval: 3s
              max_retry_interval: 40s
              retry_multiplier: 4
              max_in_flight: 7
          exporter:
            type: exporter:otlp_grpc
            config: {grpc_endpoint: "http://127.0.0.1:14317"}
        connections:
          - from: receiver
            to: durable_buffer
          - from: durable_buffer
            to: exporter
"""


def load(text):
    return load_pipeline(text, source="p.yaml", values={})[0]


def refused(old, new):
    assert LATER.count(old) == 1, old
    with pytest.raises(PipelineError) as caught:
        load(LATER.replace(old, new))
    return caught.value.line, caught.value.reason


def test_the_newer_structure_is_read():
    """Groups, nodes and connections; the flat keys of the buffer become the settings of the store."""
    pipeline = load(LATER)

    settings = pipeline.persistence.settings
    assert (settings.maintain_interval_s, settings.max_age_s, settings.segment_open_s_max) == (0.05, 72 * 3600.0, 2.0)
    assert (settings.size_cap_bytes, settings.size_cap_policy) == (10_000_000_000, "drop_oldest")
    assert [name for name, _ in pipeline.receivers] == ["receiver"]
    assert [name for name, _ in pipeline.forwarders] == ["exporter"]


def test_settings_of_the_buffer_are_defaults_of_its_neighbors():
    """Its settings for handling and retries apply to nodes without their own."""
    pipeline = load(LATER)
    ((_, receiver),), ((_, exporter),) = pipeline.receivers, pipeline.forwarders
    policy = exporter.policy()

    assert receiver.otlp_handling == "convert_to_arrow"
    assert (policy.initial_interval_s, policy.max_interval_s, policy.multiplier) == (3.0, 40.0, 4.0)
    assert exporter.settings().in_flight_max == 7

    own = LATER.replace('14317"}', '14317", initial_retry_interval: 1s}')
    ((_, exporter),) = load(own).forwarders
    assert (exporter.policy().initial_interval_s, exporter.policy().max_interval_s) == (1.0, 40.0)
    own = LATER.replace('14317"}', '14317", retry: {initial_interval: 1s, multiplier: 3, jitter: 0}}')
    ((_, exporter),) = load(own).forwarders
    policy = exporter.policy()
    assert (policy.initial_interval_s, policy.max_interval_s, policy.multiplier) == (1.0, 40.0, 3.0)


def test_older_names_are_read():
    """`pipeline_groups`, types with the kind last, and empty settings."""
    older = LATER.replace("groups:", "settings: {}\npipeline_groups:").replace("receiver:otlp", "otlp:receiver")
    older = older.replace("processor:durable_buffer", "durable_buffer:processor").replace(
        "exporter:otlp_grpc", "urn:otel:exporter:otlp"
    )

    assert describe(load(older)) == describe(load(LATER))


def test_either_end_of_a_connection_may_be_a_list():
    """One node to several, and several to one."""
    text = LATER.replace("            to: exporter", "            to: [exporter]").replace(
        "          - from: receiver\n", "          - from: [receiver]\n"
    )

    assert describe(load(text)) == describe(load(LATER))


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("otel_dataflow/v1", "otel_dataflow/v2", 1, "version otel_dataflow/v2 is not known; this version reads"),
        ("version: otel_dataflow/v1\n", "", 1, "version is missing; write version: otel_dataflow/v1"),
        ("groups:", "group:", 2, "unknown key group; did you mean groups?"),
        ("      main:\n", "      main:\n        settings: {default_pdata_channel_size: 100}\n", 6,
         "settings.default_pdata_channel_size has no effect here"),
        ("      main:\n",
         "      main:\n        policies: {resources: {core_allocation: {type: core_count, count: 4}}}\n", 6,
         "policies.resources.core_allocation has no effect here; write cores: 4 next to version"),
        ("  default:\n", "  default:\n    policies: {resources: {core_allocation: {type: all_cores}}}\n", 4,
         "policies.resources.core_allocation has no effect here; write cores: N next to version"),
        ("groups:", "policies: {health: {}}\ngroups:", 2, "policies.health has no effect here; leave policies out"),
        ("groups:", "policies: [1]\ngroups:", 2, "policies must be a mapping of keys to values"),
        ("type: receiver:otlp", "type: receiver:otpl", 8, "unknown type receiver:otpl"),
        ("            type: receiver:otlp\n", "", 7, "type is missing"),
        ("type: receiver:otlp", "typ: receiver:otlp", 8, "unknown key typ; did you mean type?"),
        ("          - from: receiver", "          - from: receivr", 29, "there is no node named receivr"),
        ("          - from: receiver", "          - from: [[]]", 29, "there is no node named []"),
        ("            to: exporter", "            to: exportr", 32, "there is no node named exportr"),
        ("            to: exporter", "            too: exporter", 32, "unknown key too; did you mean to?"),
        ("          - from: durable_buffer\n            to: exporter\n", "", 25, "no node feeds exporter"),
        ("poll_interval: 50ms", "poll_interval: 0", 13, "maintain_interval must be positive"),
        ("poll_interval: 50ms", "poll_intervall: 1s", 15, "unknown key poll_intervall; did you mean poll_interval?"),
    ],
)  # fmt: skip
def test_errors_have_the_line_of_the_key(old, new, line, reason):
    """The line of the key itself."""
    found = refused(old, new)

    assert found[0] == line, found
    assert found[1].startswith(reason)


@pytest.mark.parametrize("urn", PLUGINS)
def test_a_plugin_is_found_by_each_spelling(urn):
    """Name and kind in either order, with and without the namespace."""
    space, one, other = urn.removeprefix("urn:").split(":")

    for text in (urn, f"urn:{space}:{other}:{one}", f"{one}:{other}", f"{other}:{one}"):
        assert find_plugin(text) is PLUGINS[urn], text


@pytest.mark.parametrize("text", ["", ":", "otlp", "urn", "urn::", "urn:otel:otlp", "urn:a:b:c:d", "receiver:receiver"])
def test_an_unknown_name_is_not_a_plugin(text):
    """It raises no exception."""
    assert find_plugin(text) is None
