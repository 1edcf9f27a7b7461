"""A pipeline with a QWP receiver: from the file to rows in its store."""

import socket
import threading

import pytest
import yaml

import quiver
from ports import free_port
from quiver.bundle import QWP_SLOT
from quiver.cli.main import main
from quiver.observe import InMemoryObserver
from quiver.pipeline.config.receiver_place import ReceiverPlace
from quiver.pipeline.explain import describe
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.ingest import ingest
from quiver.pipeline.processes.child import ChildContext
from quiver.qwp import Sender
from stub_watchdog import StubWatchdog


def pipeline(path, port):
    nodes = {
        "in": {"type": "receiver:qwp", "config": {"listening_addr": f"127.0.0.1:{port}", "ack": "logged"}},
        "store": {"type": "processor:persistence", "config": {"path": str(path)}},
    }
    inside = {"nodes": nodes, "connections": [{"from": "in", "to": "store"}]}
    return {"version": "otel_dataflow/v1", "groups": {"a": {"pipelines": {"b": inside}}}}


@pytest.mark.timeout(60)
def test_received_rows_are_in_the_store_of_the_pipeline(tmp_path):
    """The port is closed when the pipeline ends."""
    port = free_port()
    text = yaml.safe_dump(pipeline(tmp_path / "buffer", port))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    watchdog = StubWatchdog()
    context = ChildContext(load_pipeline(text, source="p.yaml", values={})[0], run_dir, watchdog)
    child = threading.Thread(target=ingest, args=(context,))
    child.start()
    try:
        conf = f"ws::addr=127.0.0.1:{port};initial_connect_retry=on;reconnect_initial_backoff_millis=20;"
        with Sender.from_conf(conf) as sender:
            sender.row("trades", columns={"v": 7}, at=1)
    finally:
        watchdog.gone.set()
        child.join()
    assert [bundle[QWP_SLOT].to_pylist()[0]["v"] for _, bundle in quiver.read(str(tmp_path / "buffer")).bundles()] == [
        7
    ]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_all_cores_can_listen(tmp_path):
    """On the same port; connections have a maximum age, so that clients reconnect, to any of the cores."""
    made = pipeline(tmp_path / "buffer", 4)
    made["groups"]["a"]["pipelines"]["b"]["nodes"]["in"]["config"]["listening_cores"] = "all"
    ((_, config),) = load_pipeline(yaml.safe_dump(made), source="p.yaml", values={})[0].receivers
    for core in range(2):  # the first core, then another one
        with quiver.open(str(tmp_path / "buffer"), cores=2, core=core) as store:
            (one,) = config.receivers(ReceiverPlace(store.core(core), InMemoryObserver(), cores=2, core=core))
            assert one.settings.share_port
            assert one.settings.keepalive.max_connection_age_s
            one.intake.close()


def test_the_receiver_is_described(tmp_path, capsys, monkeypatch):
    """As plain values, and by `quiver run --check`."""
    text = yaml.safe_dump(pipeline(tmp_path / "buffer", 4))
    (receiver,) = describe(load_pipeline(text, source="p.yaml", values={})[0])["receivers"]

    assert (receiver["qwp"], receiver["speaks"], receiver["ack"]) == ("127.0.0.1:4", "QWP", "logged")
    assert (receiver["recognizes_repeats_for_s"], receiver["recognizes_at_most_bytes"]) == (None, 10 << 30)
    file = tmp_path / "p.yaml"
    file.write_text(text)
    monkeypatch.setattr("sys.argv", ["quiver", "run", "--check", str(file)])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert "127.0.0.1:4" in capsys.readouterr().out


def test_durable_in_the_object_tier_requires_one(tmp_path):
    """With `cold.objects` of its buffer, the setting is accepted; without, see the table of keys."""
    made = pipeline(tmp_path / "buffer", 9000)
    nodes = made["groups"]["a"]["pipelines"]["b"]["nodes"]
    nodes["in"]["config"]["durable"] = "tier"
    nodes["store"]["config"]["cold"] = {"objects": f"file://{tmp_path}/cold"}
    loaded, _ = load_pipeline(yaml.safe_dump(made), source="p.yaml", values={})
    ((_, config),) = loaded.receivers
    assert config.settings("127.0.0.1:9000").durable == "tier"
