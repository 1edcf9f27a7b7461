"""Every pipeline file in examples/ is valid, can be drawn, and says what it will do."""

import json

import pytest
from run_process import EXAMPLES, with_processor
from typer.testing import CliRunner

from quiver.cli import main as entry
from quiver.pipeline.config.flow import BufferKind
from quiver.pipeline.diagram import as_mermaid, as_text
from quiver.pipeline.processes.child import read_pipeline

FILES = sorted(EXAMPLES.glob("*.yaml"))
VALUES = {"backend_hostname": "far"}
"""For the placeholder that has no default."""


def call(*arguments):
    return CliRunner().invoke(entry.build_app(), [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def processor(tmp_path, monkeypatch):
    """The package that one of the examples needs."""
    monkeypatch.syspath_prepend(with_processor(tmp_path / "site"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_it_is_valid_and_drawn(file):
    """With the defaults of its placeholders, every node is in the picture."""
    pipeline = read_pipeline(file, [], VALUES)
    text, mermaid = as_text(pipeline), as_mermaid(pipeline)

    for name in pipeline.nodes:
        assert name in text
        assert f"n_{name}" in mermaid
    kinds = BufferKind.__args__
    assert {buffer.kind for buffer in pipeline.buffers} <= set(kinds)


def test_check_tells_the_same_in_three_ways():
    """For people with the picture, for programs, for Mermaid; nothing starts."""
    file = EXAMPLES / "late-persistence.yaml"
    words, values, drawn = (call("run", file, *how) for how in (["--check"], ["--check", "--json"], ["--mermaid"]))

    assert [one.exit_code for one in (words, values, drawn)] == [0, 0, 0]
    told = json.loads(values.output)
    assert [one["node"] for one in told["buffers"]] == ["intake", "persistence"]
    assert "otlp_receiver ──▶ (intake)" in words.output
    assert "security: plain text, this machine only" in words.output
    assert "subscriber: otlp_exporter" in words.output
    assert told["says"][-1] in words.output
    assert drawn.output.startswith("flowchart LR\n")


def test_check_tells_of_cores():
    """Each has a store of its own; metrics are told by each."""
    told = json.loads(call("run", EXAMPLES / "otlp-forward.yaml", "--check", "--json", "--cores", 4).output)

    assert told["persistence"]["cores"] == 4
    assert told["says"][-1].startswith("4 ingest processes share each port")
    assert call("run", EXAMPLES / "otlp-forward.yaml", "--cores", 0).exit_code == 2


@pytest.mark.parametrize("options", [["--json"], ["--mermaid", "--json"], ["--check", "--drain", "soon"]])
def test_options_that_would_have_no_effect_are_refused(options):
    """A pipeline that runs prints no JSON; what is wrong is said with `--check`, too."""
    result = call("run", EXAMPLES / "otlp-forward.yaml", *options)

    assert (result.exit_code, "needs --check" in result.output) == (2, "--json" in options)
