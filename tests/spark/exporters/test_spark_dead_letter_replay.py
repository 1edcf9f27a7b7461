"""`quiver dead-letters replay --pipeline` for an exporter on Spark uses the processors in the current pipeline file."""

import json

import pyarrow.parquet as pq
import pytest
from stores import logs_request, seal_requests
from typer.testing import CliRunner

from quiver.bundle import BundleRef
from quiver.cli.main import build_app
from quiver.delivery.batches import read_stored
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.observe import InMemoryObserver
from quiver.pipeline.processes.child import read_pipeline
from quiver.pipeline.queries import plan_queries
from quiver.pipeline.replay import QueryReplay
from quiver.primitives.disk.real_files import REAL_FILES

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {{out_port: {{destinations: [buffer]}}}}
    config: {{listening_addr: "127.0.0.1:4317"}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {{out_port: {{destinations: [{first}]}}}}
    config: {{path: "{root}"}}
  share:
    kind: processor
    plugin_urn: "urn:quiver:sql:processor"
    out_ports: {{out_port: {{destinations: [lake]}}}}
    config: {{query: "SELECT 6 / {divisor} AS share FROM logs"}}
  lake:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {{path: "{out}"}}
"""


@pytest.mark.usefixtures("spark")
def test_a_dead_letter_is_exported_once_after_the_processor_is_fixed(store, tmp_path):
    """Before, it stays, with the reason; one that was exported but not dropped is not exported again."""
    seal_requests(store, logs_request([1]), logs_request([0, 3]), b"\xff")
    with DeadLetters(store.root, "lake", background=False) as dead_letters:
        for index in (1, 2):
            ref = BundleRef(0, index)
            dead_letters.add(ref, read_stored(REAL_FILES, store.root, ref), reason="PROCESSOR: by zero")
    out = tmp_path / "out"

    def replay(divisor):
        path = tmp_path / "pipeline.yaml"
        path.write_text(PIPELINE.format(root=store.root, out=out, divisor=divisor, first="share"))
        words = ["dead-letters", "replay", store.root, "lake", "--pipeline", str(path), "--json"]
        result = CliRunner().invoke(build_app(), words)
        return result.exit_code, {one["bundle"]: one["why_not"] for one in json.loads(result.stdout)}

    code, failed = replay("time_unix_nano")
    assert (code, set(failed)) == (1, {"0:1", "0:2"})
    assert "DIVIDE_BY_ZERO" in failed["0:1"]
    assert failed["0:2"].startswith("UNDECODABLE")
    code, failed = replay("nullif(time_unix_nano, 0)")
    assert (code, failed["0:1"]) == (1, None)
    assert [letter.ref for letter in read_dead_letters(REAL_FILES, store.root, "lake")] == [BundleRef(0, 2)]
    with DeadLetters(store.root, "lake", background=False) as dead_letters:
        ref = BundleRef(0, 1)
        dead_letters.add(ref, read_stored(REAL_FILES, store.root, ref), reason="killed before it was dropped")
    replay("nullif(time_unix_nano, 0)")
    rows = [row["share"] for file in (out / "logs").glob("[!.]*") for row in pq.read_table(file).to_pylist()]
    assert sorted(rows, key=str) == [2.0, None]


@pytest.mark.usefixtures("spark")
def test_dead_letters_are_replayed_automatically_after_the_processor_is_fixed(spark, store, tmp_path):
    """With the same processor, each is tried once and stays; an undecodable one needs the command."""
    seal_requests(store, logs_request([1]), logs_request([0, 3]), b"\xff")
    with DeadLetters(store.root, "lake", background=False) as dead_letters:
        for index, is_refused in ((1, False), (2, True)):
            ref = BundleRef(0, index)
            bundle = read_stored(REAL_FILES, store.root, ref)
            dead_letters.add(ref, bundle, reason="5 attempts failed", is_refused=is_refused)
    out = tmp_path / "out"

    def replay(divisor):
        path = tmp_path / "pipeline.yaml"
        path.write_text(PIPELINE.format(root=store.root, out=out, divisor=divisor, first="share"))
        (plan,) = plan_queries(read_pipeline(path, [], {}), tmp_path)
        observer = InMemoryObserver()
        QueryReplay(spark, plan, lambda: True, observer, background=False).look()
        name = "quiver.exporter.replayed_total"
        return {dict(kept)["outcome"]: count for (one, kept), count in observer.counts.items() if one == name}

    assert replay("time_unix_nano") == {"refused": 1}
    assert replay("nullif(time_unix_nano, 0)") == {"delivered": 1}
    assert [letter.ref for letter in read_dead_letters(REAL_FILES, store.root, "lake")] == [BundleRef(0, 2)]
    rows = [row["share"] for file in (out / "logs").glob("[!.]*") for row in pq.read_table(file).to_pylist()]
    assert sorted(rows, key=str) == [2.0, None]
