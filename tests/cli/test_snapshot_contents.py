"""
A snapshot has everything that was accepted: committed batches of sinks, dead letters, companion buffers, and for a
pipeline file also Spark's checkpoints. Missing parts are listed, and the exit code is 1.
"""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import quiver
from quiver.bundle import OTLP_SCHEMA, Bundle, BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.primitives.batch_notes import commit_name
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_stage import bundles_of
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.staging.batches import commit_batch, stage
from quiver.store.subscribers.retry_set import RetrySet

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [before]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}
  before: {kind: processor, plugin_urn: "urn:quiver:sample:processor", config: {ratio: 0.5},
           out_ports: {out_port: {destinations: [store]}}}
  store: {kind: processor, plugin_urn: "urn:otap:processor:persistence", config: {path: "{{directory}}/buffer"},
          out_ports: {out_port: {destinations: [thin, files]}}}
  thin: {kind: processor, plugin_urn: "urn:quiver:sample:processor", config: {ratio: 0.5},
         out_ports: {out_port: {destinations: [out]}}}
  files: {kind: exporter, plugin_urn: "urn:quiver:parquet:exporter", config: {path: "{{directory}}/parquet"}}
  out: {kind: exporter, plugin_urn: "urn:otel:otlp:exporter", config: {grpc_endpoint: "http://127.0.0.1:9"}}
"""


def otlp(data=b""):
    return Bundle({60: pa.record_batch([pa.array([data], pa.binary())], schema=OTLP_SCHEMA)})


def numbered(*numbers):
    return Bundle({30: pa.record_batch({"n": pa.array(numbers, pa.int64())})})


def committed(root, batch, *numbers):
    """A batch that a Spark sink committed and that no owner has imported."""
    options = SinkOptions(path=str(root), slot=30)
    rows = bundles_of([pa.record_batch({"n": pa.array(numbers, pa.int64())})], options)
    place = {"writer": "query", "batch": batch}
    staged = stage(REAL_FILES, str(root), rows, partition=0, attempt="a", options=options, **place)
    commit_batch(REAL_FILES, str(root), staged=[staged], **place)


def numbers_in(root):
    """The numbers that a store delivers after it is opened."""
    with quiver.open(root) as store:
        store.maintain()
        store.seal()
    with quiver.read(root) as reader:
        return sorted(n for _, one in reader.bundles([30]) for n in one[30].column("n").to_pylist())


def flip(path, at=200):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.fixture
def buffer(tmp_path):
    """An open store with a logged bundle, a committed batch of a sink, and a dead letter."""
    root = tmp_path / "buffer"
    with quiver.open(root, background=False) as store:
        store.register("out", start="earliest")
        store.ingest(numbered(1))
        committed(root, 0, 2, 3)
        with DeadLetters(str(root), "out", background=False) as dead_letters:
            dead_letters.add(BundleRef(7, 0), otlp(b"x"), reason="HTTP 403")
        yield root


def test_committed_batches_and_dead_letters_are_copied(buffer, tmp_path, call):
    """Before the store imports them; the restored store delivers and lists them."""
    assert call("snapshot", buffer, tmp_path / "copy", "--check").exit_code == 0
    assert call("verify", tmp_path / "copy").exit_code == 0
    assert call("restore", tmp_path / "copy", tmp_path / "back").exit_code == 0
    assert numbers_in(tmp_path / "back") == [1, 2, 3]
    (letter,) = json.loads(call("dead-letters", "list", tmp_path / "back", "--json").output)
    assert (letter["bundle"], letter["reason"]) == ("7:0", "HTTP 403")
    identities = {path.read_text() for path in (tmp_path / "back").rglob("quiver.id")}
    assert len(identities) == 2, "the dead letters are a separate store"


def test_a_damaged_commit_is_listed(buffer, tmp_path, call):
    """The missing batch is reported, and the exit code is 1."""
    flip(buffer / INCOMING_DIR / "query" / commit_name(0), 30)
    taken = call("snapshot", buffer, tmp_path / "copy")
    assert taken.exit_code == 1
    assert "the batch that it commits is not in the copy" in taken.output


def test_a_damaged_staged_segment_is_listed(buffer, tmp_path, call):
    """The rest is copied."""
    (part,) = (buffer / INCOMING_DIR / "query").rglob("*.qseg")
    part.chmod(0o600)
    part.write_bytes(part.read_bytes()[:-5])
    taken = call("snapshot", buffer, tmp_path / "copy")
    assert taken.exit_code == 1
    assert f"left out: {part}" in re.sub(r"\s+", " ", taken.output)
    assert call("restore", tmp_path / "copy", tmp_path / "back").exit_code == 0
    assert numbers_in(tmp_path / "back") == [1]


def test_quarantined_files_are_copied(buffer, tmp_path, call):
    """Their data was accepted and may still be needed."""
    (buffer / "quarantine").mkdir()
    (buffer / "quarantine" / "0000000000000009.qseg").write_bytes(b"damaged")
    assert call("snapshot", buffer, tmp_path / "copy").exit_code == 0
    assert call("restore", tmp_path / "copy", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back" / "quarantine" / "0000000000000009.qseg").read_bytes() == b"damaged"


def test_independent_pipelines_are_one_unit(tmp_path, call):
    """The buffers of all pipelines of a file are copied and restored, and one that is in memory is mentioned."""
    file = tmp_path / "p.yaml"
    text = (EXAMPLES / "several-pipelines.yaml").read_text()
    options = ["--set", f"directory={tmp_path / 'data'}"]
    file.write_text(text)
    for name, number in (("applications", 1), ("host", 2)):
        with quiver.open(tmp_path / "data" / name) as store:
            store.ingest(numbered(number))
            store.seal()
            store.ingest(numbered(number * 10))
    taken = call("snapshot", file, tmp_path / "copy", *options, "--check")
    assert taken.exit_code == 0, taken.output
    assert call("verify", tmp_path / "copy").exit_code == 0
    again = ["--set", f"directory={tmp_path / 'there'}"]
    assert call("restore", tmp_path / "copy", file, *again).exit_code == 0
    assert [numbers_in(tmp_path / "there" / name) for name in ("applications", "host")] == [[1, 10], [2, 20]]

    nodes = yaml.safe_load(text)
    host = nodes["groups"]["default"]["pipelines"]["host"]
    del host["nodes"]["host_buffer"]
    host["connections"] = [{"from": "receiver", "to": "host_exporter"}]
    file.write_text(yaml.safe_dump(nodes))
    taken = call("snapshot", file, tmp_path / "half", *options, "--check")
    assert (taken.exit_code, "not in the copy: the data of host-memory" in taken.output) == (0, True), taken.output
    assert sorted(path.name for path in (tmp_path / "half" / "buffers").iterdir()) == ["app_buffer"]


@pytest.fixture
def pipeline(tmp_path):
    """The buffers of a pipeline, and Spark's files of its queries."""
    file = tmp_path / "p.yaml"
    file.write_text(PIPELINE)
    data = tmp_path / "data"
    for name, subscriber, number in (
        ("buffer.intake", "store", 1),
        ("buffer", "files", 2),
        ("buffer.staged-out", "out", 3),
    ):
        with quiver.open(data / name) as store:
            store.register(subscriber, start="earliest")
            store.ingest(numbered(number))
            store.seal()
            store.ingest(numbered(number * 10))
    with DeadLetters(str(data / "buffer.staged-out"), "out", background=False) as dead_letters:
        dead_letters.add(BundleRef(2, 0), otlp(), reason="HTTP 403")
    with RetrySet.open(REAL_FILES, str(data / "buffer.staged-out"), "out") as retries:
        retries.failed(BundleRef(0, 0), delay_s=3600.0, reason="HTTP 503")
    for name, buffer in (("store", "buffer.intake"), ("staged-out", "buffer"), ("files", "buffer")):
        place = data / "parquet/_checkpoint" if name == "files" else data / "buffer.run/checkpoints" / name
        checkpoint(place, (data / buffer / "quiver.id").read_text().strip(), batches=5)
    return file, data


def checkpoint(place, store, batches, position=(1, 0)):
    for sub in ("offsets", "commits"):
        (place / sub).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"11111111-1111-4111-8111-111111111111"}')
    offset = json.dumps({"v": 1, "store": store, "seq": position[0], "idx": position[1]})
    for batch in range(batches + 1):
        (place / "offsets" / str(batch)).write_text(f'v1\n{{"conf":{{}}}}\n{offset}')
        (place / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(batches):
        (place / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def files_of(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize("kept", [False, True], ids=["new identity", "same identity"])
def test_a_pipeline_is_one_unit(pipeline, tmp_path, call, kept):
    """
    All buffers, retries, dead letters and checkpoints; checkpoints continue with the restored stores, as new
    queries.
    """
    file, data = pipeline
    options = ["--set", f"directory={data}"]
    assert call("verify", file, *options).exit_code == 0
    taken = call("snapshot", file, tmp_path / "copy", *options, "--check")
    assert taken.exit_code == 0, taken.output
    assert call("verify", tmp_path / "copy").exit_code == 0
    there = tmp_path / "there"
    again = ["--set", f"directory={there}"]
    restored = call("restore", tmp_path / "copy", file, *again, *(["--keep-identity"] if kept else []))
    assert restored.exit_code == 0, restored.output
    assert call("verify", file, *again).exit_code == 0

    assert [numbers_in(there / name) for name in ("buffer.intake", "buffer", "buffer.staged-out")] == [
        [1, 10],
        [2, 20],
        [3, 30],
    ]
    staged = str(there / "buffer.staged-out")
    assert [letter.reason for letter in read_dead_letters(REAL_FILES, staged, "out")] == ["HTTP 403"]
    with RetrySet.open(REAL_FILES, staged, "out") as retries:
        assert retries.get(BundleRef(0, 0)) is not None
    for name, place in (("buffer", "parquet/_checkpoint"), ("buffer.intake", "buffer.run/checkpoints/store")):
        assert files_of(there / place) == ["commits/3", "commits/4", "metadata", "offsets/3", "offsets/4", "offsets/5"]
        identity = (there / name / "quiver.id").read_text().strip()
        assert (identity == (data / name / "quiver.id").read_text().strip()) == kept
        assert identity in (there / place / "offsets/5").read_text()
        query = json.loads((there / place / "metadata").read_text())["id"]
        assert query != "11111111-1111-4111-8111-111111111111", "sinks know batches by query and number"


def test_a_snapshot_of_a_running_query_includes_only_the_next_batch(pipeline, tmp_path, call):
    """A batch that was planned after the commits were listed is not in the copy."""
    file, data = pipeline
    offsets = data / "parquet/_checkpoint/offsets"
    for batch in (6, 7):
        shutil.copy(offsets / "5", offsets / str(batch))
    assert call("snapshot", file, tmp_path / "copy", "--set", f"directory={data}").exit_code == 0
    copied = tmp_path / "copy" / "checkpoints" / "files" / "offsets"
    assert sorted(path.name for path in copied.iterdir()) == ["3", "4", "5"]


def test_a_newer_checkpoint_is_left_where_the_identity_is_kept(pipeline, tmp_path, call):
    """Otherwise it belongs to another store: it must be moved away before anything is restored."""
    file, data = pipeline
    options = ["--set", f"directory={data}"]
    assert call("snapshot", file, tmp_path / "copy", *options).exit_code == 0
    for name in ("buffer", "buffer.intake", "buffer.staged-out", "buffer.run"):
        shutil.rmtree(data / name)
    refused = call("restore", tmp_path / "copy", file, *options)
    assert refused.exit_code == 2
    assert "move it away" in refused.output
    assert not (data / "buffer").exists()
    done = call("restore", tmp_path / "copy", file, *options, "--keep-identity")
    assert done.exit_code == 0
    assert "goes on" in done.output
    assert (data / "parquet/_checkpoint/offsets/0").exists(), "untouched"
    assert call("restore", tmp_path / "copy", file, *options, "--keep-identity").exit_code == 2, "it exists"


def test_checkpoints_are_verified(pipeline, call):
    """A checkpoint that is ahead of its store, of another store, or invalid is reported."""
    file, data = pipeline
    options = ["--set", f"directory={data}"]
    place = data / "parquet/_checkpoint"
    identity = (data / "buffer/quiver.id").read_text().strip()
    with quiver.open(data / "buffer") as store:  # writes the number floor, when its only segment is deleted
        subscriber = store.register("files")
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
        store.reclaim(1 << 30)
    for store_id, position, reported in (
        (identity, (99, 0), "ahead of the store"),
        ("22222222-2222-4222-8222-222222222222", (0, 0), "belongs to store"),
        (identity, ("x", 0), "needs integers"),
    ):
        shutil.rmtree(place)
        checkpoint(place, store_id, 2, position)
        result = call("verify", file, *options)
        assert result.exit_code == 1
        assert reported in re.sub(r"\s+", " ", result.output)


def test_companion_buffers_of_a_directory_are_restored(pipeline, tmp_path, call):
    """Intake and staged buffers are restored next to the directory."""
    _, data = pipeline
    assert call("snapshot", data / "buffer", tmp_path / "copy").exit_code == 0
    assert call("verify", tmp_path / "copy").exit_code == 0
    assert call("restore", tmp_path / "copy", tmp_path / "back").exit_code == 0
    assert [numbers_in(tmp_path / name) for name in ("back", "back.intake", "back.staged-out")] == [
        [2, 20],
        [1, 10],
        [3, 30],
    ]


def test_a_remote_checkpoint_is_listed_as_missing(pipeline, tmp_path, call):
    """It cannot be copied from here."""
    file, data = pipeline
    reported = file.read_text().replace('/parquet"', '/parquet", checkpoint: "s3://bucket/files"')
    file.write_text(reported)
    taken = call("snapshot", file, tmp_path / "copy", "--set", f"directory={data}")
    assert taken.exit_code == 1
    assert "the checkpoint s3://bucket/files of files is not on this machine" in re.sub(r"\s+", " ", taken.output)


def test_wrong_arguments_of_snapshot_and_restore_are_refused(pipeline, tmp_path, call):
    """Each with a message and exit code 2."""
    file, data = pipeline
    options = ["--set", f"directory={data}"]
    memory = EXAMPLES / "in-memory.yaml"
    assert "in memory" in call("snapshot", memory, tmp_path / "x").output
    assert "none of its buffers exists" in call("snapshot", file, tmp_path / "x", "--set", "directory=/nothing").output
    assert call("snapshot", data / "buffer", tmp_path / "x", *options).exit_code == 2
    assert call("snapshot", file, tmp_path / "unit", *options).exit_code == 0
    assert call("snapshot", data / "buffer", tmp_path / "one").exit_code == 0
    wrong = call("restore", tmp_path / "unit", tmp_path / "new")
    assert (wrong.exit_code, "snapshot of a pipeline" in wrong.output) == (2, True)
    wrong = call("restore", tmp_path / "one", file, "--set", f"directory={tmp_path}/new")
    assert (wrong.exit_code, "snapshot of a store" in wrong.output) == (2, True)
    other = tmp_path / "other.yaml"
    other.write_text(PIPELINE.replace("files", "others"))
    wrong = call("restore", tmp_path / "unit", other, "--set", f"directory={tmp_path}/new")
    assert (wrong.exit_code, "checkpoints/files" in wrong.output) == (2, True)
