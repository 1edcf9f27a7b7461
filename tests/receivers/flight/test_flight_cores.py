"""Stores of several cores over Flight: written, read, and delivered with addresses that name the core."""

import pytest
from flight_calls import command, put, rows, ticket

import quiver
from quiver.receivers.flight.sources import served_store


@pytest.fixture
def client(serve, opened, tmp_path):
    """Return a client of a store of three cores, beside another store."""
    store = opened.enter_context(quiver.open(tmp_path / "cores", cores=3))
    return serve(served_store(tmp_path / "cores", store))


def test_batches_are_stored_in_the_cores_in_turn(client, tmp_path):
    acks, error = put(client, command(store="cores", slot="logs"), *(rows(3 * n) for n in range(12)))
    assert (len(acks), error) == (12, None)
    found = client.do_get(ticket(store="cores", slot="logs")).read_all()["id"].to_pylist()
    assert sorted(found) == list(range(36))
    for core in range(3):
        assert len(list(quiver.read(tmp_path / "cores" / f"core_{core}").bundles())) == 4


def test_bundles_are_delivered_once_and_answered(client, consume):
    """Each core numbers its own segments, so an address begins with the core."""
    put(client, command(store="cores", slot="logs"), *(rows(n) for n in range(6)))
    consumer = consume(client, store="cores")
    addresses = [consumer.next()[0]["address"] for _ in range(6)]
    assert sorted(addresses) == [f"{core}/0:{n}" for core in range(3) for n in range(2)]
    consumer.answer(ack=addresses[:4], reject=addresses[4:5], reason="no")
    consumer.writer.close()
    list(client.do_action(("maintain", b'{"store": "cores"}')))
    assert consume(client, store="cores", follow=False).rest() == addresses[5:]
