"""A store between OTAP streams: filled by the receiver, drained by the sender, read as views, without loss."""

from pathlib import Path

import pytest
from otap_client import Client
from otap_equal import said
from otap_oracle import REQUESTS
from otap_ways import CASES, VIEW_OF, bytes_of, parsed

import quiver
from quiver.errors import PipelineError
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.settings import ExporterSettings
from quiver.otap import StatusCode, StreamEncoder, from_otlp, to_otlp, view
from quiver.pipeline.graph import load_pipeline
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings

SEALED_BY_HAND = quiver.Settings(segment_open_s_max=3600)
SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)


def requests_of(signal: str) -> list[bytes]:
    case = {"logs": "logs_sdk", "traces": "traces_rich", "metrics": "metrics_all_kinds"}[signal]
    return [bytes_of(name) for name in CASES[case]["otlp"][:3]]


def merged(bundles, signal: str):
    complete = REQUESTS[VIEW_OF[signal]]()
    for bundle in bundles:
        complete.MergeFrom(parsed(to_otlp(bundle, signal), signal))
    return said(complete, ordered=False)


@pytest.mark.parametrize("signal", ["logs", "traces", "metrics"])
def test_data_pass_unchanged_from_a_stream_through_two_stores(tmp_path, signal):
    """Stream → store → sender → stream → store: both stores have the same data."""
    first, second = (quiver.open(tmp_path / name, settings=SEALED_BY_HAND) for name in ("first", "second"))
    with first, second, OtapGrpcReceiver(second, SETTINGS) as far:
        out = first.register("out", start="earliest")
        check = second.register("check", start="earliest")
        first.activate()
        second.activate()
        with OtapGrpcReceiver(first, SETTINGS) as near, Client(near.port, signal) as client:
            encoder = StreamEncoder(signal)
            for request in requests_of(signal):
                bundle = from_otlp(request, signal)
                client.send(*(batch.message for batch in encoder.encode(bundle.batches)))
            client.half_close()
            assert {status.code for status in client.statuses()} == {StatusCode.OK}
        first.seal()
        sender = OtapGrpcSender(ExporterSettings(f"http://127.0.0.1:{far.port}"))
        with BundleForwarder(out, sender, in_flight_max=2) as forwarder:
            assert forwarder.stop(30.0) == 0
        second.seal()
        arrived = [handle.bundle for handle in check.next_bundles(10, 5.0)]
        came = merged(arrived, signal)
        assert came == merged([bundle for _, bundle in quiver.read(tmp_path / "first").bundles()], signal)
        assert sum(view(bundle, signal).num_rows for bundle in arrived) > 0


NODES = """\
nodes:
  in:
    kind: receiver
    plugin_urn: "urn:otel:otap:receiver"
    out_ports: {out_port: {destinations: [buffer]}}
    config: {listening_addr: "127.0.0.1:4317", max_streams: 7, max_dictionary_bytes: 128MiB, ack: logged}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [out]}}
    config: {path: buffer}
  out:
    kind: exporter
    plugin_urn: "urn:otel:otap:exporter"
    config: {grpc_endpoint: "http://127.0.0.1:4319", payload_compression: none, compression_method: gzip, timeout: 3s}
"""


def test_a_pipeline_file_names_both_ends():
    pipeline, _ = load_pipeline(NODES, source="p.yaml", values={})
    ((_, receiver),) = pipeline.receivers
    ((_, exporter),) = pipeline.forwarders
    assert (receiver.otap().streams_max, receiver.otap().dictionaries_bytes_max) == (7, 128 * 1024 * 1024)
    assert receiver.settings("127.0.0.1:4317").ack == "logged"
    assert exporter.otap().payload_compression == "none"
    assert (exporter.settings().compression_method, exporter.settings().timeout_s) == ("gzip", 3.0)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("max_streams: 7", "max_streams: 0", "max_streams"),
        ("128MiB", "1MiB", "max_dictionary_bytes must be large enough for the dictionaries of one stream"),
        ('listening_addr: "127.0.0.1:4317"', 'protocols: {http: {listening_addr: "127.0.0.1:1"}}', "OTAP needs gRPC"),
        ("grpc_endpoint", "http_endpoint", "OTAP needs gRPC"),
        ("payload_compression: none", "payload_compression: lz4", "'lz4' is not available"),
        ("timeout: 3s", "stream_lifetime: 0", "stream_lifetime must be above 0"),
    ],
)
def test_mistakes_in_a_pipeline_file_are_reported(old, new, reason):
    with pytest.raises(PipelineError, match=reason):
        load_pipeline(NODES.replace(old, new), source="p.yaml", values={})


def test_the_pipeline_of_the_page_is_accepted():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "otap.md").read_text("utf-8")
    source = page.split("```yaml\n")[1].split("```")[0]
    pipeline, _ = load_pipeline(source, source="otap.md", values={})
    assert [name for name, _ in pipeline.receivers] == ["otap_receiver"]
    assert [name for name, _ in pipeline.forwarders] == ["onward"]
