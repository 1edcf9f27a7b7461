"""The exporters of an ingest process while cores are added and removed."""

import contextlib
from types import SimpleNamespace

import pytest

import quiver
from quiver.errors import StoreClosedError
from quiver.observe import InMemoryObserver
from quiver.pipeline import ingest
from quiver.pipeline.forwarding import Forwarding
from quiver.pipeline.graph import load_pipeline
from quiver.primitives.disk.lock import is_held
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.names import subscriber_lock_name

PIPELINE = """\
nodes:
  receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:4318"}}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [one, two]}}
    config: {path: buffer}
  one:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {http_endpoint: "http://127.0.0.1:1"}
  two:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {http_endpoint: "http://127.0.0.1:1"}
"""


@pytest.fixture
def part():
    (found,) = load_pipeline(PIPELINE, source="p.yaml", values={})[0].parts()
    return found


def test_a_core_removed_during_the_update_is_skipped(part, tmp_path, monkeypatch):
    """Another thread may remove an empty core that is no longer configured at any time."""
    quiver.open(tmp_path / "buffer", cores=2, background=False).close()
    observer = InMemoryObserver()
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(quiver.open(tmp_path / "buffer", cores=1, background=False))
        station = ingest._Station(part, store, store.core(0), observer)
        opened.callback(station.stop_sending, 0.0)
        assert sorted(store.open_stores()) == [0, 1]

        def forwarding(part, one, observer, **more):
            store.maintain()
            return Forwarding(part, one, observer, **more)

        monkeypatch.setattr(ingest, "Forwarding", forwarding)
        station.send()
        assert list(station.sending) == [store.core(0).path]
        assert sorted(store.open_stores()) == [0]


def test_a_failed_store_is_an_error(part, tmp_path):
    """One that is closed but still in the list of open stores did not close normally."""
    with quiver.open(tmp_path / "buffer", cores=1, background=False) as store:
        station = ingest._Station(part, store, store.core(0), InMemoryObserver())
        store.core(0).close()
        with pytest.raises(StoreClosedError):
            station.send()
        assert not station.sending


@pytest.mark.parametrize("cores", [None, 1])
def test_a_removed_exporter_releases_its_subscriber(part, tmp_path, cores):
    """Then its data can be dropped while the pipeline runs, or Spark can continue with it; the others stay."""
    text = PIPELINE.replace("[one, two]", "[two]")
    without = load_pipeline(text[: text.index("  one:")] + text[text.index("  two:") :], source="p.yaml", values={})[0]
    with quiver.open(tmp_path / "buffer", cores=cores, background=False) as store:
        own = store if cores is None else store.core(0)
        for name in ("one", "two"):
            store.register(name, start="earliest").next_bundle(timeout=0)
        station = ingest._Station(part, store, own, InMemoryObserver())

        ingest._reload(SimpleNamespace(core=0, reread=lambda: without), [station])
        held = [name for name in ("one", "two") if is_held(REAL_FILES, f"{own.path}/{subscriber_lock_name(name)}")]

    assert held == ["two"]


def test_a_failed_start_releases_the_retry_sets(part, tmp_path, monkeypatch):
    """If the second exporter cannot start, the first one closes its retry set, so that both can start later."""
    from quiver.pipeline import forwarding

    real = forwarding.sender_of

    def sender_of(name, config):
        if name == "two":
            raise quiver.UsageError("a certificate cannot be read")
        return real(name, config)

    with quiver.open(tmp_path / "buffer", background=False) as store:
        with monkeypatch.context() as patched:
            patched.setattr(forwarding, "sender_of", sender_of)
            with pytest.raises(quiver.UsageError, match="certificate"):
                Forwarding(part, store, InMemoryObserver())
        with Forwarding(part, store, InMemoryObserver()) as made:
            made.drain_s = 0.0
