"""A processor of another package is found by its URN, and receives the keys of its node."""

import pytest
import yaml

from quiver.errors import PipelineError, UsageError
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.queries import chain_of

SOURCE = "def tenant(name):\n    return lambda frame: (name, frame)\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package with one entry point."""
    (tmp_path / "acme_tenant.py").write_text(SOURCE)
    info = tmp_path / "acme_tenant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tenant\nVersion: 1.0\n")
    points = "urn:acme:tenant:processor = acme_tenant:tenant\ngone = acme_tenant:gone\n"
    (info / "entry_points.txt").write_text(f"[quiver.processors]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)


def load(urn, config):
    nodes = {
        "in": {"type": "receiver:otlp", "config": {"listening_addr": "127.0.0.1:9"}},
        "store": {"type": "processor:persistence", "config": {"path": "buffer"}},
        "step": {"type": urn, "config": config},
        "out": {"type": "exporter:console"},
    }
    way = [{"from": "in", "to": "store"}, {"from": "store", "to": "step"}, {"from": "step", "to": "out"}]
    groups = {"a": {"pipelines": {"b": {"nodes": nodes, "connections": way}}}}
    text = yaml.safe_dump({"version": "otel_dataflow/v1", "groups": groups})
    return load_pipeline(text, source="p.yaml", values={})[0]


@pytest.mark.usefixtures("package")
def test_a_processor_receives_the_keys_of_its_node():
    """The entry point returns a function of frames."""
    pipeline = load("urn:acme:tenant:processor", {"name": "acme"})

    (function,) = chain_of(pipeline.routes["out"])
    assert function("frame") == ("acme", "frame")
    assert describe(pipeline)["processors"] == [
        {"node": "step", "does": "urn:acme:tenant:processor of acme_tenant:tenant"}
    ]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "urn", ["urn:acme:processor:tenant", "processor:tenant", "tenant:processor", "urn:acme:gone:processor"]
)
def test_each_spelling_of_a_processor_is_accepted(urn):
    """As for the included processors, in either structure of a file."""
    (node,) = load(urn, {"name": "acme"}).routes["out"].processors

    assert node.config.entry_point.name == ("gone" if "gone" in urn else "urn:acme:tenant:processor")


@pytest.mark.usefixtures("package")
def test_a_processor_of_another_namespace_is_not_used():
    """If both the file and the entry point have a namespace."""
    with pytest.raises(PipelineError, match="unknown type urn:other:tenant:processor"):
        load("urn:other:tenant:processor", {})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("urn", "config", "reason"),
    [
        ("urn:acme:tenant:processor", {"nam": "acme"}, "unexpected keyword argument 'nam'"),
        ("urn:acme:gone:processor", {}, "has no attribute 'gone'"),
    ],
)
def test_a_processor_that_cannot_be_created_has_a_reason(urn, config, reason):
    """Before any data are read; a restart could not help."""
    pipeline = load(urn, config)

    with pytest.raises(UsageError, match=reason):
        chain_of(pipeline.routes["out"])


def test_a_missing_package_is_an_unknown_urn():
    """As for a mistyped one."""
    with pytest.raises(PipelineError, match="unknown type urn:acme:tenant:processor"):
        load("urn:acme:tenant:processor", {"name": "acme"})
