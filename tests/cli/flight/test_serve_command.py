"""`quiver serve` in a process of its own, and arguments that it refuses before it listens."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import quiver
from quiver.topics.store import TopicStore


@contextlib.contextmanager
def serving(*arguments):
    """Run the command. Yield the process and a client."""
    command = [sys.executable, "-m", "quiver", "serve", *map(str, arguments), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"grpc(\+tls)?://127.0.0.1:\d+", process.stdout.readline())
            with fl.connect(found[0]) as client:
                yield process, client
        finally:
            process.kill()


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["alone", "beside a writer"])
def test_a_store_is_served_until_a_signal(tmp_path, make_bundle, options):
    """The process exits with 0, and releases the directory."""
    store = quiver.open(tmp_path / "buffer")
    store.ingest(make_bundle(0))
    if not options:
        store.close()
    with serving(f"mine={tmp_path / 'buffer'}", *options) as (process, client):
        assert client.do_get(fl.Ticket(b'{"store": "mine", "slot": "logs"}')).read_all().num_rows == 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    store.close()
    quiver.open(tmp_path / "buffer").close()


def test_several_cores_are_written(made_cores, tmp_path):
    """As many as the directory has."""
    directory = shutil.copytree(made_cores, tmp_path / "copy")
    with serving(directory) as (process, client):
        batch = client.do_get(fl.Ticket(b'{"slot": "logs"}')).read_all().to_batches()[0]
        writer, acks = client.do_put(fl.FlightDescriptor.for_path("logs"), batch.schema)
        writer.write_batch(batch)
        assert acks.read() is not None
        writer.close()
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert sum(len(bundle["logs"]) for _, bundle in quiver.read(directory).bundles()) == 15 * 20 + batch.num_rows


def test_topics_are_served(tmp_path):
    """The directory is created, and released at the end."""
    with serving("--topics", f"mine={tmp_path / 'topics'}") as (process, client):
        batch = pa.record_batch({"payload": ["hello"]})
        writer, acks = client.do_put(fl.FlightDescriptor.for_path("mine", "default/orders"), batch.schema)
        writer.write_batch(batch)
        assert acks.read() is not None
        writer.close()
        process.terminate()
        assert process.wait(timeout=30) == 0
    with TopicStore.open(tmp_path / "topics") as topics:
        assert [one.payload for one in topics.topic("default/orders").reader("earliest", follow=False)] == [b"hello"]


def test_several_cores_are_read(made_cores):
    with serving("--read-only", made_cores) as (_, client):
        assert client.do_get(fl.Ticket(b'{"slot": "logs"}')).read_all().num_rows == 15 * 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "--tls-cert and --tls-key, and --token-file"),
        (["--listen", "here"], "is not host:port"),
        (["--ack", "maybe"], "not synced or logged"),
        (["--tls-cert", "a.pem"], "both --tls-cert and --tls-key"),
        (["--client-ca", "a.pem"], "--client-ca needs"),
        (["--token-file", "missing"], "cannot read missing"),
        (["--set", "retention.size_cap"], "write KEY=VALUE"),
        (["--set", "retention.sizecap=1"], "retention.size_cap"),
        (["--read-only", "--ack", "logged"], "no effect with --read-only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused(call, store_dir, options, reason):
    done = call("serve", store_dir, *options)
    assert (done.exit_code, reason in done.output) == (2, True), done.output


def test_other_directories_are_refused(call, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    done = call("serve", tmp_path / "other")
    assert (done.exit_code, "is not the directory of a store" in done.output) == (2, True)
    done = call("serve")
    assert (done.exit_code, "name a directory" in done.output) == (2, True)
    done = call("serve", "--read-only", tmp_path)
    assert (done.exit_code, "holds no store" in done.output) == (2, True)
    done = call("serve", "--topics", tmp_path / "other", "--set", "retention.size_cap=1GiB")
    assert (done.exit_code, "--set has no effect on topics" in done.output) == (2, True)
    with quiver.open(tmp_path / "open"):
        done = call("serve", "--topics", tmp_path / "open")
        assert (done.exit_code, "leave out --topics" in done.output) == (2, True), done.output
        done = call("serve", tmp_path / "open")
        assert (done.exit_code, "is in use by" in done.output) == (1, True), done.output
