"""Every pipeline file in examples/ is valid, and can be drawn and described."""

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
"""Values for placeholders without a default."""


def call(*arguments):
    return CliRunner().invoke(entry.build_app(), [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def processor(tmp_path, monkeypatch):
    """Install the package that one of the examples needs."""
    monkeypatch.syspath_prepend(with_processor(tmp_path / "site"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_example_is_valid_and_drawn(file):
    """With the defaults of its placeholders; every node is in the diagram."""
    pipeline = read_pipeline(file, [], VALUES)
    text, mermaid = as_text(pipeline), as_mermaid(pipeline)

    for name in pipeline.nodes:
        assert name in text
        assert f"n_{name.replace('-', '_')}" in mermaid
    kinds = BufferKind.__args__
    assert {buffer.kind for buffer in pipeline.buffers} <= set(kinds)


def test_check_has_three_output_formats():
    """Text with the diagram, JSON, and Mermaid; no process is started."""
    file = EXAMPLES / "late-persistence.yaml"
    words, values, drawn = (call("run", file, *how) for how in (["--check"], ["--check", "--json"], ["--mermaid"]))

    assert [one.exit_code for one in (words, values, drawn)] == [0, 0, 0]
    described = json.loads(values.output)
    assert [one["node"] for one in described["buffers"]] == ["intake", "persistence"]
    assert "otlp_receiver ──▶ (intake)" in words.output
    assert "security: plain text, this machine only" in words.output
    assert "subscriber: otlp_exporter" in words.output
    assert described["says"][-1] in words.output
    assert drawn.output.startswith("flowchart LR\n")


def test_check_describes_cores(tmp_path):
    """Each has its own store and its own metrics; the option takes precedence over the file."""
    described = json.loads(call("run", EXAMPLES / "otlp-forward.yaml", "--check", "--json", "--cores", 4).output)

    assert described["persistence"]["cores"] == 4
    assert described["says"][-1].startswith("4 ingest processes share each port")
    assert call("run", EXAMPLES / "otlp-forward.yaml", "--cores", 0).exit_code == 2
    copy = tmp_path / "p.yaml"
    copy.write_text(f"{(EXAMPLES / 'otlp-forward.yaml').read_text()}cores: 3\n")
    described = json.loads(call("run", copy, "--check", "--json").output)
    assert described["persistence"]["cores"] == 3
    assert described["says"][-1].startswith("3 ingest processes share each port")
    assert json.loads(call("run", copy, "--check", "--json", "--cores", 2).output)["persistence"]["cores"] == 2


@pytest.mark.parametrize("options", [["--json"], ["--mermaid", "--json"], ["--check", "--drain", "soon"]])
def test_options_without_effect_are_refused(options):
    """A running pipeline prints no JSON; `--check` describes errors, too."""
    result = call("run", EXAMPLES / "otlp-forward.yaml", *options)

    assert (result.exit_code, "needs --check" in result.output) == (2, "--json" in options)
