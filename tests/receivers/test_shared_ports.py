"""Several processes may listen on one port if configured; old connections are closed."""

import http.client

import pytest
from fake_store import FakeStore

from quiver.errors import TransientError
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings

RECEIVERS = pytest.mark.parametrize("receiver", [OtlpGrpcReceiver, OtlpHttpReceiver])


@RECEIVERS
def test_a_port_is_shared_if_both_settings_allow_it(receiver):
    """The kernel distributes connections among them."""
    with receiver(FakeStore(), OtlpSettings(listening_addr="127.0.0.1:0", share_port=True)) as first:
        settings = OtlpSettings(listening_addr=f"127.0.0.1:{first.port}", share_port=True)
        with receiver(FakeStore(), settings) as second:
            assert second.port == first.port


@RECEIVERS
@pytest.mark.parametrize("shares", [(True, False), (False, True), (False, False)])
def test_a_port_is_not_shared_by_mistake(receiver, shares):
    """Two would each get half of the requests."""
    with receiver(FakeStore(), OtlpSettings(listening_addr="127.0.0.1:0", share_port=shares[0])) as first:
        settings = OtlpSettings(listening_addr=f"127.0.0.1:{first.port}", share_port=shares[1])
        with pytest.raises(TransientError, match="cannot listen on"):
            receiver(FakeStore(), settings).start()


@pytest.mark.parametrize(("age_s", "closes"), [(None, [False, False]), (1e-9, [False, True]), (3600.0, [False, False])])
def test_an_old_http_connection_is_closed_after_an_answer(age_s, closes):
    """Counted from its first request; the client reconnects, and loses nothing."""
    settings = OtlpSettings(listening_addr="127.0.0.1:0", keepalive=KeepaliveSettings(max_connection_age_s=age_s))
    with OtlpHttpReceiver(FakeStore(), settings) as receiver:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=20)
        found = []
        for _ in range(2):
            connection.request("POST", "/v1/logs", b"", {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            found.append(answer.getheader("Connection") == "close")
        connection.close()

    assert found == closes
