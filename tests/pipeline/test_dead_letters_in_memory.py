"""Dead letters in memory are lost with their pipeline: it warns at the start, and counts them at the end."""

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle, BundleRef
from quiver.cli.main import build_app
from quiver.delivery.dead_letters import DeadLetters
from quiver.pipeline.descriptions.words import in_words
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.model import memory_directory
from quiver.pipeline.processes.buffer_contents import lost_dead_letters, places_of
from quiver.pipeline.processes.run import RunOptions, _Running, memory_buffers

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [out]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}
  out:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {grpc_endpoint: "http://127.0.0.1:14317", retry: {on_exhausted: "{{exhausted:-dead_letter}}"}}
"""


def pipeline_of(**values):
    return load_pipeline(PIPELINE, source="p.yaml", values=values)[0]


def dead_letter_lines(pipeline):
    return [one for one in describe(pipeline)["says"] if "ead letters" in one]


def test_check_warns_about_dead_letters_in_memory(tmp_path):
    """About the loss, and how to list them before; only if the retry policy can produce dead letters."""
    pipeline = pipeline_of().placed(tmp_path)
    (reported,) = dead_letter_lines(pipeline)
    assert "are lost with it" in reported
    assert f"quiver dead-letters list {memory_directory(tmp_path)}/memory" in reported
    (exporter,) = describe(pipeline)["exporters"]
    assert in_words(exporter)["retry"].endswith("is kept as a dead letter in memory while the pipeline runs")
    for exhausted in ("drop", "halt"):
        assert dead_letter_lines(pipeline_of(exhausted=exhausted)) == []


def test_the_warning_names_the_directory(tmp_path):
    """The one of the run, which depends on the run directory."""
    (tmp_path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    arguments = ["run", f"{tmp_path}/p.yaml", "--check", "--run-dir", f"{tmp_path}/run", "--json"]
    shown = CliRunner().invoke(build_app(), arguments)
    found = json.loads(shown.output)
    place = f"{memory_directory(tmp_path / 'run')}/memory"
    assert any(f"quiver dead-letters list {place}" in one for one in found["says"])
    assert (found["persistence"]["path"], found["buffers"][0]["path"]) == (None, place)


@pytest.mark.parametrize("is_closed", [True, False])
def test_lost_dead_letters_are_counted_at_the_end(tmp_path, is_closed):
    """In sealed segments, and in the log of a process that was killed."""
    pipeline = pipeline_of().placed(tmp_path)
    assert lost_dead_letters(places_of(pipeline)) == []
    with memory_buffers(pipeline, tmp_path):
        directory = pipeline.main.config.path
        quiver.open(directory).close()
        assert lost_dead_letters(places_of(pipeline)) == []
        dead_letters = DeadLetters(directory, "out", background=False)
        for index in range(2):
            bundle = Bundle({60: pa.record_batch([pa.array([b""], pa.binary())], schema=OTLP_SCHEMA)})
            dead_letters.add(BundleRef(0, index), bundle, reason="HTTP 400")
        if is_closed:
            dead_letters.close()
        messages = []
        _Running(pipeline, RunOptions([], tmp_path), tmp_path, lambda: pipeline, messages.append).report_remaining()
        dead_letters.close()
    assert messages == [f"out: 2 dead letters left in {directory}, lost: it was in memory"]
