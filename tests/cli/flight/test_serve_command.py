"""`quiver serve` in a process of its own, and arguments that it refuses before it listens."""

import re
import signal
import subprocess
import sys

import pyarrow.flight as fl
import pytest

import quiver


def serving(*arguments):
    """Start the command. Return the process and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "quiver", "serve", *map(str, arguments), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    found = re.search(r"grpc(\+tls)?://127.0.0.1:\d+", process.stdout.readline())
    return process, found[0]


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["alone", "beside a writer"])
def test_a_store_is_served_until_a_signal(tmp_path, make_bundle, options):
    """The process exits with 0, and releases the directory."""
    store = quiver.open(tmp_path / "buffer")
    store.ingest(make_bundle(0))
    if not options:
        store.close()
    process, address = serving(f"mine={tmp_path / 'buffer'}", *options)
    with process, fl.connect(address) as client:
        assert client.do_get(fl.Ticket(b'{"store": "mine", "slot": "logs"}')).read_all().num_rows == 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    store.close()
    quiver.open(tmp_path / "buffer").close()


def test_several_cores_are_read(made_cores):
    process, address = serving("--read-only", made_cores)
    with process, fl.connect(address) as client:
        assert client.do_get(fl.Ticket(b'{"slot": "logs"}')).read_all().num_rows == 15 * 20
        process.terminate()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "it needs tls and auth"),
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


def test_other_directories_are_refused(call, made_cores, tmp_path):
    done = call("serve", made_cores)
    assert (done.exit_code, "--read-only" in done.output) == (2, True)
    done = call("serve", "--read-only", tmp_path)
    assert (done.exit_code, "holds no store" in done.output) == (2, True)
    with quiver.open(tmp_path / "open"):
        done = call("serve", tmp_path / "open")
        assert (done.exit_code, "is in use by" in done.output) == (1, True), done.output
