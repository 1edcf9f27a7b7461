"""Many streams, garbage, and kill -9: confirmed data are stored, and incomplete data are not."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from otap_client import Client, KeptTables
from otap_oracle import REQUESTS
from otap_ways import CASES, bytes_of, parsed

import quiver
from quiver.otap import StatusCode, StreamEncoder, decode_status, from_otlp, to_otlp
from quiver.otap.tables.validation import check_tables
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.settings import OtlpSettings

CHILD = Path(__file__).with_name("otap_kill_child.py")


def harmed(message: bytes, chance: random.Random) -> bytes:
    """Return the message truncated, flipped, extended, or replaced."""
    data = bytearray(message)
    how = chance.randrange(4)
    if how == 0:
        return chance.randbytes(chance.randrange(2_000))
    if how == 1:
        return bytes(data[: chance.randrange(len(data))])
    if how == 2:
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(data)
    return bytes(data) + chance.randbytes(10)


@pytest.mark.parametrize("streams", [25, pytest.param(2_000, marks=[pytest.mark.slow])])
def test_garbage_only_ends_its_own_stream_and_is_not_stored(streams):
    chance = random.Random(7)
    store = KeptTables()
    good = [bytes_of(name) for name in CASES["logs_sdk"]["otap"]]
    with (
        OtapGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0", workers=2)) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
    ):
        for _ in range(streams):
            with Client(0, channel=channel) as client:
                client.send(harmed(chance.choice(good), chance))
                client.half_close()
                try:
                    expected = {decode_status(data).code for data in client.call}
                    assert expected <= {StatusCode.OK, StatusCode.INVALID_ARGUMENT}
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        with Client(0, channel=channel) as client:
            client.send(*good)
            client.half_close()
            assert [status.code for status in client.statuses()] == [StatusCode.OK] * len(good)
    for bundle in store.kept:
        assert check_tables(bundle.batches, "logs") is None
        assert to_otlp(bundle, "logs")


@pytest.mark.slow
def test_a_thousand_streams_are_accepted_or_unavailable():
    store = KeptTables()
    settings = OtlpSettings(listening_addr="127.0.0.1:0", requests_waiting_max=2_000)
    (message,) = (bytes_of(name) for name in CASES["logs_sdk"]["otap"][:1])
    with (
        OtapGrpcReceiver(store, settings, otap=OtapSettings(streams_max=200)) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
    ):
        clients = [Client(0, channel=channel) for _ in range(1_000)]
        for client in clients:
            client.send(message)
        taken = 0
        for client in clients:
            try:
                taken += client.status().code == StatusCode.OK
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert taken == 200 == len(store.kept)
        for client in clients:
            with client:
                pass


def numbered(number: int) -> bytes:
    request = REQUESTS["logs"]()
    records = request.resource_logs.add().scope_logs.add().log_records
    for _ in range(20):
        records.add(severity_text=str(number), attributes=[{"key": "k"}])
    return request.SerializeToString()


def stored(directory: Path) -> dict[int, int]:
    """Return number → count of records."""
    found: dict[int, int] = {}
    for _, bundle in quiver.read(directory).bundles():
        for items in parsed(to_otlp(bundle, "logs"), "logs").resource_logs:
            for record in items.scope_logs[0].log_records:
                found[int(record.severity_text)] = found.get(int(record.severity_text), 0) + 1
    return found


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_confirmed_data_survive_kill_9(tmp_path):
    chance = random.Random(11)
    confirmed: set[int] = set()
    number = 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, str(CHILD), str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        port = int(child.stdout.readline())
        encoder, first = StreamEncoder("logs"), number
        with Client(port) as client:
            for _ in range(60):
                bundle = from_otlp(numbered(number), "logs")
                client.send(*(batch.message for batch in encoder.encode(bundle.batches)))
                number += 1
            try:
                for _ in range(chance.randrange(55)):
                    status = client.status()
                    assert status.code == StatusCode.OK
                    confirmed.add(first + status.batch_id)
            finally:
                child.send_signal(signal.SIGKILL)
                child.wait()
                child.stdout.close()
        found = stored(tmp_path)
        assert confirmed <= set(found)
        assert set(found.values()) == {20}, "half a batch"
    assert len(confirmed) > 40
