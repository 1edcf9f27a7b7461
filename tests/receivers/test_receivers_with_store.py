"""Receivers with a real store on a real disk: confirmed requests are stored exactly once, after any failure."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest
from fake_store import log_request

import quiver
from quiver.otap import decode_requests, view
from quiver.receivers.intake import OtlpIntake
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings
from quiver.settings import MIB

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", dedupe_window_s=600)


def export(port: int, data: bytes) -> bytes:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return channel.unary_unary(f"/{SERVICES['logs']}/Export")(data, timeout=30)


def stored(path) -> list[bytes]:
    return [bundle[60].column("data")[0].as_py() for _, bundle in quiver.read(str(path)).bundles()]


def test_a_confirmed_request_is_in_the_store_unchanged(tmp_path):
    with quiver.open(str(tmp_path)) as store, OtlpGrpcReceiver(store, SETTINGS) as receiver:
        export(receiver.port, log_request())
        # Not closed, not sealed: the view of a reader while the writer is open.
        assert stored(tmp_path) == [log_request()]


def test_bundles_of_the_store_are_views(tmp_path):
    with quiver.open(str(tmp_path)) as store:
        subscriber = store.register("reader", start="earliest")
        assert OtlpIntake(store, SETTINGS).accept("logs", log_request("hello")).confirmed
        store.seal()
        handle = subscriber.next_bundle(timeout=30)
        rows = view(handle.bundle, "logs").to_pylist()
        handle.ack()
    assert [row["body"]["string_value"] for row in rows] == ["hello"]


def test_a_request_sent_again_after_a_restart_is_stored_once(tmp_path):
    data = [log_request(str(number)) for number in range(20)]
    with quiver.open(str(tmp_path)) as store:
        intake = OtlpIntake(store, SETTINGS)
        assert {intake.accept("logs", item).outcome for item in data} == {"stored"}
    with quiver.open(str(tmp_path)) as store:
        intake = OtlpIntake(store, SETTINGS)
        assert {intake.accept("logs", item).outcome for item in data} == {"duplicate"}
        assert intake.accept("logs", log_request("new")).outcome == "stored"
        store.seal()
    assert stored(tmp_path) == [*data, log_request("new")]


def test_requests_repeated_by_many_clients_are_stored_once(tmp_path):
    data = [log_request(str(number)) for number in range(100)]
    with quiver.open(str(tmp_path)) as store:
        intake = OtlpIntake(store, SETTINGS)
        with ThreadPoolExecutor(8) as pool:
            verdicts = list(pool.map(lambda item: intake.accept("logs", item), [*data, *data]))
        assert all(verdict.confirmed for verdict in verdicts)
    assert sorted(stored(tmp_path)) == sorted(data)
    assert decode_requests(stored(tmp_path), "logs").batch.num_rows == 100


def test_a_full_store_refuses_with_a_delay_until_space_is_freed(tmp_path):
    settings = quiver.Settings(
        segment_bytes_max=MIB, wal_rotate_bytes=MIB, wal_bytes_max=4 * MIB, size_cap_bytes=4 * MIB, delete_grace_s=0
    )
    with quiver.open(str(tmp_path), settings) as store:
        subscriber = store.register("reader", start="earliest")
        store.activate()
        with OtlpGrpcReceiver(store, replace(SETTINGS, dedupe_window_s=0)) as receiver:
            kept = 0
            with pytest.raises(grpc.RpcError) as caught:
                while kept < 40:
                    export(receiver.port, log_request(str(kept), size=MIB // 2))
                    kept += 1
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "grpc-status-details-bin" in dict(caught.value.trailing_metadata())
            store.seal()
            for _ in range(kept):
                subscriber.next_bundle(timeout=30).ack()
            store.maintain()
            export(receiver.port, log_request("after", size=MIB // 2))


def test_a_closed_store_refuses_with_a_delay(tmp_path):
    store = quiver.open(str(tmp_path))
    intake = OtlpIntake(store, SETTINGS)
    store.close()
    assert intake.accept("logs", log_request()).outcome == "unavailable"
    assert stored(tmp_path) == []
