"""`DoExchange`: bundles are delivered with their addresses, answered, and returned if the client disappears."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from flight_calls import Consumer, close, rows

import quiver
from quiver.errors import ObjectsUnavailableError
from quiver.receivers.flight.batches import BatchLimits
from quiver.receivers.flight.bundles import bundle_of_rows
from quiver.receivers.flight.command import Command
from quiver.receivers.flight.messages import decode_flight_data
from quiver.receivers.flight.sources import served_store
from quiver.receivers.flight.subscribing import StoreSubscription
from quiver.store.subscribers.subscriber import Subscriber

LIMITS = BatchLimits(1 << 20, 1 << 20)


def ingest(store, count, first=0):
    for n in range(first, first + count):
        store.ingest(quiver.Bundle({"logs": rows(n), "log_attrs": rows(100 + n, 1)}))


def test_bundles_are_delivered_and_answered(store, serve, consume):
    """With all slots. Progress is durable after maintenance, which a client can request."""
    ingest(store, 6)
    client = serve()
    consumer = consume(client)
    found = [consumer.next() for _ in range(6)]
    assert [metadata["address"] for metadata, _ in found] == [f"0:{n}" for n in range(6)]
    assert found[0][0]["ingested_at"] > 0
    assert found[0][1]["name"].to_pylist() == ["logs", "log_attrs"]
    bundle = bundle_of_rows(found[3][1].select(["slot", "ipc"]), quiver.OTAP, LIMITS)
    assert bundle["logs"].equals(rows(3))

    consumer.answer(ack=["0:0", "0:2"], reject=["0:1"], reason="no such table")
    consumer.answer(nack=["0:3"])
    again, _ = consumer.next()
    assert again["address"] == "0:3"
    consumer.writer.close()
    (result,) = client.do_action("maintain")
    assert result.body.to_pybytes() == b"{}"
    assert consume(client, follow=False).rest() == ["0:3", "0:4", "0:5"]


def test_new_bundles_arrive_while_the_stream_is_open(store, serve, consume):
    """Before their segment is sealed."""
    consumer = consume(serve())
    for n in range(3):
        ingest(store, 1, n)
        metadata, _ = consumer.next()
        consumer.answer(ack=[metadata["address"]])


def test_unanswered_deliveries_are_limited(store, serve, consume):
    """The next one is sent when one is answered."""
    ingest(store, 10)
    client = serve()
    consumer = consume(client, in_flight=2)
    addresses = [consumer.next()[0]["address"] for _ in range(2)]
    (status,) = store.subscribers()
    assert status.claimed_bundles <= 2
    consumer.answer(ack=addresses[:1])
    assert consumer.next()[0]["address"] == "0:2"


def test_clients_share_a_subscriber(store, serve, consume):
    """Each bundle is delivered to one of them."""
    ingest(store, 4)
    client = serve()
    one, two = consume(client, in_flight=2), consume(client, in_flight=2)
    found = [consumer.next()[0]["address"] for consumer in (one, two) for _ in range(2)]
    assert sorted(found) == ["0:0", "0:1", "0:2", "0:3"]


def test_unanswered_bundles_of_a_lost_client_are_delivered_again(store, serve, consume):
    """To the next one, immediately."""
    ingest(store, 3)
    client = serve()
    with fl.connect(f"grpc://127.0.0.1:{serve.port}") as other:
        lost = Consumer(other)
        assert [lost.next()[0]["address"] for _ in range(3)] == ["0:0", "0:1", "0:2"]
        lost.answer(ack=["0:1"])
        waiting = consume(client)
        lost.reader.cancel()
        close(lost.writer)
    assert {waiting.next()[0]["address"] for _ in range(2)} == {"0:0", "0:2"}


def test_a_bundle_of_a_damaged_segment_does_not_stop_the_stream(store, serve, consume):
    """The store has quarantined and counted it."""
    for n in range(2):
        store.ingest(quiver.Bundle({"logs": rows(n, 1000)}))
        store.seal()
    path = min((Path(store.path) / "segments").glob("*.qseg"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    assert consume(serve(), follow=False).rest() == ["1:0"]


class _Unreadable:
    """A handle whose bundle is in an object tier that does not answer."""

    outcome = None
    ref = quiver.BundleRef(3, 4)

    @property
    def bundle(self):
        raise ObjectsUnavailableError("get", "a/b", "no answer")


def test_an_unreadable_bundle_is_delivered_with_the_reason(store, tmp_path, monkeypatch):
    """The client decides whether to reject it, or to try again later."""
    subscription = StoreSubscription(served_store(tmp_path / "buffer", store), Command(subscriber="s"), 1000)
    found = iter([_Unreadable()])
    monkeypatch.setattr(Subscriber, "next_bundle", lambda _self, _timeout: next(found, None))
    (delivered,) = subscription.take(5, 0.0)
    (message,) = delivered.messages
    metadata = json.loads(decode_flight_data(b"".join(message)).metadata)
    assert metadata["address"] == "3:4"
    assert "no answer" in metadata["error"]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"ack": ["0:1"]}, "which this stream did not deliver"),
        ({"ack": ["0:0", "0:0"]}, "or a second one"),
        ({"ack": ["0:0"], "nack": ["0:0"]}, "or a second one"),
        ({"ack": "0:0"}, "must be a list of addresses"),
        ({"nack": ["0:0"], "delay": -1}, "delay must be"),
        ({"acked": ["0:0"]}, "must be JSON such as"),
        ({"reject": ["0:0"], "reason": 5}, "reason must be"),
    ],
    ids=["unknown", "twice", "two answers", "text", "delay", "key", "reason"],
)
def test_an_invalid_answer_ends_the_stream(store, serve, consume, keys, reason):
    """Nothing of it is applied, and everything is delivered again."""
    ingest(store, 1)
    client = serve()
    consumer = consume(client)
    assert consumer.next()[0]["address"] == "0:0"
    consumer.answer(**keys)
    with pytest.raises(pa.ArrowInvalid, match=reason):
        consumer.next()
    # With `follow`, because the ended stream may hold the bundle for another moment.
    assert consume(client).next()[0]["address"] == "0:0"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"subscriber": None}, "subscriber must be"),
        ({"subscriber": "a/b"}, "a/b"),
        ({"slot": "logs"}, "does not use slot"),
        ({"in_flight": 0}, "from 1 to 256"),
        ({"start": "first"}, "start must be"),
    ],
    ids=["none", "id", "slot", "in_flight", "start"],
)
def test_an_invalid_subscription_is_refused(store, serve, consume, keys, reason):
    with pytest.raises(pa.ArrowInvalid, match=reason):
        consume(serve(), **keys).next()


def test_a_server_that_stops_ends_subscriptions_at_once(tmp_path, store, serve, consume, opened):
    """With UNAVAILABLE. The next server delivers what was not answered."""
    ingest(store, 1)
    consumer = consume(serve())
    assert consumer.next()[0]["address"] == "0:0"
    serve.receiver.stop(60)
    with pytest.raises(fl.FlightUnavailableError, match="stopping"):
        consumer.next()
    assert consume(serve(), follow=False).rest() == ["0:0"]
