"""The keys of a node: their meaning, and what is refused."""

from __future__ import annotations

import re

import pytest
from fleet_rig import SETTINGS, FleetReader, NodeRig

import quiver
import store_rig
from quiver.errors import PipelineError, SettingsError
from quiver.pipeline.descriptions.words import in_words
from quiver.pipeline.explain import describe
from quiver.pipeline.processes.child import read_pipeline
from quiver.settings import Settings
from quiver.store.format.fleet.names import is_node_name

pytestmark = pytest.mark.usefixtures("quiet")

COLD = {"objects": "/fleet", "fleet": {"name": "edge-17", "subscribers": ["lake"]}}


def test_keys():
    settings = Settings.from_mapping({
        "cold": {
            "objects": "/fleet",
            "fleet": {
                "name": "edge-17", "subscribers": ["lake", "audit"], "seal": "2m", "ack_poll": "1m",
                "labels": {"site": "Graz", "line": "3"},
            },
        }
    })  # fmt: skip
    assert settings.fleet_name == "edge-17"
    assert settings.fleet_subscribers == ("lake", "audit")
    assert (settings.seal_age_s, settings.fleet_ack_poll_s) == (120.0, 60.0)
    assert dict(settings.fleet_labels) == {"site": "Graz", "line": "3"}
    assert Settings.from_mapping({"cold": COLD}).seal_age_s == 60.0
    assert Settings().seal_age_s == Settings().segment_open_s_max


@pytest.mark.parametrize(("changes", "said"), [
    ({"cold.fleet.name": "a/b"}, "cold.fleet.name"), ({"cold.fleet.name": ""}, "cold.fleet.name"),
    ({"cold.fleet.name": None}, "needs cold.fleet.name"), ({"cold.objects": None}, "needs cold.objects"),
    ({"cold.fleet.subscribers": []}, "must name the readers"), ({"cold.fleet.subscribers": "lake"}, "list of words"),
    ({"cold.fleet.subscribers": ["a b"]}, "letters, digits"), ({"cold.fleet.subscribers": ["a", "a"]}, "different"),
    ({"cold.fleet.seal": 0}, "seal must be positive"), ({"cold.fleet.ack_poll": 0}, "ack_poll must be positive"),
    ({"cold.fleet.labels": {"site": 5}}, "names to texts"), ({"cold.fleet.labels": {"site": "a\nb"}}, "printable"),
    ({"cold.fleet.labels": {"": "a"}}, "printable"), ({"cold.keep_finished": "1h"}, "keep_finished"),
    ({"segment.max_open_duration": "5s"}, "set cold.fleet.seal"), ({"cold.fleet.sael": "1s"}, "did you mean"),
])  # fmt: skip
def test_refused(changes, said):
    keys = {"cold.objects": "/fleet", "cold.fleet.name": "edge-17", "cold.fleet.subscribers": ["lake"], **changes}
    with pytest.raises(SettingsError, match=re.escape(said)):
        Settings.from_mapping(keys)


@pytest.mark.parametrize("name", ["a", "edge-17.plant_3", "x" * 128, "", ".a", "a/b", "x" * 129, "ä", "a\n"])
def test_names_are_those_of_the_record(name):
    """A name that the settings accept can be written."""
    keys = {"cold_objects": SETTINGS.cold_objects, "fleet_subscribers": ("lake",), "fleet_name": name}
    if is_node_name(name):
        assert Settings(**keys).fleet_name == name
    else:
        with pytest.raises(SettingsError):
            Settings(**keys)


def test_a_segment_is_sealed_by_age_although_the_reader_is_slow():
    """The age is random, up to a fifth below the setting, so nodes do not upload at the same moment."""
    rig = NodeRig(segment_bytes_max=1 << 20)
    with rig.open() as store:
        for number in range(12):
            store.ingest(store_rig.numbered(number))
            rig.clock.advance(47)
            store.maintain()
            assert store.stats()["open_bundles"] == 1
            rig.clock.advance(13)
            store.maintain()
            assert store.stats()["open_bundles"] == 0
        reader = FleetReader(rig.tier)
        reader.read()
        assert reader.numbers[rig.identity] == list(range(12))


PIPELINE = """
nodes:
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    config: {protocols: {grpc: {listening_addr: "127.0.0.1:4317"}}}
    out_ports: {out_port: {destinations: [buffer]}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    config:
      path: node
      cold:
        objects: fleet
        fleet: {name: "${HOST}", subscribers: [lake], labels: {site: Graz}}
"""


def test_a_node_in_a_pipeline_file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    try:
        pipeline = read_pipeline(path, [], {"HOST": "edge-18"})
    except PipelineError as error:
        pytest.fail(str(error))
    [buffer] = describe(pipeline)["buffers"]
    assert "node edge-18 of a fleet, read by lake" in in_words(buffer)["object tier"]


def test_cores_are_nodes_of_their_own(tmp_path):
    """Each core has an identity; all have the name of the node."""
    settings = Settings.from_mapping({"cold": {"objects": str(tmp_path / "fleet"), "fleet": COLD["fleet"]}})
    with quiver.open(tmp_path / "node", settings, cores=2, background=False) as store:
        for number in range(4):
            store.ingest(store_rig.numbered(number), durable=True)
        store.seal()
        store.maintain()
        assert [status.id for status in store.subscribers()] == ["lake"]
        reader = FleetReader(store_objects(tmp_path / "fleet"))
        reader.read()
        assert sorted(number for numbers in reader.numbers.values() for number in numbers) == [0, 1, 2, 3]


def store_objects(path):
    """The bucket in a directory."""
    from quiver.objects.opening import open_objects

    return open_objects(str(path), writable=False)
