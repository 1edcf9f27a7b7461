"""Topics over Flight: messages are appended once, read, delivered to subscriptions, and answered."""

import json
import threading

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from flight_calls import command, put, ticket

from quiver.errors import StoreFailedError, UsageError
from quiver.receivers.flight.served_topics import served_topics
from quiver.topics.engine import TopicEngine
from quiver.topics.store import TopicStore

TOPIC = "default/orders"
ATTRIBUTES = pa.map_(pa.string(), pa.string())


def messages(*payloads, **more):
    return pa.record_batch({"payload": pa.array(payloads, pa.binary()), **more})


@pytest.fixture
def topics(tmp_path, opened):
    return opened.enter_context(TopicStore.open(tmp_path / "topics"))


@pytest.fixture
def client(serve, topics, tmp_path):
    """Return a client of a store and of topics."""
    return serve(served_topics(tmp_path / "topics", topics))


def produce(client, *batches, sequences=None, **keys):
    return put(client, command(topic=TOPIC, **keys), *batches, sequences=sequences)


def payloads(client, **keys):
    return client.do_get(ticket(topic=TOPIC, **keys)).read_all()["payload"].to_pylist()


def test_messages_are_appended_and_read(client, topics):
    """Each row is a message; an acknowledgement has the offsets of its batch."""
    attributes = pa.array([[("a", "1")], None], ATTRIBUTES)
    keyed = messages(b"two", b"three", key=["k", None], attributes=attributes)
    acks, error = produce(client, keyed)
    assert (acks, error) == ([{"sequence": 0, "offset": 0, "count": 2}], None)
    text = pa.record_batch({"payload": ["four"]})
    acks, error = put(client, fl.FlightDescriptor.for_path("topics", TOPIC), text, text, sequences=[7, 9])
    assert acks == [{"sequence": 7, "offset": 2, "count": 1}, {"sequence": 9, "offset": 3, "count": 1}]
    assert topics.topic(TOPIC).durable_offset() == 4

    found = client.do_get(ticket(topic=TOPIC)).read_all()
    assert found.column_names == ["offset", "timestamp", "key", "payload", "attributes", "topic"]
    assert found.drop_columns("timestamp").to_pylist()[:2] == [
        {"offset": 0, "key": "k", "payload": b"two", "attributes": [("a", "1"), ("routing_key", "k")], "topic": TOPIC},
        {"offset": 1, "key": None, "payload": b"three", "attributes": [], "topic": TOPIC},
    ]
    assert payloads(client, offset=1, limit=2) == [b"three", b"four"]
    assert payloads(client, start="2020-01-01T00:00:00Z") == [b"two", b"three", b"four", b"four"]
    assert payloads(client, start="2200-01-01T00:00:00Z") == []
    assert payloads(client, offset=100) == []


def test_large_topics_are_read_in_several_messages(client, topics):
    log = topics.topic(TOPIC)
    log.append_batch([b"x" * 1000] * 5000)
    chunks = [chunk.data for chunk in client.do_get(ticket(topic=TOPIC))]
    assert sum(chunk.num_rows for chunk in chunks) == 5000
    assert max(chunk.nbytes for chunk in chunks) < 2 << 20


def test_a_producer_repeats_after_a_lost_acknowledgement(client):
    """Batches that overlap with what was appended add the rest; a client can ask where to continue."""
    options = {"producer": "edge-1"}
    acks, error = produce(client, messages(b"0", b"1"), messages(b"2"), sequences=[0, 2], **options)
    assert (acks[-1], error) == ({"sequence": 2, "offset": 2, "count": 1}, None)
    acks, error = produce(client, messages(b"0", b"1"), messages(b"2", b"3"), sequences=[0, 2], **options)
    assert ([ack["count"] for ack in acks], error) == ([0, 1], None)
    assert payloads(client) == [b"0", b"1", b"2", b"3"]
    body = json.dumps({"topic": TOPIC, **options}).encode()
    (result,) = client.do_action(("last_sequence", body))
    assert json.loads(result.body.to_pybytes()) == {"last_sequence": 3}
    (result,) = client.do_action(("last_sequence", json.dumps({"topic": TOPIC, "producer": "new"}).encode()))
    assert json.loads(result.body.to_pybytes()) == {}


def test_nothing_is_acknowledged_after_a_failed_sync(client, monkeypatch):
    def fail(_self):
        raise StoreFailedError("the disk is broken")

    monkeypatch.setattr(TopicEngine, "flush", fail)
    acks, error = produce(client, messages(b"0"))
    assert (acks, "send it again: the disk is broken" in str(error)) == ([], True)


class Messages:
    """A client of a subscription of a topic."""

    def __init__(self, consumer):
        self._consumer = consumer
        self._rows = []

    def next(self):
        """Return the next message."""
        if not self._rows:
            self._rows = self._consumer.reader.read_chunk().data.to_pylist()
        return self._rows.pop(0)

    def offsets(self, count):
        return [self.next()["offset"] for _ in range(count)]

    def answer(self, **keys):
        self._consumer.answer(**keys)

    def end(self):
        self._consumer.reader.cancel()


@pytest.fixture
def subscribe(consume, client):
    def start(**keys):
        return Messages(consume(client, **{"topic": TOPIC, "subscription": "billing"} | keys))

    return start


def test_messages_are_delivered_and_answered(client, subscribe):
    """A rejected message is a dead letter; the others are delivered until they are acknowledged."""
    produce(client, messages(*(str(n).encode() for n in range(6))))
    consumer = subscribe()
    assert consumer.next() | {"timestamp": None} == {
        "offset": 0, "timestamp": None, "key": None, "payload": b"0", "attributes": [], "topic": TOPIC, "attempt": 1,
    }  # fmt: skip
    assert consumer.offsets(5) == [1, 2, 3, 4, 5]
    consumer.answer(ack=["0", "2"], reject=["1"], reason="not JSON")
    consumer.answer(nack=["3"])
    again = consumer.next()
    assert (again["offset"], again["attempt"]) == (3, 2)
    consumer.answer(ack=["3"])
    dead = f"{TOPIC}-dead-letter"
    produce(client, messages(b"6"))
    assert consumer.offsets(1) == [6]
    assert client.do_get(ticket(topic=dead)).read_all()["payload"].to_pylist() == [b"1"]
    consumer.end()
    last = subscribe(follow=False)
    assert sorted(last.offsets(3)) == [4, 5, 6]
    last.answer(ack=["4", "5", "6"])
    with pytest.raises(StopIteration):
        last.next()


def test_answers_are_durable_after_maintenance(client, topics, subscribe, tmp_path):
    """A store that is opened again, as after a kill, does not deliver them again."""
    produce(client, messages(b"0", b"1", b"2"))
    consumer = subscribe(in_flight=2)
    assert consumer.offsets(2) == [0, 1]
    consumer.answer(ack=["0", "1"])
    assert consumer.offsets(1) == [2]
    list(client.do_action("maintain"))
    (path,) = (tmp_path / "topics").rglob("billing.sub")
    saved = path.read_bytes()
    topics.close()
    path.write_bytes(saved)
    with TopicStore.open(tmp_path / "topics") as again, again.subscribe(TOPIC, "billing").consumer("c") as reader:
        assert reader.receive(0.0).offset == 2


def test_consumers_share_a_subscription_and_return_what_they_leave(client, subscribe):
    """Unanswered messages of a client that ends are delivered to another one."""
    produce(client, messages(*[b"x"] * 4))
    one, two = subscribe(in_flight=2), subscribe(in_flight=2)
    assert sorted(one.offsets(2) + two.offsets(2)) == [0, 1, 2, 3]
    one.end()
    two.end()
    three = subscribe()
    assert sorted(three.offsets(4)) == [0, 1, 2, 3]


def test_an_exclusive_subscription_has_one_consumer(client, subscribe):
    produce(client, messages(b"x"))
    assert subscribe(kind="exclusive").offsets(1) == [0]
    with pytest.raises(pa.ArrowException, match="exclusive subscription billing"):
        subscribe(kind="exclusive").next()


def test_new_messages_are_delivered_while_the_stream_is_open(client, subscribe):
    consumer = subscribe()
    for number in range(3):
        produce(client, messages(b"x"))
        assert consumer.offsets(1) == [number]
        consumer.answer(ack=[str(number)])


@pytest.mark.parametrize(
    ("batch", "keys", "reason"),
    [
        (pa.record_batch({"id": [1]}), {}, "messages have the column payload"),
        (messages(b"x", other=[1]), {}, "may have key and attributes; not payload, other"),
        (pa.record_batch({"payload": [1.5]}), {}, "payload is double; it must be binary or string"),
        (pa.record_batch({"payload": pa.array(["x"]).dictionary_encode()}), {}, "payload is dictionary"),
        (messages(b"x", key=[b"k"]), {}, "key is binary; it must be string"),
        (messages(*[b""] * 65_537), {}, "65537 messages; a batch has at most 65536"),
        (messages(b"x", attributes=pa.array([[("a", None)]], ATTRIBUTES)), {}, "an attribute is null"),
        (messages(b"x", attributes=pa.array([[("a", "")] * 65_537], ATTRIBUTES)), {}, "65537 attributes"),
        (messages(b"x", None), {}, "payload of row 1 is null"),
        (messages(b"x", attributes=[["a"]]), {}, "the column attributes is list"),
        (messages(b"x"), {"producer": "edge"}, "a producer numbers its messages"),
        (messages(b"x"), {"producer": "a b"}, "is not a producer name"),
        (messages(b"x"), {"topic": "orders"}, "is not a topic"),
        (messages(b"x"), {"slot": "logs"}, "does not use slot"),
        (messages(b"x"), {"topic": None}, "topic must be a text"),
    ],
)
def test_invalid_messages_are_refused(client, topics, batch, keys, reason):
    """Nothing of the batch is appended, and no topic is created."""
    acks, error = put(client, command(**{"topic": TOPIC} | keys), batch)
    assert (acks, reason in str(error)) == ([], True), error
    assert not topics.topics() or payloads(client) == []


def test_a_message_that_is_too_large_is_refused(client, topics):
    """The limit of the topic counts, and the batches before it are acknowledged."""
    too_large = messages(bytes(11 << 20))
    acks, error = produce(client, messages(b"0"), too_large)
    assert (len(acks), "batch 1 of the stream" in str(error)) == (1, True)
    assert topics.topic(TOPIC).current_offset() == 1


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"topic": "default/none"}, "no topic default/none in topics"),
        ({"topic": TOPIC, "start": "latest"}, "to wait for new messages, subscribe"),
        ({"topic": TOPIC, "start": 0, "offset": 1}, "start, or offset"),
        ({"topic": TOPIC, "offset": -1}, "offset must be"),
        ({"topic": TOPIC, "columns": ["key"]}, "does not use columns"),
    ],
    ids=["unknown", "latest", "both", "negative", "columns"],
)
def test_an_invalid_scan_is_refused(client, keys, reason):
    produce(client, messages(b"x"))
    with pytest.raises((pa.ArrowException, KeyError), match=reason):
        client.do_get(ticket(**keys)).read_all()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"subscription": "a/b"}, "not a subscription name"),
        ({"kind": "fanout"}, "is not a kind of subscription"),
        ({"subscriber": "x"}, "does not use subscriber"),
        ({"subscription": "_checkpoint"}, "reserved"),
    ],
)
def test_an_invalid_subscription_is_refused(client, subscribe, keys, reason):
    produce(client, messages(b"x"))
    with pytest.raises(pa.ArrowInvalid, match=reason):
        subscribe(**keys).next()


def test_topics_are_listed_and_found_without_a_name(client, topics, store):
    """A server with one store and one directory of topics needs no names in commands."""
    produce(client, messages(b"x"))
    found = {json.loads(info.descriptor.command).get("topic") for info in client.list_flights()}
    assert TOPIC in found
    info = client.get_flight_info(fl.FlightDescriptor.for_path(TOPIC))
    assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == 1
    with pytest.raises(pa.ArrowInvalid, match="buffer is a store and has no topics"):
        list(client.do_action(("last_sequence", b'{"store": "buffer", "topic": "a/b", "producer": "p"}')))
    with pytest.raises(pa.ArrowInvalid, match="does not use topic"):
        client.do_get(ticket(store="buffer", topic=TOPIC)).read_all()
    with pytest.raises(pa.ArrowInvalid, match="needs a topic"):
        client.do_get(ticket(store="topics")).read_all()


def test_read_only_topics_are_read_while_another_process_writes(topics, serve, tmp_path):
    """Nothing can be appended or acknowledged."""
    topics.topic(TOPIC).append_batch([b"0", b"1", b"2"])
    client = serve(served_topics(tmp_path / "topics"))
    assert payloads(client) == [b"0", b"1", b"2"]
    assert payloads(client, offset=1, limit=1) == [b"1"]
    assert payloads(client, start="2200-01-01T00:00:00Z") == []
    acks, error = produce(client, messages(b"x"))
    assert (acks, "served for reading only" in str(error)) == ([], True)
    with pytest.raises(UsageError, match="is not a directory of topics"):
        served_topics(tmp_path / "missing")


def test_many_clients_share_syncs(client, topics):
    """Each of their batches is acknowledged once it is durable."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(produce(client, *[messages(b"x")] * 20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for _, error in found] == [None] * 4
    offsets = sorted(ack["offset"] for acks, _ in found for ack in acks)
    assert offsets == list(range(80))
    assert topics.topic(TOPIC).durable_offset() == 80
